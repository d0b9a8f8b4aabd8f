"""Acknowledged regressions: a reviewed file beside the baselines. They stay visible and do not gate until a day."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from pytest_llmperf.errors import UsageError, on_one_line
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.ended_test import GOOD
from pytest_llmperf.results.strict_json import Node, read_list

FILE = "acknowledged.json"
SCHEMA = 1
REPAIR = "Take it from git again (git checkout -- FILE), or write the entry anew: llmperf acknowledge TEST METRIC."
FIELDS = ("test", "metric", "kind", "until", "reason", "seen")


@dataclass(frozen=True, slots=True, order=True)
class Acknowledged:
    """One acknowledged regression.

    Args:
        test: its id.
        metric: as the check names the metric.
        kind: hardware kind, as in the name of a folder of baselines.
        until: last day on which the regression does not gate, ISO 8601.
        reason: of the person who acknowledged it.
        seen: the change as it was, for the review.
    """

    test: str
    metric: str
    kind: str
    until: str
    reason: str
    seen: str


def read_acknowledged(folder: Path) -> list[Acknowledged]:
    """The acknowledged regressions, sorted; none without a file.

    Args:
        folder: of all baselines.

    Raises:
        BaselineError: the file is invalid.
        UsageError: the file cannot be read.
    """
    return sorted(map(_entry, read_list(folder / FILE, SCHEMA, "acknowledged", REPAIR)))


def _entry(node: Node) -> Acknowledged:
    fields = node.fields(FIELDS)
    try:
        date.fromisoformat(fields["until"].text())
    except ValueError:
        fields["until"].refuse(f"{fields['until'].value!r} is no day, such as 2026-12-31")
    return Acknowledged(**{name: on_one_line(fields[name].text()) for name in FIELDS})


def add_acknowledged(folder: Path, entry: Acknowledged) -> Path:
    """Write an entry, in the place of an older entry for the same test, metric and kind.

    Raises:
        BaselineError: the file is invalid, and stays as it is.
        UsageError: the file cannot be written.
    """
    others = [each for each in read_acknowledged(folder)
              if (each.test, each.metric, each.kind) != (entry.test, entry.metric, entry.kind)]
    content = {"schema": SCHEMA, "acknowledged": [asdict(each) for each in sorted([*others, entry])]}
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}.") from error
    return path


def excuse_for(
    entries: Sequence[Acknowledged], test: str, kinds: Collection[str], checks: Sequence[CheckResult], today: date
) -> str:
    """Why a failing test does not gate, as `EndedTest.excuse` has it; "" if nothing is acknowledged.

    An excuse needs an entry for each check that makes the test red. The first day on which one of these entries has
    expired ends the excuse, and a note remains.

    Args:
        kinds: hardware kinds that the test has measured on.
        checks: of the test.
        today: decides which entries hold.
    """
    red = [check for check in checks if check.verdict.value not in (*GOOD, "INCONCLUSIVE")]
    here = [entry for entry in entries if entry.test == test and entry.kind in kinds]
    known = [next((entry for entry in here if _is_about(entry, check)), None) for check in red]
    entry = min((each for each in known if each is not None), key=lambda each: date.fromisoformat(each.until),
                default=None)
    if entry is None or None in known or any(check.verdict.value != "FAIL" for check in red):
        return ""
    if today > date.fromisoformat(entry.until):
        return f"was acknowledged until {entry.until}: {entry.reason}"
    return f"ACKNOWLEDGED until {entry.until}: {entry.reason}"


def _is_about(entry: Acknowledged, check: CheckResult) -> bool:
    """Whether an entry names the metric of a check, or the one metric in the ratio that the check is about."""
    return entry.metric == check.metric or set(re.findall(r"\w{2,}", check.metric)) == {entry.metric}
