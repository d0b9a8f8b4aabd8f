"""`outcomes.json` of a run folder: how each performance test of the session ended, also a test without a run file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.results.ended_test import OUTCOMES
from pytest_llmperf.results.strict_json import Node, read_list

FILE = "outcomes.json"
SCHEMA = 1
REPAIR = "Delete it: the run folder is then read without it."


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """How one test ended.

    Args:
        test: its id.
        file: name of its run file below tests/; "" for a test without a run file.
        outcome: one of `OUTCOMES`, without regard to the excuse.
        error: why no check decided; "" where a check decided.
        owner, excuse: as in `results.ended_test.EndedTest`. An empty text is left out of the file.
    """

    test: str
    file: str
    outcome: str
    error: str
    owner: str = ""
    excuse: str = ""


def read_outcomes(folder: Path) -> tuple[RecordedOutcome, ...]:
    """The outcomes that the session recorded at its end; empty for an interrupted session and for older versions.

    Raises:
        BaselineError: the file is invalid.
        UsageError: the file cannot be read.
    """
    return tuple(map(_outcome, read_list(folder / FILE, SCHEMA, "tests", REPAIR)))


def _outcome(node: Node) -> RecordedOutcome:
    required = ("test", "file", "outcome", "error")
    fields = {name: value.text() for name, value in node.fields(required, ("owner", "excuse")).items()}
    if fields["outcome"] not in OUTCOMES:
        node.refuse(f"{fields['outcome']!r} is no outcome")
    return RecordedOutcome(**fields)


def write_outcomes(folder: Path, outcomes: Sequence[RecordedOutcome]) -> None:
    """Record the outcomes of a session. Outcomes of tests that a resumed session did not run again are kept.

    Raises:
        OSError: the file cannot be written.
    """
    now = {outcome.test for outcome in outcomes}
    tests = [{name: text for name, text in asdict(outcome).items() if text or name not in ("owner", "excuse")}
             for outcome in (*_readable(folder, now), *outcomes)]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FILE, f"{json.dumps({'schema': SCHEMA, 'tests': tests}, indent=1)}\n".encode())


def _readable(folder: Path, now: set[str]) -> Iterable[RecordedOutcome]:
    try:
        return [outcome for outcome in read_outcomes(folder) if outcome.test not in now]
    except LlmperfError:
        return []
