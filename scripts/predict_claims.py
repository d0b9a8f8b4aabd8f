#!/usr/bin/env python3
"""Write what every claim of the suites measured on real hardware, and what the emulator predicts of the same claim.

    python scripts/predict_claims.py h200

Runs `pytest suites --emulate KIND` with fixed noise and reads the run folders of docs/measured/KIND/. Writes one row a
claim between the two comments of docs/measured/KIND.md.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from markdown_pages import table, with_part

from pytest_llmperf.judging.claim_judge import PRIMARIES, guard
from pytest_llmperf.metrics import Unit, find, is_metric
from pytest_llmperf.results.check import BASELINE_COMPARISON, CheckResult
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import read_run

ROOT = Path(__file__).resolve().parents[1]
CLAIM = re.compile(r"(\w+)\(([ab])\) / (\w+)\(([ab])\)")
ONE_SIDE = re.compile(r"\w\([ab]\)")
LIMIT = re.compile(r"[<>]=")
NUMBER = re.compile(r"-?\d+(\.\d+)?")
HEAD = ("test", "claim", "median", "range", "hosts", "verdicts", "emulated", "÷ median")

# Kind → test → hosts whose runs of it the coefficients have seen: single steps (emulator_fit/anchors.py), the eager
# layer (emulator_fit/parameters.py), loads from the host's memory (pytest_llmperf/emulator/flags/tiers.py).
FITTED = {
    "h200": {
        "test_shared_prefixes_come_from_the_cache": "abd",
        "test_ngram_drafts_pay": "ad",
        "test_small_chunks_smooth_itl": "bd",
        "test_two_gpus_decode_faster_than_one": "c",
        "test_graphs_decode_faster_than_eager": "g",
        "test_evicted_prefixes_come_back_from_the_host": "j",
    }
}


@dataclass(frozen=True)
class Row:
    """One requirement of an emulated test with its prediction, and the value and verdict of each host."""

    test: str
    requirement: CheckResult
    measured: tuple[tuple[str, float], ...]
    verdicts: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("kind", choices=("l4", "a100", "h100", "h200"))
    parser.add_argument("--run", type=Path, metavar="DIR", help="a folder with one run folder to read instead of "
                        "running the suites")
    arguments = parser.parse_args(argv)
    measured = ROOT / "docs" / "measured" / arguments.kind
    with tempfile.TemporaryDirectory() as scratch:
        place = arguments.run or emulate(arguments.kind, Path(scratch))
        requirements = list(rows(place, measured))
    page = measured.with_suffix(".md")
    text = with_part(page.read_text(encoding="utf-8"), "claims", claims_table(requirements))
    page.write_text(text, encoding="utf-8")
    print(f"{len(requirements)} demands, those with a measured claim in {page}")
    return 0


def emulate(kind: str, place: Path) -> Path:
    """Run the suites; a FAIL of theirs is a prediction, too."""
    command = [sys.executable, "-m", "pytest", "suites", "-q", "-q", "-p", "no:cacheprovider", "--emulate", kind,
               "-k", kind, f"--llmperf-runs={place}"]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    return place


def rows(place: Path, measured: Path) -> Iterator[Row]:
    """One for every requirement of every test, in the order of the tests."""
    (run,) = (folder for folder in place.iterdir() if folder.is_dir())
    predicted = {test.test: test for test in read_run(run)}
    folders = sorted(measured.glob("?-*"))
    hosts = [(_host(folder, test), test) for folder in folders for test in read_run(folder)]
    for test in sorted(predicted):
        for check in _requirements(predicted[test]):
            same = [(host, other, _measured(predicted[test], other, check))
                    for host, other in _same_workload(predicted[test], hosts)]
            measured_by_host = [(host, other, value) for host, other, value in same if value is not None]
            verdicts = tuple(_verdict(predicted[test], other, check) for _, other, _ in measured_by_host)
            values = tuple((host, value) for host, _, value in measured_by_host)
            yield Row(test, check, values, verdicts)


def claims_table(requirements: Iterable[Row]) -> str:
    """One row a claim or SLO that some host measured: median and range over sessions, verdicts, the emulated value."""
    lines = []
    claims = [row for row in requirements if row.measured and _is_claim(row.requirement.subject)]
    for _, same in groupby(claims, lambda row: (row.test, row.requirement.metric, row.measured)):
        first, *others = same
        metric = first.requirement.metric
        limits = [first.requirement.subject, *(row.requirement.subject.removeprefix(metric).strip() for row in others)]
        lines.append(_claim_cells(", ".join(limits), first))
    return table(HEAD, lines)


def _is_claim(requirement: str) -> bool:
    """A claim has a limit. A requirement on one side of a claim, such as `chunk_budget(a) <= 1024`, is a mechanism."""
    limited = LIMIT.search(requirement) is not None
    return limited and (" / " in requirement or not ONE_SIDE.search(requirement))


def _claim_cells(claims: str, row: Row) -> tuple[str, ...]:
    values = [value for _, value in row.measured]
    unit, predicted = _unit(row.requirement), _value(row.requirement)
    hosts = " ".join(sorted({host for host, _ in row.measured}))
    counts, median = Counter(row.verdicts), statistics.median(values)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in sorted(counts))
    least, most = unit.number(min(values)), unit.number(max(values))
    emulated = "–" if predicted is None else unit.show(predicted)
    ratio = "" if predicted is None or not median else f"{predicted / median:.2f}"
    return (f"`{row.test.partition('::')[2]}`", f"`{claims}`", unit.show(median),
            "" if least == most else f"{least} – {most}", hosts, verdicts, emulated, ratio)


def _host(folder: Path, test: TestResult) -> str:
    """Letter of the host, with an asterisk if the host's data were used to fit the emulator."""
    letter, name = folder.name[0], test.test.partition("::")[2].partition("[")[0]
    return f"{letter}\\*" if letter in FITTED.get(folder.parent.name, {}).get(name, "") else letter


def _requirements(test: TestResult) -> Iterator[CheckResult]:
    """Claims, SLOs and mechanisms with a number; no exact ones, guards or comparisons with a baseline."""
    guards = {guard(name).text for name in PRIMARIES}
    for check in test.checks:
        exact = "==" in check.subject
        if not (exact or check.subject in guards or check.subject.startswith(BASELINE_COMPARISON)):
            yield check


def _same_workload(
    test: TestResult, hosts: Sequence[tuple[str, TestResult]]
) -> Iterator[tuple[str, TestResult]]:
    """What hosts measured of the same test under the same workloads."""
    workloads = {measurement.workload for measurement in test.measurements}
    for host, other in hosts:
        if other.test == test.test and {measurement.workload for measurement in other.measurements} == workloads:
            yield host, other


def _verdict(predicted: TestResult, test: TestResult, check: CheckResult) -> str:
    """The verdict of that day on the same requirement; a requirement with another limit has none."""
    same = _same_check(predicted, test, check)
    return same.verdict.value if same is not None and same.subject == check.subject else "with another limit"


def _same_check(predicted: TestResult, test: TestResult, check: CheckResult) -> CheckResult | None:
    """The same requirement, else one of the same metric. Of several with one text the place in the test decides.

    A requirement on one measurement that a test repeats with other limits has no counterpart: it is of another engine.
    """
    same = [other for other in test.checks if other.subject == check.subject]
    if same:
        place = _place(check, (other for other in predicted.checks if other.subject == check.subject))
        return same[min(place, len(same) - 1)]
    same = [other for other in test.checks if other.metric == check.metric]
    place = _place(check, (other for other in predicted.checks if other.metric == check.metric))
    if len(same) > 1 and " / " not in check.metric:
        return None
    return same[min(place, len(same) - 1)] if same else None


def _place(check: CheckResult, checks: Iterable[CheckResult]) -> int:
    """Position of this very check: two measurements may have equal checks."""
    return next(place for place, other in enumerate(checks) if other is check)


def _unit(check: CheckResult) -> Unit:
    return find(check.metric).unit if is_metric(check.metric) else Unit.RATIO


def _value(check: CheckResult) -> float | None:
    """The measured value, of a search the proven rate. The first run files have it as text, without its unit apart."""
    if (texts := check.facts.get("texts")) is None:
        return check.facts.get("proven_rate", check.estimate)
    number = NUMBER.match(texts.get("measured", ""))
    return None if number is None else float(number[0]) / (100 if _unit(check) is Unit.SHARE else 1)


def _measured(predicted: TestResult, test: TestResult, check: CheckResult) -> float | None:
    """As the same requirement says it, else one of the same metric, else what the runs give for a claim made since."""
    same = _same_check(predicted, test, check)
    if same is not None:
        return _value(same)
    claimed = CLAIM.fullmatch(check.metric)
    if claimed is None:
        return None
    above, below = (
        next((m.value_with_failures(metric) for m in test.measurements if m.side == side), None)
        for metric, side in (claimed.group(1, 2), claimed.group(3, 4))
    )
    return above / below if above and below else None


if __name__ == "__main__":
    sys.exit(main())
