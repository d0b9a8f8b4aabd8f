#!/usr/bin/env python3
"""Write what the emulator predicts of every claim of the suites, beside what was measured on that hardware.

    python scripts/predict_claims.py h200

Runs `pytest suites --emulate KIND` with fixed noise, reads the run folders of docs/measured/KIND/, and writes the table
of docs/measured/KIND.md between its two comments. What was predicted before it was measured, git says.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.model.verdict import AGAINST_BASELINE, CheckResult
from pytest_llmperf.report.kept import KeptTest, read_run
from pytest_llmperf.session.judge import PRIMARIES, guard

ROOT = Path(__file__).resolve().parents[1]
COEFFICIENTS = ROOT / "pytest_llmperf" / "emulator" / "cost" / "coefficients.json"
BEGIN = "<!-- predictions: written by scripts/predict_claims.py -->"
END = "<!-- end of predictions -->"
LEGEND = "Where a host is marked *fitted* they have seen its runs of that test; every other host is held out."
CLAIM = re.compile(r"(\w+)\(([ab])\) / (\w+)\(([ab])\)")
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
    """One demand of a test: what was predicted, and what each host measured."""

    test: str
    demand: str
    predicted: CheckResult | None
    measured: tuple[tuple[str, str], ...] = ()
    why_not: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("kind", choices=("l4", "a100", "h100", "h200"))
    parser.add_argument("--run", type=Path, metavar="DIR", help="a folder of run folders and junit.xml to read instead "
                        "of running the suites")
    arguments = parser.parse_args(argv)
    page = ROOT / "docs" / "measured" / f"{arguments.kind}.md"
    with tempfile.TemporaryDirectory() as scratch:
        place = arguments.run or emulate(arguments.kind, Path(scratch))
        table = written(rows(place, page.with_suffix("")))
    page.write_text(with_table(page.read_text(encoding="utf-8"), table), encoding="utf-8")
    print(f"{table.count(chr(10)) - 1} demands in {page}")
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
        for check in _demands(predicted[test]):
            yield Row(test, check.subject, check, tuple(_same(predicted[test], check, hosts)))


def written(found: Iterator[Row]) -> str:
    """The table, and the coefficients that it rests on."""
    lines = [
        "| test | demand | predicted | measured (host) | prediction ÷ measured |",
        "|---|---|---|---|---|",
        *map(_line, found),
    ]
    digest = hashlib.sha256(COEFFICIENTS.read_bytes()).hexdigest()[:12]
    return "\n".join([*lines, "", f"Coefficients {digest}, noise seed 0.", LEGEND])


def with_table(page: str, table: str) -> str:
    """The page with the table between its comments.

    Raises:
        ValueError: it has no place for it.
    """
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise ValueError(f"the page has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def _host(folder: Path, test: KeptTest) -> str:
    """Its letter, and whether it is no held-out one."""
    letter, name = folder.name[0], test.test.partition("::")[2].partition("[")[0]
    return f"{letter}, fitted" if letter in FITTED.get(folder.parent.name, {}).get(name, "") else letter


def _demands(test: KeptTest) -> Iterator[CheckResult]:
    """Claims, SLOs and mechanisms with a number; no exact ones, guards or comparisons with a baseline."""
    guards = {guard(name).text for name in PRIMARIES}
    for check in test.checks:
        exact = "==" in check.subject
        if not (exact or check.subject in guards or check.subject.startswith(AGAINST_BASELINE)):
            yield check


def _same(test: KeptTest, check: CheckResult, hosts: Sequence[tuple[str, KeptTest]]) -> Iterator[tuple[str, str]]:
    """What hosts measured of the same metric, under the same workloads."""
    workloads = {one.workload for one in test.measurements}
    for host, other in hosts:
        if other.test == test.test and {one.workload for one in other.measurements} == workloads:
            found = _measured(other, check)
            if found is not None:
                yield host, found


def _measured(test: KeptTest, check: CheckResult) -> str | None:
    """As the same demand says it, else one of the same metric, else what the runs give for a claim made since."""
    same = [one for one in test.checks if one.metric == check.metric]
    if same:
        return min(same, key=lambda one: one.subject != check.subject).measured
    claimed = CLAIM.fullmatch(check.metric)
    if claimed is None:
        return None
    above, below = (
        next((m.judged(metric) for m in test.measurements if m.side == side), None)
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
    ratios = [_ratio(row.predicted.measured, value) for _, value in row.measured]
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios if ratio is not None)
    return f"| `{name}` | `{row.demand}` | {_told(row.predicted)} | {measured} | {shown} |"


def _told(check: CheckResult) -> str:
    """A verdict other than PASS is part of the prediction."""
    return check.measured if check.verdict.value == "PASS" else f"{check.measured}, {check.verdict.value}"


def _ratio(predicted: str, measured: str) -> float | None:
    """Of two numbers with the same unit."""
    one, other = NUMBER.match(predicted), NUMBER.match(measured)
    if one is None or other is None or one[2] != other[2] or not float(other[1]):
        return None
    return float(one[1]) / float(other[1])


if __name__ == "__main__":
    sys.exit(main())
