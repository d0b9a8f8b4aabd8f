#!/usr/bin/env python3
"""Where the GPU minutes of a session would go, from a run folder of the emulator.

    pytest -m h200 suites/ --emulate h200
    python scripts/predict_gpu_minutes.py .llmperf/runs/NEWEST

Virtual time has the lengths of the runs, and the run files name the server starts. The lengths of starts are from an
H200 (docs/measured/h200_headline.md). Tests with more than one GPU are left out. The table has the order of
`--budget`: the shortest test first. "Separate" is the time with each start alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.model.ranks import gpus_of
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.results.reader import read_run

FIRST_START_S = 115.0  # of a host, with an empty compile cache
START_S = 65.0
TWO_STARTS_S = 96.0  # of two servers at the same time; each further server adds as much as the second one
RUN_S = 1.0  # resetting caches and reading counters, for each run
WARM_UP_S = 4.0  # for each server and workload
SHARING = re.compile(r"(\d+) idle servers? beside it")


@dataclass(frozen=True)
class Times:
    """Predicted seconds of a test.

    Args:
        test: its id.
        runs_s: all runs and warm-ups.
        separate_s: server starts, each alone.
        starts_s: server starts, those of servers that live together at the same time.
        starts: number of servers started.
    """

    test: str
    runs_s: float
    separate_s: float
    starts_s: float
    starts: int

    @property
    def total_s(self) -> float:
        return self.runs_s + self.starts_s


def times_of(test: TestResult, running: set[int]) -> Times:
    """Predicted seconds of a test that begins while the servers of these starts run."""
    groups = {start: size for each in test.measurements for start, size in _starts(each)}
    new = {start: size for start, size in groups.items() if start not in running}
    runs = [run for each in test.measurements for run in each.metrics]
    warm = {(run.start_id, each.workload) for each in test.measurements for run in each.runs}
    together_s = sum((START_S + (size - 1) * (TWO_STARTS_S - START_S)) / size for size in new.values())
    runs_s = sum((run.value("duration_s") or 0.0) + RUN_S for run in runs) + WARM_UP_S * len(warm)
    return Times(test.test, runs_s, START_S * len(new), together_s, len(new))


def _starts(measurement: Measurement) -> list[tuple[int, int]]:
    """Each start of the measurement with the number of servers that started at the same time; SGLang's start alone."""
    at_once = measurement.conditions["engine"] != "sglang"
    sharing = SHARING.search(measurement.conditions.get("treatment", "")) if at_once else None
    return [(start, 1 + int(sharing[1]) if sharing else 1) for start in {run.start_id for run in measurement.runs}]


def _of_one_gpu(test: TestResult) -> bool:
    flags = [json.loads(each.conditions.get("flags", "{}")) for each in test.measurements]
    return bool(flags) and all(gpus_of(each) == 1 for each in flags)


def predicted(tests: Sequence[TestResult]) -> list[Times]:
    """The tests of one GPU, in the order in which they ran."""
    in_order = sorted((test for test in tests if _of_one_gpu(test)),
                      key=lambda test: min(run.started_at for each in test.measurements for run in each.runs))
    times, running = [], set[int]()
    for test in in_order:
        times.append(times_of(test, running))
        running |= {run.start_id for each in test.measurements for run in each.runs}
    return times


def tests_at(commit: str) -> set[str]:
    """The suites' test functions at a commit, such as "suites/test_serving.py::test_answers_come_in_time"."""
    lines = subprocess.run(["git", "grep", "-E", "^def test_", commit, "--", "suites"], check=True,
                           capture_output=True, text=True).stdout.splitlines()
    return {re.sub(r"^.*?:(.*):def (\w+)\(.*$", r"\1::\2", line) for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--at", metavar="COMMIT", help="only tests whose functions were in suites/ at this commit")
    options = parser.parse_args()
    times = predicted(read_run(options.run))
    if options.at is not None:
        functions = tests_at(options.at)
        times = [each for each in times if each.test.partition("[")[0] in functions]
    print("| test | servers started | starts, s | runs, s | together, min | sum, min | separate, min |")
    print("|---|---|---|---|---|---|---|")
    elapsed_s = FIRST_START_S - START_S
    for each in sorted(times, key=lambda each: each.total_s):
        elapsed_s += each.total_s
        name = each.test.removeprefix("suites/")
        print(f"| `{name}` | {each.starts} | {each.starts_s:.0f} | {each.runs_s:.0f} | {each.total_s / 60:.1f} | "
              f"{elapsed_s / 60:.0f} | {(each.separate_s + each.runs_s) / 60:.1f} |")
    starts_s, runs_s = sum(each.starts_s for each in times), sum(each.runs_s for each in times)
    separate_s = sum(each.separate_s for each in times)
    print(f"\n{len(times)} tests, {sum(each.starts for each in times)} servers started: starts {starts_s / 60:.0f} min "
          f"(separate {separate_s / 60:.0f} min), runs {runs_s / 60:.0f} min.")


if __name__ == "__main__":
    main()
