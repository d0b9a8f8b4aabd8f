"""Reports the checks of a test however it ends: a skip, an xfail or an exit hides no FAIL and no missing check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import asdict, replace

import pytest

from pytest_llmperf.errors import InfrastructureError, NotJudged
from pytest_llmperf.masking import mask
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.plugin.excuses import EXCUSES
from pytest_llmperf.plugin.identity import test_id
from pytest_llmperf.plugin.shutdown import EXITED
from pytest_llmperf.plugin.verdicts import (
    ENDING,
    EXECUTION,
    OURS,
    TIMEOUT,
    earlier_text,
    end,
    ended_by,
    first_line,
    first_line_of,
    leave_without_traceback,
    raise_worst,
    text_of,
    uses_llmperf,
)
from pytest_llmperf.results.check import verdict_of_test, worst
from pytest_llmperf.results.ended_test import ExecutionEnding
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.unchecked import contains_check, in_project, not_judged

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
    """Report a test that has measured as failed despite `xfail`, and attach its ending for the xdist controller."""
    report = yield
    raised = call.excinfo is not None and not isinstance(call.excinfo.value, pytest.xfail.Exception)
    if raised and hasattr(report, "wasxfail") and has_measured(item):
        report.outcome = "failed"
        del report.wasxfail
    ending = replace(item.stash.get(ENDING, ExecutionEnding()), test=test_id(item) if uses_llmperf(item) else "")
    undecided = _undecided(report, call, ending)
    resumed: pytest.Item = getattr(item, "resumed", item)
    if uses_llmperf(resumed):
        owner, excuse = item.config.stash[EXCUSES].apply(resumed, report, ending)
        ending = replace(ending, owner=owner, excuse=excuse)
        if ENDING in item.stash:  # the teardown reports the same
            item.stash[ENDING] = replace(item.stash[ENDING], owner=owner, excuse=excuse)
    undecided = undecided or _undecided(report, call, ending)
    report.llmperf = asdict(replace(ending, undecided=undecided))  # type: ignore[attr-defined]
    return report


def _undecided(
    report: pytest.TestReport, call: pytest.CallInfo[None], ending: ExecutionEnding
) -> tuple[str, str] | None:
    """Outcome and reason of a failed phase that no check decided; None for any other phase."""
    if not report.failed:
        return None
    error = None if call.excinfo is None else call.excinfo.value
    if isinstance(error, pytest.fail.Exception) and str(error).startswith(OURS):
        return None if ending.error is None or ending.verdict is None else (
            ending.verdict, str(error).removeprefix(f"{OURS}{ending.verdict}: "))
    if error is None or isinstance(report.longrepr, str):  # a strict xfail that passed; an expired quarantine
        return "FAILED", mask(first_line_of(report))
    if ending.test and TIMEOUT in str(error):
        return "ERROR", raised_text(error)[1]
    outcome, text = raised_text(error)
    return outcome, text if report.when == "call" else f"in {report.when}: {text}"


def raised_text(error: BaseException) -> tuple[str, str]:
    """Outcome of an exception of a test's or file's own, and what the exception says in one line."""
    if isinstance(error, pytest.Collector.CollectError) and error.__cause__ is not None:
        error = error.__cause__  # pytest's text is a traceback
    return "USAGE" if ended_by(error) == "USAGE" else "FAILED", (first_line(error) or "").removeprefix("failed: ")


@pytest.hookimpl(wrapper=True, trylast=True)  # within pytest's own wrappers
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Run the teardown. If it ends as a failed check does, write the results of the test again."""
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
    """Conclude a test whose fixture has measured and then skips or exits during setup."""
    if has_measured(item) and isinstance(ending, (*SKIPS, pytest.exit.Exception)):
        _conclude_cut_short(item, ending)


def conclude_late(item: pytest.Item) -> None:
    """Conclude a test after its teardown, if a fixture's teardown has checked, or was expected to check and has not."""
    execution, ending = item.stash[EXECUTION], item.stash[ENDING]
    cut_short = not ending.complete and ending.word in (None, "failed", "ERROR", "USAGE")
    if not cut_short and len(execution.results) > len(ending.checks):
        _conclude(item)
    elif ending.unchecked is not None:
        _conclude_unchecked(item, execution, ending.unchecked)


def _conclude_cut_short(item: pytest.Item, ending: BaseException) -> None:
    if isinstance(ending, SKIPS):
        how = "skipped" if isinstance(ending, pytest.skip.Exception) else "xfailed"
        _conclude(item, f"{how}: {ending}")
    elif isinstance(ending, pytest.exit.Exception):
        _conclude_exit(item, ending)
    elif isinstance(ending, Exception | SystemExit) and ended_by(ending) == "failed" and _has_failed(item):
        _conclude_failed(item)
    elif EXECUTION in item.stash:
        end(item, ended_by(ending), error=first_line(ending))


def _conclude_exit(item: pytest.Item, ending: BaseException) -> None:
    """The test stops the session. A failure of its checks is reported first, and pytest stops with its exit code."""
    try:
        with suppress(pytest.skip.Exception):
            _conclude(item, f"{EXITED}{ending}")
    except (pytest.fail.Exception, NotJudged):
        item.session.shouldfail = f"{EXITED}{ending}"
        raise


def _has_failed(item: pytest.Item) -> bool:
    return EXECUTION in item.stash and worst(item.stash[EXECUTION].results) is Verdict.FAIL


def _conclude_failed(item: pytest.Item) -> None:
    """End the test as FAIL. pytest shows the exception of the test itself; the report gets the checks as a section."""
    execution = item.stash[EXECUTION]
    end(item, "FAIL", complete=True)
    item.add_report_section("call", "llmperf", text_of(item, execution.results, earlier_text(execution)))


def _conclude(item: pytest.Item, left: str = "") -> None:
    """Raise the worst verdict of the checks. A test without any check is REPORTED or, if it measured, perhaps an ERROR.

    Args:
        left: how the test ended before its last line, e.g. "skipped: no time"; "" if the test returned.
    """
    execution = item.stash.get(EXECUTION, None)
    if execution is None:
        if uses_llmperf(item) and not left:  # a test of `engine` alone
            end(item, "REPORTED")
        return
    how = left.partition(":")[0]
    if execution.results:
        end(item, verdict_of_test(execution.results).value, error=None, complete=True, unchecked=None)
        raise_worst(item, execution.results, earlier_text(execution))
    elif left and not execution.series:
        end(item, how, error=left)
    elif left.startswith(EXITED) or not _may_check_late(item):  # after an exit nobody reports
        _conclude_unchecked(item, execution, left)
    else:
        end(item, how or "REPORTED", error=left or None, complete=not left, unchecked=left)


def _conclude_unchecked(item: pytest.Item, execution: Execution, left: str) -> None:
    """Conclude a test without any check; it may have measured.

    Raises:
        NotJudged: the test measured, and skipped or exited, or contains a check that was not reached.
        pytest.fail.Exception: the test contains no check, and `--llmperf-unchecked=fail` asks for one.
    """
    if execution.series and (left or contains_check(_functions(item))):
        end(item, "ERROR", unchecked=None)
        raise not_judged(left)
    end(item, "REPORTED", error=None, complete=True, unchecked=None)
    if item.config.getoption("--llmperf-unchecked") == "fail":
        pytest.fail(f"llmperf REPORTED: {item.name} {NOTHING_CHECKED}", pytrace=False)


def _functions(item: pytest.Item) -> Iterator[Callable[..., object]]:
    """The test's own function and those of its fixtures."""
    if isinstance(item, pytest.Function):
        yield item.function
    yield from _fixtures(item)


def _may_check_late(item: pytest.Item) -> bool:
    """Whether a fixture of the project has a teardown, which may still check."""
    return any(inspect.isgeneratorfunction(fixture) and in_project(fixture) for fixture in _fixtures(item))


def _fixtures(item: pytest.Item) -> Iterator[Callable[..., object]]:
    """The functions behind the item's fixtures."""
    fixture_defs = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    yield from (definition.func for definitions in fixture_defs.values() for definition in definitions)
