"""A run as the Markdown of a comment: red tests, changes of the build, and the commands that measure again."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from pytest_llmperf.errors import UsageError
from pytest_llmperf.process.serverlog import plain
from pytest_llmperf.report.end_summary import pytest_command
from pytest_llmperf.report.html.overview import deciding_limit_text, headline
from pytest_llmperf.report.html.session_facts import SessionFacts
from pytest_llmperf.report.release import WORDS, Change, ComparedTest, Trend, compare_runs
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import VERSION, kind_of
from pytest_llmperf.results.ended_test import (
    EXPLAINED,
    GOOD,
    WITHOUT_GATE,
    counts,
    excused,
    headroom,
    short_id,
    subject_text,
)
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import read_session
from pytest_llmperf.results.sentences import (
    before_and_after,
    build_change_text,
    change_text,
    defaults_of_versions,
    estimate_text,
    interval_text,
    reason_text,
)

#: A GitHub comment takes 65,536 characters.
MOST_CHARACTERS = 60_000
ROWS = (10_000, 100, 30, 10, 3)
LONGEST_CELL = 300
MOST_UNBROKEN = 30  # characters
MOST_DIFFERENCES = 12
MOST_SHOWN = 3  # tests in the commands
ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "@": "&#64;", "[": "&#91;",
                         "*": "&#42;", "`": "&#96;"})
RULE = (
    "A metric is worse or better if a change beyond its negligible margin is proven, seed by seed, with an error "
    "probability of 1 % for the whole comparison of the two runs. The result is provisional, because each side has a "
    "single session."
)
FAILURE, SUCCESS = "failure", "success"


@dataclass(frozen=True, slots=True)
class CommentedRun:
    """The content of a comment.

    Args:
        name: of the run.
        tests: of the run.
        facts: of its session.
        options: of pytest that select the same tests on the same kind of machine.
        base: name of the run that it is compared with; "" without one.
        compared: every test of both runs; empty without `base`.
        link, report: URLs of the run's page and of its HTML report; "" without a page.
        hosts: of the earlier run and of this run; "" for an unknown host.
    """

    name: str
    tests: Sequence[TestResult]
    facts: SessionFacts = field(default_factory=SessionFacts)
    options: Sequence[str] = ()
    base: str = ""
    compared: Sequence[ComparedTest] = ()
    link: str = ""
    report: str = ""
    hosts: tuple[str, str] = ("", "")

    @property
    def kinds(self) -> str:
        """The hardware kinds of the run: "h200". Runs of other kinds have comments of their own."""
        return "+".join(sorted(_kinds(self.tests))) or "nothing measured"

    @property
    def marker(self) -> str:
        """First line of the comment, by which the next push finds the comment."""
        return f"<!-- llmperf comment: {self.kinds} -->"

    @property
    def status(self) -> tuple[str, str]:
        """State and description of the status check: a failure if a test of the run or a proven change is red."""
        worse = sum(map(_is_red, self.compared))
        red = worse or any(test.outcome not in WITHOUT_GATE for test in self.tests)
        against = f"; {worse} worse than {self.base}" if self.base else ""
        return FAILURE if red else SUCCESS, f"{counts(test.ending for test in self.tests)}{against}".replace("_", " ")


@dataclass(frozen=True, slots=True)
class _Block:
    """The rows of one test.

    Args:
        verdict, test, reason: of the first row.
        rows: metric, values, change and limit.
        rank: sorts the blocks, worst first; begins with 0 for a red test.
        good: whether the block may be folded.
    """

    verdict: str
    test: str
    reason: str
    rows: Sequence[tuple[str, str, str, str]]
    rank: tuple[float, ...]
    good: bool


def compared_with(run: CommentedRun, base: str, tests: Sequence[TestResult]) -> CommentedRun:
    """The run beside an earlier one.

    Args:
        base: name of the earlier run.
        tests: of the earlier run.

    Raises:
        UsageError: the runs have no hardware kind in common.
    """
    kinds, others = _kinds(run.tests), _kinds(tests)
    if kinds and others and not kinds & others:
        raise UsageError(f"{run.name} was measured on {run.kinds} and {base} on {'+'.join(sorted(others))}, and only "
                         f"runs of one hardware kind are compared. Name a run on {run.kinds}.")
    return replace(run, base=base, compared=compare_runs(tests, run.tests), hosts=(_hosts(tests), _hosts(run.tests)))


def _kinds(tests: Sequence[TestResult]) -> set[str]:
    return {kind_of(measurement.conditions) for test in tests for measurement in test.measurements}


def _hosts(tests: Sequence[TestResult]) -> str:
    sessions = (read_session(folder) for folder in {test.folder for test in tests if test.folder is not None})
    return " and ".join(sorted({str(session["host"]) for session in sessions if session.get("host")}))


def comment(run: CommentedRun) -> str:
    """The Markdown. If the text exceeds what GitHub takes, tables lose rows and state the number of lost tests."""
    import jinja2

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"cell": cell, "code": code}
    blocks, trends = sorted(_blocks(run), key=lambda block: block.rank), Counter(each.trend for each in run.compared)
    differing, compares = _build_changes(run)
    template, text = environment.get_template("comment.md.j2"), ""
    for most in ROWS:
        text = template.render(
            run=run, most=most, most_unbroken=MOST_UNBROKEN, rule=RULE, headline=headline(run.tests, run.facts),
            trends=", ".join(f"{trends[trend]} {trend.value}" for trend in Trend if trends[trend]),
            shown=[block for block in blocks if not block.good], folded=[block for block in blocks if block.good],
            differing=differing, compares=compares, commands=_commands(run),
        )
        if len(text) <= MOST_CHARACTERS:
            break
    return text


def cell(text: str) -> str:
    """Text that neither ends a cell nor becomes a tag, a link or a mention."""
    line = " ".join(plain(text).split())
    return (line if len(line) <= LONGEST_CELL else f"{line[:LONGEST_CELL - 1]}…").translate(ESCAPES)


def code(text: str) -> str:
    """A name as it is; GitHub takes the bar's backslash off inside a table."""
    line = " ".join(plain(text).split())[:LONGEST_CELL].replace("`", "'").replace("|", "\\|")
    return f"`{line}`"


def _blocks(run: CommentedRun) -> Iterator[_Block]:
    if not run.base:
        yield from map(_block, run.tests)
        return
    for each in run.compared:
        test = each.after
        if test is None:
            yield _Block("gone", short_id(each.test), each.reason, (), (1, 1), good=False)
            continue
        block, changes = _block(test), sorted(each.changes, key=lambda change: -change.verdict.severity)
        judged = {change.metric for change in changes}
        reason = block.reason or (each.reason if each.trend is Trend.UNKNOWN else "") or "; ".join(each.powers)
        yield _Block(
            f"{block.verdict if each.trend is Trend.NEW else each.verdicts}, {each.trend.value}",
            block.test, reason,
            [*map(_change_row, changes), *(row for row in block.rows if row[0] not in judged and not block.good)],
            (0, 0, *block.rank[2:]) if _is_red(each) else block.rank,
            good=block.good and each.trend in (Trend.STAYED, Trend.NEW),
        )


def _is_red(compared: ComparedTest) -> bool:
    """Whether the change is proven to be for the worse, and nobody has acknowledged it."""
    return compared.trend is Trend.WORSE and (compared.after is None or not excused(compared.after.excuse))


def _change_row(change: Change) -> tuple[str, str, str, str]:
    interval = f" (90 % CI {change.interval})" if change.interval else ""
    text = ", ".join(filter(None, (f"{change.change}{interval}", WORDS.get(change.verdict, ""))))
    before, _, unit = change.before.partition(" ")
    before = before if unit and change.after.endswith(f" {unit}") else change.before
    return change.metric, f"{before} → {change.after}", text, change.limit


def _block(test: TestResult) -> _Block:
    ending, deciding = test.ending, test.ending.deciding
    checks = sorted((check for check in test.checks if check.verdict.value not in GOOD),
                    key=lambda check: (check is not deciding, -check.verdict.severity))
    room = None
    if deciding is not None:
        checks, room = checks or [deciding], headroom(deciding)
    rank = (0 if test.outcome not in WITHOUT_GATE else 1, 1, -ending.severity, -inf if room is None else room)
    reason = ending.error.partition("\n")[0]
    if deciding is not None and deciding.verdict in EXPLAINED:
        reason = reason_text(deciding)
    return _Block(test.outcome, short_id(test.test), "; ".join(filter(None, (*ending.notes, reason))),
                  [_check_row(check, ending.verdict) for check in checks], rank,
                  good=test.outcome in GOOD and test.outcome != "IMPROVED")


def _check_row(check: CheckResult, verdict: str) -> tuple[str, str, str, str]:
    """The row of a check, which names a verdict that is not the verdict of the test."""
    interval, compares = interval_text(check), check.before is not None and check.after is not None
    change = f"{change_text(check)} ({interval})" if compares and interval else interval
    own = "" if check.verdict.value == verdict else check.verdict.value.replace("_", " ")
    return (subject_text(check), before_and_after(check) if compares else estimate_text(check),
            ", ".join(filter(None, (change, own))), deciding_limit_text(check))


def _build_changes(run: CommentedRun) -> tuple[list[str], bool]:
    """What differs from the run before, or from the stored baselines, with what the newer engine sets otherwise; and
    whether anything is compared."""
    if run.base:
        rows = dict.fromkeys(row for each in run.compared for row in each.differing_conditions)
        lines = [f"{code(name)} {cell(was)} → {cell(now)}" for name, was, now in rows]
        further = [cell(text) for text in dict.fromkeys(_of_versions(run.compared)) if text]
        compares = any(each.changes for each in run.compared)
    else:
        checks = [check for test in run.tests for check in test.checks if check.compares_with_baseline]
        lines, further = [cell(text) for text in dict.fromkeys(map(build_change_text, checks)) if text], []
        compares = any(check.estimate is not None for check in checks)
    more = [f"and {len(lines) - MOST_DIFFERENCES} more"] if len(lines) > MOST_DIFFERENCES else []
    return [*lines[:MOST_DIFFERENCES], *more, *further], compares


def _of_versions(compared: Iterable[ComparedTest]) -> Iterator[str]:
    for each in compared:
        for name, was, now in each.differing_conditions:
            if name == VERSION and each.after is not None:
                engine = each.after.measurements[0].conditions.get("engine", "")
                yield "".join(defaults_of_versions(engine, [was, now])).removeprefix("; ")


def _commands(run: CommentedRun) -> list[str]:
    """Commands that measure the red tests again, and that show everything about them; none can end its code block."""
    worse = {each.test for each in run.compared if _is_red(each)}
    red = sorted((test for test in run.tests if test.outcome not in GOOD or test.test in worse),
                 key=lambda test: -test.ending.severity)
    commands = [pytest_command([test.test for test in red], run.options)] if red else []
    commands += [shlex.join(("llmperf", "show", test.folder.name, short_id(test.test)))
                 for test in red[:MOST_SHOWN] if test.folder is not None]
    return [" ".join(plain(command).split()).replace("```", "") for command in commands]


def options_of(session: Mapping[str, object]) -> tuple[str, ...]:
    """The options of pytest that a session's file names."""
    options = session.get("options")
    return tuple(map(str, options)) if isinstance(options, list) else ()
