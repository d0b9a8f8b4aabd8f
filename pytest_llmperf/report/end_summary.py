"""What a session found, on one screen: a verdict per test with the number that decided it, then what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.ended_test import GOOD, EndedTest, Remedy, counts, short_id
from pytest_llmperf.results.sentences import cause_text, reason_text

MOST_STEPS = 3  # commands of one kind, and tests named in one command
NEW = "--update-baselines-new"
AGAIN = {
    Verdict.NO_BASELINE.value: NEW,
    Verdict.INCOMPARABLE.value: '--update-baselines --llmperf-accept "REASON"',
    Verdict.IMPROVED.value: "--update-baselines",
}
MOST_LINES = 10  # of tests: with the next steps and pytest's own last lines that still fits 24
MOST_ALONE = 18  # where there is nothing to do next
MOST_BUILDS = 2
INDENT = 4


@dataclass(frozen=True, slots=True)
class Invocation:
    """How the tests were run.

    Args:
        options: options that a pytest command must repeat to run the same tests in the same way.
        virtual: whether the session runs in virtual time, in which a repeated run gives the same result.
        extension_limit_s: how long an inconclusive check may measure more runs.
        planted: whether the session plants a flag. Such a session never updates a baseline.
        updated: verdicts whose baselines this session was asked to update. A repeated update would refuse the same
            tests again.
    """

    options: tuple[str, ...] = ()
    virtual: bool = False
    extension_limit_s: float = 0.0
    planted: bool = False
    updated: frozenset[str] = frozenset()


def next_steps(ended: Iterable[EndedTest], invocation: Invocation) -> Iterator[str]:
    """The next command for each verdict, in the order of the tests. Tests that need the same command share one line."""
    by_verdict: dict[str, list[EndedTest]] = {}
    for test in ended:
        if test.outcome == test.verdict or test.stored:  # an excused test asks for nothing
            by_verdict.setdefault(test.verdict, []).append(test)
    for verdict, tests in by_verdict.items():
        yield from _shortened(_steps(verdict, tests, invocation))
    folders = dict.fromkeys(test.stored for tests in by_verdict.values() for test in tests if test.stored)
    yield from (shlex.join(("git", "add", folder)) for folder in folders)


def _steps(verdict: str, tests: Sequence[EndedTest], invocation: Invocation) -> list[str]:
    if verdict == Verdict.ERROR.value:
        return [f"less {shlex.quote(log)}" for log in dict.fromkeys(test.log for test in tests) if log]
    if verdict == Verdict.FAIL.value:
        return _show_commands(tests)
    if verdict == Verdict.INCONCLUSIVE.value:
        return _deciding_commands(tests, invocation)
    if verdict not in AGAIN or invocation.planted:
        return []
    left = [test for test in tests if not test.stored]
    refused = [test for test in left if _refused(test, invocation)]
    again = [test for test in left if test not in refused]
    if AGAIN[verdict] == NEW and (folders := dict.fromkeys(test.run for test in again if test.run)):
        taken = shlex.join(("llmperf", "baselines", "take", *folders, "--new"))  # it is measured: not a second time
        return [taken, *_show_commands(refused)]
    update = [pytest_command([test.test for test in again], invocation.options, AGAIN[verdict])] if again else []
    return [*update, *_show_commands(refused)]


def _deciding_commands(tests: Sequence[EndedTest], invocation: Invocation) -> list[str]:
    """A pytest command with a longer time limit for the tests that ran out of time, and `llmperf show` for each other
    test.

    A repetition with the same time limit would measure as many runs as before and stay INCONCLUSIVE, too. `llmperf
    show` prints the cause and the remedy.
    """
    hurried = [] if invocation.virtual else [test for test in tests if test.ran_out_of_time]
    limit = f"--llmperf-extension-limit={max(60, 2 * invocation.extension_limit_s):g}"
    again = [pytest_command([test.test for test in hurried], invocation.options, limit)] if hurried else []
    return [*again, *_show_commands([test for test in tests if test not in hurried])]


def _refused(test: EndedTest, invocation: Invocation) -> bool:
    """Whether an update of the baseline would refuse the test again."""
    return test.verdict in invocation.updated or (
        test.verdict == Verdict.NO_BASELINE.value and bool(test.undecided_requirements)
    )


def _show_commands(tests: Sequence[EndedTest]) -> list[str]:
    commands = (shlex.join(("llmperf", "show", test.run, short_id(test.test))) for test in tests if test.run)
    return list(dict.fromkeys(commands))  # copies that repeat a test are one


def pytest_command(tests: Sequence[str], options: Sequence[str], more: str = "") -> str:
    """The command that runs these tests. It names the files of the tests if there are many.

    Args:
        tests: ids.
        options: options of pytest, not quoted yet.
        more: further options as typed in a shell.
    """
    nodes = list(dict.fromkeys(map(shlex.quote, tests)))
    if len(nodes) > MOST_STEPS:
        nodes = list(dict.fromkeys(shlex.quote(test.partition("::")[0]) for test in tests))
    words = ["pytest", *nodes, *(shlex.quote(option) for option in options)]
    return " ".join([*words, more]).rstrip()


def _shortened(steps: list[str]) -> Iterator[str]:
    yield from steps[:MOST_STEPS]
    if len(steps) > MOST_STEPS:
        yield f"… and {len(steps) - MOST_STEPS} more like this"


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
