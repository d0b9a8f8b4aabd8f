"""Converts verdicts to pytest outcomes: the worst verdict of a test decides the outcome of its call phase."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from pytest_llmperf.errors import InfrastructureError, LlmperfError
from pytest_llmperf.masking import mask
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.plugin.identity import test_id
from pytest_llmperf.plugin.options import mode_of
from pytest_llmperf.plugin.state import STATE
from pytest_llmperf.process.serverlog import plain
from pytest_llmperf.report.junit import properties
from pytest_llmperf.report.table import table
from pytest_llmperf.results.check import CheckResult, verdict_of_test
from pytest_llmperf.results.emulated_ground import notes
from pytest_llmperf.results.ended_test import ExecutionEnding
from pytest_llmperf.session.executions import Execution, history

EXECUTION: pytest.StashKey[Execution] = pytest.StashKey()
ENDING: pytest.StashKey[ExecutionEnding] = pytest.StashKey()  # how the item's newest execution ended
VERDICT = "llmperf.verdict"
TEST = "llmperf.test"
OURS = "llmperf "  # how each of our failures begins
EXIT_ERROR = 10
EXIT_INCONCLUSIVE = 11
EXIT_PASS_AFTER_FAIL = 12
UNKNOWN = ("INCONCLUSIVE", "NO_BASELINE", "INCOMPARABLE")
TIMEOUT = "from pytest-timeout"


@contextmanager
def leave_without_traceback(item: pytest.Item) -> Iterator[None]:
    """Our errors are sentences: show them without forty frames of plugin."""
    try:
        yield
    except LlmperfError as error:
        _fail(item, error, "\n".join([str(error), *getattr(error, "__notes__", ())]))
    except pytest.fail.Exception as error:
        if uses_llmperf(item) and ended_by(error) == "ERROR":
            end(item, "ERROR", error=str(error))
        raise
    except Exception as error:
        if not uses_llmperf(item) or (plugin := socket_blocker(error)) is None:
            raise
        _fail(item, error, f"{plugin} blocks connections of this test to its servers: {error} Allow them. For "
                           "pytest-socket: @pytest.mark.enable_socket, or --allow-hosts=127.0.0.1 for started servers.")


def _fail(item: pytest.Item, error: Exception, message: str) -> NoReturn:
    word, text = ended_by(error), plain(message)
    end(item, word, error=text if word == "ERROR" else f"{word}: {text}")
    raise pytest.fail.Exception(f"{OURS}{word}: {text}", pytrace=False) from None


def ended_by(error: BaseException) -> str:
    if isinstance(error, LlmperfError):
        return "ERROR" if isinstance(error, InfrastructureError) else "USAGE"
    if socket_blocker(error) is not None:
        return "USAGE"
    cut_short = isinstance(error, pytest.fail.Exception) and TIMEOUT in str(error)
    return "ERROR" if cut_short else "failed"  # an interrupted test proves nothing


def socket_blocker(error: BaseException) -> str | None:
    """The distribution that has replaced functions of `socket` and raised this error; None for any other error."""
    replaceable = (socket.socket, socket.socket.connect, socket.getaddrinfo, socket.create_connection)
    packages = {str(getattr(function, "__module__", None)).partition(".")[0] for function in replaceable}
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    raising = str(frames[-1].f_globals.get("__name__")).partition(".")[0] if frames else ""
    return raising.replace("_", "-") if raising in packages - {"socket", "None"} else None


def forget_execution(item: pytest.Item) -> None:
    """A re-run reports only its own results. Reports of earlier executions are neither repeated nor changed."""
    if EXECUTION in item.stash:
        del item.stash[EXECUTION]
    tell(item, ExecutionEnding())


def end(item: pytest.Item, word: str, **changes: Any) -> None:  # noqa: ANN401 - fields of `ExecutionEnding`
    """Note how an item ended, and what its report says of that: figures, where they lie, earlier executions."""
    execution = item.stash.get(EXECUTION, None)
    if execution is None:
        ending = replace(item.stash[ENDING], word=word, **changes)
        tell(item, ending, [(TEST, test_id(item))] if ending.run_file else ())
        return
    ending = execution.end(word, **changes)
    figures = properties(execution.test, execution.measurements, execution.results)
    tell(item, ending, [*figures, *([("llmperf.executions", history(execution))] if execution.number > 1 else [])])


def tell(item: pytest.Item, ending: ExecutionEnding, properties: Iterable[tuple[str, str]] = ()) -> None:
    """Replace what the item's next report says of its end."""
    item.stash[ENDING] = ending
    own = [(name, value) for name, value in item.user_properties if not name.startswith("llmperf")]
    values = {"llmperf.run_file": ending.run_file, "llmperf.earlier": ",".join(ending.earlier),
              VERDICT: ending.verdict or ""}
    item.user_properties[:] = [*own, *properties, *((name, value) for name, value in values.items() if value)]


def first_line(error: BaseException) -> str | None:
    """What a test's own failure says, as pytest's summary has it; None if somebody stopped the session."""
    if isinstance(error, KeyboardInterrupt | pytest.exit.Exception):
        return None
    text = pytest.ExceptionInfo.from_exception(error).exconly(tryshort=True)
    if isinstance(error, LlmperfError | pytest.fail.Exception):
        text = str(error)
    elif isinstance(error, SyntaxError):  # its text begins with the place
        text = text.splitlines()[-1]
    return mask(f"failed: {text}").partition("\n")[0]


def uses_llmperf(item: pytest.Item) -> bool:
    """Whether it has one of our fixtures, or a project's fixture of that name that asks for ours."""
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    last = [(name, definitions[name][-1]) for name in ("engine", "perf") if definitions.get(name)]
    return any(fixture.func.__module__.startswith("pytest_llmperf.") or name in fixture.argnames
               for name, fixture in last)


def earlier_text(execution: Execution) -> str:
    """Lines below the table: how far emulated measurements are from measured ones, and which executions came before."""
    lines = notes(measurement.conditions for measurement in execution.measurements)
    lines += [history(execution)] if execution.number > 1 else []
    return "".join(f"\n  {line}" for line in lines)


def text_of(item: pytest.Item, results: Sequence[CheckResult], earlier: str = "") -> str:
    """The verdict and the table of the checks, followed by `earlier`."""
    return plain(f"{OURS}{verdict_of_test(results).value}: {item.name}\n{table(results)}{earlier}")


def raise_worst(item: pytest.Item, results: Sequence[CheckResult], earlier: str = "") -> None:
    """Raise the pytest outcome of the worst verdict; a green verdict adds its table to the report.

    Args:
        earlier: text below the table, see `earlier_text`.
    """
    verdict, text = verdict_of_test(results), text_of(item, results, earlier)
    if verdict.severity >= Verdict.FAIL.severity or (verdict is Verdict.REPORTED and _fails(item.config, verdict)):
        raise pytest.fail.Exception(text, pytrace=False) from None
    unknown = [
        verdict for verdict in {result.verdict for result in results}
        if verdict in (Verdict.INCONCLUSIVE, Verdict.NO_BASELINE, Verdict.INCOMPARABLE)
        and not _is_fixed_by_update(item.config, verdict)
    ]
    if unknown:
        if any(_fails(item.config, verdict) for verdict in unknown):
            raise pytest.fail.Exception(text, pytrace=False) from None
        raise pytest.skip.Exception(text, _use_item_location=True) from None
    item.add_report_section("call", "llmperf", text)


def _is_fixed_by_update(config: pytest.Config, verdict: Verdict) -> bool:
    """A baseline that is not there, or not for these conditions, is about to be made."""
    made_by = {"NO_BASELINE": ("all", "new"), "INCOMPARABLE": ("all",)}
    return mode_of(config) in made_by.get(verdict.value, ())


def _fails(config: pytest.Config, verdict: Verdict) -> bool:
    """Whether a verdict that knows nothing is a failure to pytest."""
    if verdict.value == "REPORTED":
        return bool(config.getoption("--llmperf-unchecked") == "fail")
    if verdict.value == "INCONCLUSIVE":
        return bool(config.getoption("--llmperf-inconclusive") == "fail")
    policy = config.getoption("--llmperf-missing-baseline")
    return bool(policy == "fail" if policy else os.environ.get("CI"))


def ending_of(report: pytest.TestReport | pytest.CollectReport) -> ExecutionEnding:
    """What a report says of the end of its test; empty for tests of others and for a worker that crashed."""
    return ExecutionEnding(**getattr(report, "llmperf", {}))


def first_line_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of a failure. With xdist pytest puts a line before it that names the worker."""
    lines = report.longreprtext.strip().splitlines()
    return next(iter(lines[1:] if hasattr(report, "node") else lines), "")


def reason_of_skip(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, without the place of the skip."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    expected = getattr(report, "wasxfail", None)
    if expected is not None:
        return f"xfailed: {expected.removeprefix('reason: ')}".rstrip(": ")
    return reason.removeprefix("Skipped: ").partition("\n")[0]


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """ERROR has a word of its own (pytest then prints "ERROR at call of …"), what stayed open a letter."""
    ending = ending_of(report)
    if ending.excuse and report.skipped:
        word = ending.excuse.partition(" ")[0]
        return word.lower(), word[0].lower(), word
    verdict = ending.verdict if report.when == "call" else None
    if verdict == "ERROR" and report.failed:
        return "error", "E", "ERROR"
    if verdict in UNKNOWN and report.skipped:
        return "skipped", "i", "SKIPPED"  # the reason says which; pytest gives all skips the word of the first
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """1 FAIL · 10 ERROR · 11 nothing worse than INCONCLUSIVE · 12 a pass only after a fail."""
    state = session.config.stash.get(STATE, None)
    if state is None or hasattr(session.config, "workerinput"):
        return
    verdicts = set(state.verdicts.values())
    hidden = session.exitstatus == pytest.ExitCode.OK or (
        session.exitstatus == pytest.ExitCode.INTERRUPTED and state.exited
    )
    if hidden and state.failed:  # pytest.exit(returncode=0) after a failure
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    failed = session.exitstatus == pytest.ExitCode.TESTS_FAILED
    if (failed and not state.plain_failures and "ERROR" in verdicts) or (
        session.exitstatus == pytest.ExitCode.OK and state.unended
    ):
        session.exitstatus = EXIT_ERROR
    elif session.exitstatus == pytest.ExitCode.OK and state.failed_first:
        session.exitstatus = EXIT_PASS_AFTER_FAIL
    elif session.exitstatus == pytest.ExitCode.OK and state.left_open:
        session.exitstatus = EXIT_INCONCLUSIVE
