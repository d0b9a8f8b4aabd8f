#!/usr/bin/env python3
"""Does living together change what is measured? Compare runs of the same seeds in two run folders.

    python scripts/compare_residence.py .llmperf/runs/ALONE .llmperf/runs/TOGETHER

Both folders come from the same suites, with different values of --llmperf-resident. Runs pair by test, server and seed.
A server is an engine with the flags of the test and a build (candidate or reference). Each line has the mean of the log
differences TOGETHER ÷ ALONE in per cent, the sd of these differences, and the number of pairs. The servers of two
folders are separate starts, and the sd does not contain the difference between starts (0.25 % in median ITL on GPUs).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import mean, stdev

from pytest_llmperf.engines.measured_memory import OF_RESIDENCE
from pytest_llmperf.report.table import aligned
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.reader import read_run

METRICS = ("itl_p50", "tpot_mean", "ttft_p50")
Key = tuple[str, str, int]


def values_by_run(folder: Path, metric: str) -> dict[Key, float]:
    """Test, server and seed → mean of the metric over the runs with these three."""
    values: dict[Key, list[float]] = {}
    for test in read_run(folder):
        for measurement in test.measurements:
            for run, metrics in zip(measurement.runs, measurement.metrics, strict=True):
                value = metrics.value(metric)
                if value:
                    values.setdefault((test.test, server_of(measurement), run.seed), []).append(value)
    return {key: mean(each) for key, each in values.items()}


def server_of(measurement: Measurement) -> str:
    """Engine, flags of the test and build, without the flags that say how servers live together."""
    conditions = measurement.conditions
    flags = json.loads(conditions.get("flags", "{}"))
    kept = {name: value for name, value in flags.items() if name not in OF_RESIDENCE}
    build = conditions.get("installation", "candidate")
    return f"{conditions.get('engine', '?')} {json.dumps(kept, sort_keys=True)} {build}"


def differences(alone: Mapping[Key, float], together: Mapping[Key, float]) -> dict[tuple[str, str], list[float]]:
    """Test and server → log differences in per cent, one per seed that both folders have."""
    pairs: dict[tuple[str, str], list[float]] = {}
    for test, server, seed in sorted(alone.keys() & together.keys()):
        key = test, server, seed
        pairs.setdefault((test, server), []).append(100 * log(together[key] / alone[key]))
    return pairs


def rows(alone: Path, together: Path, metrics: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """A row per test, server and metric."""
    for metric in metrics:
        of_metric = differences(values_by_run(alone, metric), values_by_run(together, metric))
        for (test, server), each in of_metric.items():
            spread = f"{stdev(each):.2f}" if len(each) > 1 else "–"
            yield metric, f"{mean(each):+.2f}", spread, str(len(each)), test, server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("alone", type=Path)
    parser.add_argument("together", type=Path)
    parser.add_argument("--metrics", default=",".join(METRICS), help="names of metrics with commas (%(default)s)")
    arguments = parser.parse_args()
    head = ("metric", "change %", "sd", "pairs", "test", "server")
    print("\n".join(aligned([head, *rows(arguments.alone, arguments.together, arguments.metrics.split(","))])))


if __name__ == "__main__":
    main()
