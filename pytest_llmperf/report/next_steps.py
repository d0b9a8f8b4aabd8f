"""What to do next: commands that can be copied."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.ended_test import EndedTest, short_id

MOST_STEPS = 3  # commands of one kind, and tests named in one command
NEW = "--update-baselines-new"
AGAIN = {
    Verdict.NO_BASELINE.value: NEW,
    Verdict.INCOMPARABLE.value: '--update-baselines --llmperf-accept "REASON"',
    Verdict.IMPROVED.value: "--update-baselines",
}


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
