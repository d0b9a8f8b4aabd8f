"""What a session found, on one screen: a verdict per test with the number that decided it, then what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pytest_llmperf.report.next_steps import Invocation, next_steps
from pytest_llmperf.results.ended_test import GOOD, EndedTest, counts, short_id

MOST_LINES = 10  # of tests: with the next steps and pytest's own last lines that still fits 24
MOST_ALONE = 18  # where there is nothing to do next
MOST_BUILDS = 2


def summary(ended: Sequence[EndedTest], invocation: Invocation, width: int, *, every: bool = False) -> list[str]:
    """The lines of the summary; none where no performance test ran.

    Args:
        invocation: how they were run, for the commands that go on.
        width: of the terminal, in columns; commands are never cut.
        every: show each test, however many there are.
    """
    if not ended:
        return []
    ordered = sorted(ended, key=lambda test: -test.severity)
    steps = list(dict.fromkeys(next_steps(ordered, invocation)))
    listed = ordered if every or len(ordered) <= (MOST_LINES if steps else MOST_ALONE) else _folded(ordered)
    column = max(len(test.outcome) for test in ordered)
    names = max((len(short_id(test.test)) for test in listed), default=0)
    names = max(1, min(names, width // 2 - column))
    lines = [
        cut(f"{test.outcome:<{column}}  {_name(test.test, names):<{names}}  {test.decided_by}".rstrip(), width)
        for test in listed
    ]
    if left_out := [test for test in ordered if test not in listed]:
        lines.append(f"{'…':<{column}}  and {counts(left_out)}; each of them with -v")
    lines += [cut(line, width) for line in _builds(ordered)]
    return [*lines, *(["next:"] if steps else []), *(f"  {step}" for step in steps)]


def _builds(ended: Sequence[EndedTest]) -> list[str]:
    """What baseline comparisons cross, the most frequent first: "compared with another build or host …"."""
    texts = Counter(test.builds for test in ended if test.builds).most_common(MOST_BUILDS)
    return [f"{count} compared across builds or hosts: {text}" for text, count in texts]


def cut(text: str, width: int) -> str:
    """At most so wide."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _name(test: str, width: int) -> str:
    """A test's id at most so wide. Its parameters stay, because rows may differ by them alone."""
    function, bracket, parameters = short_id(test).partition("[")
    left = width - len(bracket + parameters)
    return f"{cut(function, left)}{bracket}{parameters}" if left > 1 else cut(f"…{bracket}{parameters}", width)


def _folded(ordered: Sequence[EndedTest]) -> list[EndedTest]:
    """What is not good, as far as it fits."""
    return [test for test in ordered if test.outcome not in GOOD][: MOST_LINES - 1]
