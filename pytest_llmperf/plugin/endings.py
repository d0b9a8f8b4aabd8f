"""However a test ends, its checks speak: a skip, an xfail or an exit hides neither a FAIL nor a missing check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pytest_llmperf.plugin.identity import test_id
from pytest_llmperf.plugin.shutdown import EXITED
from pytest_llmperf.plugin.verdicts import (
    EVIDENCE,
    EXECUTION,
    HEARD,
    RAISED,
    TEST,
    UNCHECKED,
    USAGE_ERROR,
    VERDICT,
    earlier_text,
    ended_by,
    first_line,
    leave_without_traceback,
    note_end,
    raise_worst,
    report_outcome,
    text_of,
    uses_llmperf,
    withdraw_outcome,
)

if TYPE_CHECKING:
    from pytest_llmperf.session.executions import Execution

SKIPS = (pytest.skip.Exception, pytest.xfail.Exception)
NOTHING_CHECKED = "measured and checked nothing. Add perf.check(run, …), or drop --llmperf-unchecked=fail."


@pytest.hookimpl(wrapper=True, trylast=True)  # within pytest's own wrappers
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the test, then raise the worst verdict that its checks collected."""
    with leave_without_traceback(item):
        try:
            outcome = yield
        except BaseException as ending:
            _conclude_cut_short(item, ending)
            raise
        _conclude(item)
    return outcome


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[
    None, pytest.TestReport, pytest.TestReport
]:
    """An `xfail` marker excuses no test that has measured. Checks and conditions travel to the controller."""
    report = yield
    evidence: dict[str, list[str]] = item.stash.get(EVIDENCE, {})
    test = {TEST: [test_id(item)]} if uses_llmperf(item) else {}
    report.llmperf = {**evidence, **test, **raised_text(call)}  # type: ignore[attr-defined]
    raised = call.excinfo is not None and not isinstance(call.excinfo.value, pytest.xfail.Exception)
    if raised and hasattr(report, "wasxfail") and has_measured(item):
        report.outcome = "failed"
        del report.wasxfail
    return report


def raised_text(call: pytest.CallInfo[None] | None) -> dict[str, list[str]]:
    """What an exception of a test's or file's own says, in one line."""
    error = None if call is None or call.excinfo is None else call.excinfo.value
    if isinstance(error, pytest.Collector.CollectError) and error.__cause__ is not None:
        error = error.__cause__  # pytest's text is a traceback
    line = None if error is None else first_line(error)
    if error is None or line is None:
        return {}
    return {RAISED: [line.removeprefix("failed: ")], **({USAGE_ERROR: ["yes"]} if ended_by(error) == "USAGE" else {})}


@pytest.hookimpl(wrapper=True, trylast=True)  # within pytest's own wrappers
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """What a fixture of the test's own still measures may fail as it may in the test."""
    from pytest_llmperf.errors import InfrastructureError

    try:
        with leave_without_traceback(item):
            return (yield)
    except pytest.fail.Exception:
        if EXECUTION in item.stash:
            with suppress(InfrastructureError):  # a failed write was already reported
                item.stash[EXECUTION].close()  # again: it closed before the fixture that ended so
        raise


def has_measured(item: pytest.Item) -> bool:
    """Whether the item has begun a measurement, or has a result of a check."""
    execution = item.stash.get(EXECUTION, None)
    return execution is not None and bool(execution.series or execution.results)


def conclude_setup(item: pytest.Item, ending: BaseException) -> None:
    """A fixture that measured and checked may skip or exit, too."""
    if has_measured(item) and isinstance(ending, (*SKIPS, pytest.exit.Exception)):
        _conclude_cut_short(item, ending)


def conclude_late(item: pytest.Item) -> None:
    """A fixture's teardown may have checked, too: all checks speak again."""
    heard = item.stash.get(HEARD, None)
    if heard is not None and len(item.stash[EXECUTION].results) > heard:
        withdraw_outcome(item)
        _conclude(item)
    elif UNCHECKED in item.stash:
        withdraw_outcome(item)
        _conclude_unchecked(item, item.stash[EXECUTION], item.stash[UNCHECKED])


def _conclude_cut_short(item: pytest.Item, ending: BaseException) -> None:
    if isinstance(ending, SKIPS):
        how = "skipped" if isinstance(ending, pytest.skip.Exception) else "xfailed"
        _conclude(item, f"{how}: {ending}")
    elif isinstance(ending, pytest.exit.Exception):
        _conclude_exit(item, ending)
    elif isinstance(ending, Exception | SystemExit) and ended_by(ending) == "failed" and _has_failed(item):
        _conclude_failed(item)
    else:
        report_outcome(item, ended_by(ending))
        note_end(item, ended_by(ending), first_line(ending))


def _conclude_exit(item: pytest.Item, ending: BaseException) -> None:
    """The test stops the session. A failure of its checks is reported first, and pytest stops with its exit code."""
    from pytest_llmperf.errors import NotJudged

    try:
        with suppress(pytest.skip.Exception):
            _conclude(item, f"{EXITED}{ending}")
    except (pytest.fail.Exception, NotJudged):
        item.session.shouldfail = f"{EXITED}{ending}"
        raise


def _has_failed(item: pytest.Item) -> bool:
    from pytest_llmperf.model.verdict import Verdict
    from pytest_llmperf.results.check import worst

    return EXECUTION in item.stash and worst(item.stash[EXECUTION].results) is Verdict.FAIL


def _conclude_failed(item: pytest.Item) -> None:
    """A FAIL stands beside the exception of the test's own, which pytest shows."""
    execution = item.stash[EXECUTION]
    execution.complete, execution.error = True, None
    item.stash[HEARD] = len(execution.results)
    report_outcome(item, "FAIL")
    item.user_properties.append((VERDICT, "FAIL"))
    item.add_report_section("call", "llmperf", text_of(item, execution.results, earlier_text(execution)))


def _conclude(item: pytest.Item, left: str = "") -> None:
    """The checks speak. A test without any check is REPORTED or, where it measured, perhaps an ERROR.

    Args:
        left: how the test ended before its last line, e.g. "skipped: no time"; "" where it returned.
    """
    execution = item.stash.get(EXECUTION, None)
    if execution is None:
        if uses_llmperf(item) and not left:  # a test of `engine` alone
            item.user_properties.append((VERDICT, "REPORTED"))
        return
    from pytest_llmperf.results.check import verdict_of_test

    item.stash[HEARD] = len(execution.results)
    if execution.results:
        execution.complete, execution.error = True, None
        report_outcome(item, verdict_of_test(execution.results).value)
        raise_worst(item, execution.results, earlier_text(execution))
    elif left and not execution.series:
        execution.complete, execution.error = False, left
        report_outcome(item, left.partition(":")[0])
    elif left.startswith(EXITED) or not _may_check_late(item):  # after an exit nobody reports
        _conclude_unchecked(item, execution, left)
    else:
        item.stash[UNCHECKED] = left
        execution.complete, execution.error = not left, left or None
        report_outcome(item, left.partition(":")[0] or "REPORTED")


def _conclude_unchecked(item: pytest.Item, execution: Execution, left: str) -> None:
    """No check came, perhaps after a measurement.

    Raises:
        NotJudged: the test measured, and skipped or exited, or contains a check that was not reached.
        pytest.fail.Exception: the test contains no check, and `--llmperf-unchecked=fail` asks for one.
    """
    from pytest_llmperf.session.endings import contains_check, not_judged

    if execution.series and (left or contains_check(_functions(item), item.config.rootpath)):
        report_outcome(item, "ERROR")
        raise not_judged(left)
    execution.complete, execution.error = True, None
    report_outcome(item, "REPORTED")
    item.user_properties.append((VERDICT, "REPORTED"))
    if item.config.getoption("--llmperf-unchecked") == "fail":
        pytest.fail(f"llmperf REPORTED: {item.name} {NOTHING_CHECKED}", pytrace=False)


def _functions(item: pytest.Item) -> Iterator[Callable[..., object]]:
    """The test's own function and those of its fixtures."""
    if isinstance(item, pytest.Function):
        yield item.function
    yield from _fixtures(item)


def _may_check_late(item: pytest.Item) -> bool:
    """Whether a fixture of the project goes on after the test: its teardown may check."""
    from pytest_llmperf.session.endings import in_project

    root = item.config.rootpath
    return any(inspect.isgeneratorfunction(fixture) and in_project(fixture, root) for fixture in _fixtures(item))


def _fixtures(item: pytest.Item) -> Iterator[Callable[..., object]]:
    """The functions behind the item's fixtures."""
    fixture_defs = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    yield from (definition.func for definitions in fixture_defs.values() for definition in definitions)
