"""What a session found, on one screen: a verdict per test with the number that decided it, then what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.report.next_steps import Invocation, next_steps
from pytest_llmperf.results.ended_test import GOOD, EndedTest, Remedy, counts, short_id
from pytest_llmperf.results.sentences import cause_text, reason_text

MOST_LINES = 10  # of tests: with the next steps and pytest's own last lines that still fits 24
MOST_ALONE = 18  # where there is nothing to do next
MOST_BUILDS = 2
INDENT = 4


def summary(ended: Sequence[EndedTest], invocation: Invocation, width: int, *, every: bool = False) -> list[str]:
    """The lines of the summary; none if no performance test ran.

    Args:
        invocation: how they were run, for the commands that go on.
        width: of the terminal, in columns; commands are never cut.
        every: show each test, however many there are.
    """
    if not ended:
        return []
    ordered = sorted(ended, key=lambda test: -test.severity)
    steps = list(dict.fromkeys(next_steps(ordered, invocation)))
    listed = ordered
    if not every and len(ordered) > (MOST_LINES if steps else MOST_ALONE):
        listed = [test for test in ordered if test.outcome not in GOOD][: MOST_LINES - 1]
    column = max(len(test.outcome) for test in ordered)
    names = max((len(short_id(test.test)) for test in listed), default=0)
    names = max(1, min(names, width // 2 - column))
    lines = [
        line for test in listed
        for line in _fitted(test, f"{test.outcome:<{column}}  {_name(test.test, names):<{names}}  ", width)
    ]
    if left_out := [test for test in ordered if test not in listed]:
        lines.append(f"{'…':<{column}}  and {counts(left_out)}; each of them with -v")
    lines += [cut(line, width) for line in _builds(ordered)]
    lines += [cut(line, width) for line in _emulated(ordered)]
    lines += [line for text in _decided(ordered) for line in _wrapped(text, width)]
    return [*lines, *(["next:"] if steps else []), *(f"  {step}" for step in steps)]


def _fitted(test: EndedTest, head: str, width: int) -> list[str]:
    """The line of a test. Of an INCONCLUSIVE the whole reason, which ends with what would decide it, on several lines.
    """
    check = test.deciding
    if check is not None and test.outcome == Verdict.INCONCLUSIVE.value:
        text = head + test.decided_by.replace(cause_text(check), reason_text(check))
        return _wrapped(text, width)
    return [cut((head + test.decided_by).rstrip(), width)]


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, width, subsequent_indent=" " * INDENT, break_on_hyphens=False)


def _decided(ended: Sequence[EndedTest]) -> list[str]:
    """The share of the judged tests that are decided, and the step that can decide most of the others; nothing if
    none is open. Of steps that decide equally many tests, the one that takes the least GPU time.
    """
    judged = [test for test in ended if test.verdict in Verdict.__members__ and test.verdict != Verdict.REPORTED.value]
    undecided = [test for test in judged if test.verdict == Verdict.INCONCLUSIVE.value]
    if not undecided:
        return []
    remedies = Counter(test.remedy for test in undecided)
    best = max(Remedy, key=lambda remedy: remedies[remedy])
    step = f"; {best.value} can decide {remedies[best]}" if remedies[best] else ""
    decided = len(judged) - len(undecided)
    return [f"decided: {decided} of {len(judged)} tests ({100 * decided // len(judged)} %){step}"]


def _builds(ended: Sequence[EndedTest]) -> list[str]:
    """What baseline comparisons cross, the most frequent first: "compared with another build or host …"."""
    texts = Counter(test.builds for test in ended if test.builds).most_common(MOST_BUILDS)
    return [f"{count} compared across builds or hosts: {text}" for text, count in texts]


def _emulated(ended: Sequence[EndedTest]) -> list[str]:
    """What emulated verdicts rest on, the most frequent first."""
    counted = Counter(note for test in ended for note in test.emulated).most_common(MOST_BUILDS)
    return [f"{note} ({count} {'test' if count == 1 else 'tests'})" for note, count in counted]


def cut(text: str, width: int) -> str:
    """The text, shortened to at most `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _name(test: str, width: int) -> str:
    """A test's id at most so wide. Its parameters stay, because rows may differ by them alone."""
    function, bracket, parameters = short_id(test).partition("[")
    left = width - len(bracket + parameters)
    return f"{cut(function, left)}{bracket}{parameters}" if left > 1 else cut(f"…{bracket}{parameters}", width)


