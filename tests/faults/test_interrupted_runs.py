"""Faults 2, 3, 5, 6: a run that is cut short leaves no process, tears no file, and marks what it kept as partial."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from pytest_llmperf.plugin.outcomes import INTERRUPTED
from pytest_llmperf.report.text import overview
from pytest_llmperf.results.reader import read_run
from tests.faults.conftest import HUNG_S

SUITE = """
@pytest.mark.timeout(0)  # where a run has a time limit, it is the second that it ends
@pytest.mark.engine(stub())
def test_first(engine, perf):
    perf.check(perf.measure(engine, FEW, runs=1), "error_rate == 0")

@pytest.mark.engine(stub({mode!r}, STUB_ITL_S="{itl_s}"))
def test_second(engine, perf):
    perf.check(perf.measure(engine, FEW, runs=1000), "error_rate == 0")
"""
EXITS = """
@pytest.mark.engine(stub())
def test_first(engine, perf):
    perf.check(perf.measure(engine, FEW, runs=1), "error_rate == 0")
    os._exit(0)
"""
FAST, SLOW = "0.002", "0.2"
NOTHING = {"measurements": []}


def second(suite):
    return suite.run_files().get("test_second")


# Moment → mode and speed of the second server, and how the moment shows from outside.
MOMENTS = {
    "start-up": ("never", FAST, lambda suite: list(suite.folder.glob(".llmperf/runs/*/servers/02-*/server.log"))),
    "warm-up": ("", SLOW, second),
    "mid-run": ("", FAST, lambda suite: any(made["runs"] for made in (second(suite) or NOTHING)["measurements"])),
}
MEASURING = pytest.mark.parametrize("moment", MOMENTS)


def thorough(value):
    return pytest.param(value, marks=pytest.mark.thorough)


def at(moment, suite, *args):
    """Starts a pytest run and waits until the run reaches the moment."""
    mode, itl_s, seen = MOMENTS[moment]
    process = suite.start(SUITE.format(mode=mode, itl_s=itl_s), *args)
    suite.until(lambda: seen(suite) or process.poll() is not None)
    assert process.poll() is None, suite.output()
    return process


def assert_first_whole_second_partial(suite, moment):
    run_file = suite.run_files()
    assert run_file["test_first"]["complete"]
    assert run_file["test_first"]["measurements"][0]["complete"]
    assert ("test_second" in run_file) == (moment != "start-up")
    if moment != "start-up":
        assert not run_file["test_second"]["complete"]
        assert not any(measurement["complete"] for measurement in run_file["test_second"]["measurements"])
    if moment == "mid-run":
        assert 0 < len(run_file["test_second"]["measurements"][0]["runs"]) < 1000


@MEASURING
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=lambda signum: signum.name)
def test_signal_ends_session_and_marks_results_as_partial(suite, signum, moment):
    """Faults 2 and 3: both end like Ctrl-C does."""
    process = at(moment, suite)
    os.killpg(process.pid, signum)
    assert process.wait(60) == 2, suite.output()
    suite.teardowns_left_nothing()
    assert "ended without verdict" not in suite.output()
    assert_first_whole_second_partial(suite, moment)
    cases = {case.get("name"): case for case in suite.junit().iter("testcase") if case.get("name")}  # not pytest's stub
    assert cases.keys() == {"test_first", "test_second"}
    assert cases["test_first"].find("error") is None
    assert cases["test_second"].find("error").get("message") == INTERRUPTED
    (run_folder,) = suite.folder.glob(".llmperf/runs/*")
    shown = overview(read_run(run_folder))  # the text of `llmperf show`
    assert re.search(rf"^ERROR +test_it.py::test_second +{INTERRUPTED}$", shown, re.MULTILINE), shown


@pytest.mark.parametrize("signum", [signal.SIGINT, thorough(signal.SIGTERM)], ids=lambda signum: signum.name)
def test_signal_under_xdist_ends_session_and_marks_results_as_partial(suite, signum):
    """The controller gets the signal. The workers and the processes of the workers end with the controller."""
    process = at("mid-run", suite, "-n1")
    process.send_signal(signum)
    assert process.wait(60) == 2, suite.output()
    suite.nothing_left()
    assert_first_whole_second_partial(suite, "mid-run")


def test_watchdog_reports_process_exit_inside_test(suite):
    """pytest prints nothing more, and its exit code is 0."""
    process = suite.start(EXITS)
    assert process.wait(60) == 0
    suite.nothing_left()
    words = f"pytest (pid {process.pid}) ended without verdict"
    suite.until(lambda: words in suite.output())
    (note,) = suite.folder.glob(".llmperf/runs/*/ended_without_verdict.txt")
    assert words in note.read_text()
    assert not suite.run_files()["test_first"]["complete"]


def test_interrupt_at_startup_leaves_no_process_and_no_results(suite):
    """Fault 2, a tenth of a second after the start: before there are handlers."""
    process = suite.start(SUITE.format(mode="", itl_s=FAST))
    time.sleep(0.1)
    while process.poll() is None:  # one that falls into a callback of the import system is lost: Python's own
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
    assert process.returncode != 0
    suite.nothing_left()
    assert not suite.run_files()


@MEASURING
def test_killed_session_leaves_partial_results_and_no_process(suite, moment):
    """Fault 4: the run file itself is marked as partial, because the killed process could print no message."""
    process = at(moment, suite)
    process.kill()
    process.wait()
    suite.nothing_left()
    assert_first_whole_second_partial(suite, moment)


@pytest.mark.parametrize("moment", [thorough("start-up"), thorough("warm-up"), "mid-run"])
def test_timeout_by_signal_makes_test_an_error(suite, moment):
    """Fault 5: an ERROR, wherever it strikes; a timeout says nothing about performance."""
    process = at(moment, suite, "--timeout=600", "--timeout-method=signal")
    process.send_signal(signal.SIGALRM)  # as its timer would
    assert process.wait(60) == 10, suite.output()
    suite.teardowns_left_nothing()
    assert_first_whole_second_partial(suite, moment)
    (error,) = suite.junit().iter("error")
    assert "Timeout" in error.text
    totals = next(suite.junit().iter("testsuite"))
    assert (totals.get("tests"), totals.get("failures")) == ("2", "0")


def test_timeout_of_test_without_measurement_remains_a_failure(suite):
    result, _ = suite.run("def test_x(): time.sleep(30)\n", "--timeout=0.5", "--timeout-method=signal")
    result.assert_outcomes(failed=1)
    assert result.ret == 1


def test_timeout_by_thread_leaves_partial_results_and_no_process(suite):
    """Fault 6: `os._exit` in the midst of it."""
    process = suite.start(SUITE.format(mode="", itl_s=FAST), "--timeout=15", "--timeout-method=thread",
                          "-o", "timeout_func_only=true")  # the time for the start of a server is no part of it
    assert process.wait(HUNG_S) == 1
    suite.nothing_left()
    assert "+ Timeout +" in suite.output()
    assert_first_whole_second_partial(suite, "mid-run")
