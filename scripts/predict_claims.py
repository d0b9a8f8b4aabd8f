#!/usr/bin/env python3
"""Write what every claim of the suites measured on real hardware, and what the emulator predicts of the same claim.

    python scripts/predict_claims.py h200

Runs `pytest suites --emulate KIND` with fixed noise and reads the run folders of docs/measured/KIND/. Writes two tables
between their comments: one row a claim in docs/measured/KIND.md, every demand with every host in
docs/measured/KIND_predictions.md. Git says which prediction was made before its measurement.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.judging.claim_judge import PRIMARIES, guard
from pytest_llmperf.results.check import BASELINE_COMPARISON, CheckResult
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import read_run
from pytest_llmperf.results.sentences import estimate_text

ROOT = Path(__file__).resolve().parents[1]
COEFFICIENTS = ROOT / "pytest_llmperf" / "emulator" / "cost" / "coefficients.json"
BEGIN = "<!-- predictions: written by scripts/predict_claims.py -->"
END = "<!-- end of predictions -->"
CLAIMS_BEGIN = "<!-- claims: written by scripts/predict_claims.py -->"
CLAIMS_END = "<!-- end of claims -->"
LEGEND = (
    "A host that is marked *fitted* contributed its runs of that test to the fit of the coefficients; every "
    "other host is outside the fit."
)
CLAIM = re.compile(r"(\w+)\(([ab])\) / (\w+)\(([ab])\)")
ONE_SIDE = re.compile(r"\w\([ab]\)")
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*(.*)")

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
    """One requirement of a test, with the prediction and the measurement of each host."""

    test: str
    requirement: str
    predicted: CheckResult | None
    measured: tuple[tuple[str, str], ...] = ()
    verdicts: tuple[str, ...] = ()
    why_not: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("kind", choices=("l4", "a100", "h100", "h200"))
    parser.add_argument("--run", type=Path, metavar="DIR", help="a folder of run folders and junit.xml to read instead "
                        "of running the suites")
    arguments = parser.parse_args(argv)
    measured = ROOT / "docs" / "measured" / arguments.kind
    with tempfile.TemporaryDirectory() as scratch:
        place = arguments.run or emulate(arguments.kind, Path(scratch))
        requirements = list(rows(place, measured))
    predictions = measured.with_name(f"{arguments.kind}_predictions.md")
    write_table(predictions, written(requirements), BEGIN, END)
    write_table(measured.with_suffix(".md"), claims_table(requirements), CLAIMS_BEGIN, CLAIMS_END)
    print(f"{len(requirements)} demands in {predictions}")
    return 0


def emulate(kind: str, place: Path) -> Path:
    """Run the suites; a FAIL of theirs is a prediction, too."""
    command = [sys.executable, "-m", "pytest", "suites", "-q", "-q", "-p", "no:cacheprovider", "--emulate", kind,
               "-k", kind, f"--llmperf-runs={place}", f"--junitxml={place / 'junit.xml'}"]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    return place


def rows(place: Path, measured: Path) -> Iterator[Row]:
    """One for every demand of every test, in the order of the tests; skipped tests once."""
    (run,) = (folder for folder in place.iterdir() if folder.is_dir())
    predicted = {test.test: test for test in read_run(run)}
    folders = sorted(measured.glob("?-*"))
    hosts = [(_host(folder, test), test) for folder in folders for test in read_run(folder)]
    skipped = dict(_skipped(place / "junit.xml"))
    for test in sorted({*predicted, *skipped}):
        if test in skipped:
            yield Row(test, "", None, why_not=skipped[test])
            continue
        for check in _requirements(predicted[test]):
            same = list(_same_workload(predicted[test], hosts))
            measured_by_host = ((host, other, _measured(predicted[test], other, check)) for host, other in same)
            values_by_host = [(host, other, value) for host, other, value in measured_by_host if value is not None]
            verdicts = tuple(_verdict(predicted[test], other, check) for _, other, _ in values_by_host)
            yield Row(test, check.subject, check, tuple((host, value) for host, _, value in values_by_host), verdicts)


def claims_table(requirements: Iterable[Row]) -> str:
    """One row a claim or SLO that some host measured: median and range over sessions, verdicts, the emulated value."""
    lines = ["| test | claim | median | range | hosts | verdicts | emulated |", "|---|---|---|---|---|---|---|"]
    lines += [_claim_line(row) for row in requirements if row.measured and _is_claim(row.requirement)]
    return "\n".join(lines)


def _is_claim(requirement: str) -> bool:
    """A demand on one side of a claim alone, such as `chunk_budget(a) <= 1024`, is a mechanism and no claim."""
    return " / " in requirement or not ONE_SIDE.search(requirement)


def _claim_line(row: Row) -> str:
    values = [value for _, value in row.measured]
    hosts = ", ".join(sorted({host[0] for host, _ in row.measured}))
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(Counter(row.verdicts).items()))
    predicted = "" if row.predicted is None else estimate_text(row.predicted)
    name = row.test.partition("::")[2]
    cells = (f"`{name}`", f"`{row.requirement}`", _median(values), _range(values), hosts, verdicts, predicted)
    return f"| {' | '.join(cells)} |"


def _numbers(values: Sequence[str]) -> tuple[list[float], str] | None:
    """The values without their unit, and the unit; None where a value is no number or the units differ."""
    matches = [NUMBER.match(value) for value in values]
    units = {match[2] if match else None for match in matches}
    if len(units) != 1 or None in units:
        return None
    return [float(match[1]) for match in matches if match], units.pop() or ""


def _median(values: Sequence[str]) -> str:
    parsed = _numbers(values)
    if parsed is None:
        return values[0] if len(set(values)) == 1 else "–"
    numbers, unit = parsed
    return f"{_shown(statistics.median(numbers))}{'' if unit == '×' else ' '}{unit}".strip()


def _range(values: Sequence[str]) -> str:
    parsed = _numbers(values)
    if parsed is None or len(values) < 2:
        return ""
    least, most = _shown(min(parsed[0])), _shown(max(parsed[0]))
    return "" if least == most else f"{least} – {most}"


def _shown(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def written(requirements: Iterable[Row]) -> str:
    """The table of predictions, and the coefficients that it rests on."""
    lines = [
        "| test | requirement | predicted | measured (host) | prediction ÷ measured |",
        "|---|---|---|---|---|",
        *map(_line, requirements),
    ]
    digest = hashlib.sha256(COEFFICIENTS.read_bytes()).hexdigest()[:12]
    return "\n".join([*lines, "", f"Coefficients {digest}, noise seed 0.", LEGEND])


def write_table(page: Path, table: str, begin: str, end: str) -> None:
    """Replace what stands between the two comments of the page."""
    page.write_text(with_table(page.read_text(encoding="utf-8"), table, begin, end), encoding="utf-8")


def with_table(page: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with the table between its comments.

    Raises:
        ValueError: the page lacks one of the comments.
    """
    head, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"the page has no lines {begin} and {end}")
    return f"{head}{begin}\n\n{table}\n\n{end}{after}"


def _host(folder: Path, test: TestResult) -> str:
    """Letter of the host, with ", fitted" if the host's data were used to fit the emulator."""
    letter, name = folder.name[0], test.test.partition("::")[2].partition("[")[0]
    return f"{letter}, fitted" if letter in FITTED.get(folder.parent.name, {}).get(name, "") else letter


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
    """The verdict of that day on the same demand; a demand with another limit has none."""
    same = _same_check(predicted, test, check)
    return same.verdict.value if same is not None and same.subject == check.subject else "with another limit"


def _same_check(predicted: TestResult, test: TestResult, check: CheckResult) -> CheckResult | None:
    """The same demand, else one of the same metric. Of several with one text the place in the test decides.

    A demand on one measurement that a test repeats with other limits has no counterpart: it is of another engine.
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


def _measured(predicted: TestResult, test: TestResult, check: CheckResult) -> str | None:
    """As the same demand says it, else one of the same metric, else what the runs give for a claim made since."""
    same = _same_check(predicted, test, check)
    if same is not None:
        return estimate_text(same)
    claimed = CLAIM.fullmatch(check.metric)
    if claimed is None:
        return None
    above, below = (
        next((m.value_with_failures(metric) for m in test.measurements if m.side == side), None)
        for metric, side in (claimed.group(1, 2), claimed.group(3, 4))
    )
    return f"{above / below:.3g}×" if above and below else None


def _skipped(junit: Path) -> Iterator[tuple[str, str]]:
    """Tests that cannot be emulated, and why; not those of other hardware."""
    for case in ET.parse(junit).getroot().iter("testcase"):
        note = case.find("skipped")
        reason = "" if note is None else note.get("message", "")
        if reason and "llmperf" not in reason and not reason.startswith("needs "):
            yield f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}", reason


def _line(row: Row) -> str:
    name = row.test.partition("::")[2]
    if row.predicted is None:
        return f"| `{name}` | – | {row.why_not} | | |"
    measured = ", ".join(f"{value} ({host})" for host, value in row.measured)
    ratios = [_ratio(estimate_text(row.predicted), value) for _, value in row.measured]
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios if ratio is not None)
    return f"| `{name}` | `{row.requirement}` | {_estimate_text(row.predicted)} | {measured} | {shown} |"


def _estimate_text(check: CheckResult) -> str:
    """A verdict other than PASS is part of the prediction."""
    measured = estimate_text(check)
    return measured if check.verdict.value == "PASS" else f"{measured}, {check.verdict.value}"


def _ratio(predicted: str, measured: str) -> float | None:
    """Of two numbers with the same unit."""
    first, other = NUMBER.match(predicted), NUMBER.match(measured)
    if first is None or other is None or first[2] != other[2] or not float(other[1]):
        return None
    return float(first[1]) / float(other[1])


if __name__ == "__main__":
    sys.exit(main())
