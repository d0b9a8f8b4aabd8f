"""What to do next: commands that can be copied."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.report.ended import Ended, short

MOST_STEPS = 3  # of one kind
NEW = "--update-baselines-new"
AGAIN = {
    Verdict.NO_BASELINE.value: NEW,
    Verdict.INCOMPARABLE.value: '--update-baselines --accept "REASON"',
    Verdict.INCONCLUSIVE.value: "",
    Verdict.IMPROVED.value: "--update-baselines",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """How the tests were run.

    Args:
        options: what a pytest command must repeat to run the same tests in the same way.
        virtual: in virtual time, where another run says the same.
        planted: with a flag planted: nothing of it becomes a baseline.
        updated: verdicts whose update this session has asked for: what it did not store it would refuse again.
    """

    options: tuple[str, ...] = ()
    virtual: bool = False
    planted: bool = False
    updated: frozenset[str] = frozenset()


def next_steps(ended: Iterable[Ended], asked: Asked) -> Iterator[str]:
    """The command for each thing that is open, in their order; one for all tests that need the same."""
    by_verdict: dict[str, list[Ended]] = {}
    for one in ended:
        by_verdict.setdefault(one.verdict, []).append(one)
    for verdict, tests in by_verdict.items():
        yield from _bounded(_steps(verdict, tests, asked))
    folders = dict.fromkeys(one.stored for tests in by_verdict.values() for one in tests if one.stored)
    yield from (shlex.join(("git", "add", folder)) for folder in folders)


def _steps(verdict: str, tests: Sequence[Ended], asked: Asked) -> list[str]:
    if verdict == Verdict.ERROR.value:
        return [f"less {shlex.quote(log)}" for log in dict.fromkeys(one.log for one in tests) if log]
    if verdict == Verdict.FAIL.value or (verdict == Verdict.INCONCLUSIVE.value and asked.virtual):
        return _shows(tests)
    if verdict not in AGAIN or asked.planted:
        return []
    left = [one for one in tests if not one.stored]
    refused = [one for one in left if _refused(one, asked)]
    again = [one for one in left if one not in refused]
    if AGAIN[verdict] == NEW and (folders := dict.fromkeys(one.run for one in again if one.run)):
        taken = shlex.join(("llmperf", "baselines", "take", *folders, "--new"))  # it is measured: not a second time
        return [taken, *_shows(refused)]
    return [*([_pytest(again, asked.options, AGAIN[verdict])] if again else []), *_shows(refused)]


def _refused(one: Ended, asked: Asked) -> bool:
    """Whether the update that its verdict calls for takes nothing in as things are."""
    return one.verdict in asked.updated or (one.verdict == Verdict.NO_BASELINE.value and one.left_open)


def _shows(tests: Sequence[Ended]) -> list[str]:
    shown = (shlex.join(("llmperf", "show", one.run, short(one.test))) for one in tests if one.run)
    return list(dict.fromkeys(shown))  # copies that repeat a test are one


def _pytest(tests: Sequence[Ended], options: Sequence[str], more: str) -> str:
    nodes = list(dict.fromkeys(shlex.quote(one.test) for one in tests))
    if len(nodes) > MOST_STEPS:
        nodes = list(dict.fromkeys(shlex.quote(one.test.partition("::")[0]) for one in tests))
    words = ["pytest", *nodes, *(shlex.quote(option) for option in options)]
    return " ".join([*words, more]).rstrip()


def _bounded(steps: list[str]) -> Iterator[str]:
    yield from steps[:MOST_STEPS]
    if len(steps) > MOST_STEPS:
        yield f"… and {len(steps) - MOST_STEPS} more like this"
