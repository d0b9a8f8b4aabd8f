"""Faults 47-49: clocks that jump, processes that stand still, time zones."""

import random
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_llmperf import Perf, Verdict, closed, random_tokens, vllm
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import Hardware

STUB = Path(__file__).parents[1] / "stubs" / "engine.py"


@pytest.mark.parametrize("hours", [1, -1])
def test_wall_clock_jump_does_not_change_durations(tmp_path, monkeypatch, hours):
    """Fault 47: durations come from the monotonic clock; the stamp's doubtfulness is in the record."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of the machine of its own
    calls = 0

    def now():
        nonlocal calls
        calls += 1
        return datetime.now(UTC) + calls * timedelta(hours=hours)

    settings = Settings(
        engines=MappingProxyType({"vllm": f"{sys.executable} {STUB}"}),
        send_delay_p99_limit_ms=5000.0,
        stamp_error_p99_limit_ms=5000.0,
        clock_gap_limit_ms=60_000.0,
    )
    session = PerfSession(settings, tmp_path, Hardware(), lambda _line: None, now=now, rng=random.Random())
    try:
        perf = Perf(begin_execution(session, "test", "cpu"))
        began_ns = time.monotonic_ns()
        workload = random_tokens(input=8, output=20, arrivals=closed(2), requests=12)
        measurement = perf.measure(vllm("tiny", env={"STUB_ITL_S": "0.002"}), workload, runs=1)
        took_ms = (time.monotonic_ns() - began_ns) / 1e6
        (result,) = perf.check(measurement, "error_rate == 0")
    finally:
        session.close()
    (run,) = measurement.runs
    assert result.verdict is Verdict.PASS
    assert 19 * 2 <= run.metrics.value("e2el_p50") <= took_ms
    assert run.wall_clock_jump_ms == pytest.approx(hours * 3_600_000, abs=60_000)


LOAD_PROCESSES = """
import threading
from contextlib import suppress
from pathlib import Path

def load_processes():
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()) and b"load.worker" in command:
                yield int(entry.name)

def has_recorded(pid):
    with suppress(OSError):
        files = Path(f"/proc/{pid}/fd").iterdir()
        return any(os.readlink(file).endswith("/recording") and file.stat().st_size for file in files)

def stop_next(for_s, which):
    # Stops the load process that records next, or another process, for some seconds.
    gone = set(load_processes())  # or about to be: an earlier run's
    def stop():
        # A busy machine may take seconds to start it; what stops before it sends is no gap.
        while not (sending := [pid for pid in load_processes() if pid not in gone and has_recorded(pid)]):
            time.sleep(0.05)
        pid = which(sending[0])
        os.system(f"(kill -STOP {pid}; sleep {for_s}; kill -CONT {pid}) &")
    threading.Thread(target=stop, daemon=True).start()  # where the process never comes, the test ends all the same
"""
STOPPED = LOAD_PROCESSES + """
@pytest.mark.engine(stub("", STUB_ITL_S="0.015"))
def test_x(engine, perf):
    perf.measure(engine, FEW, runs=1)  # warm from here on
    stop_next(FOR_S, lambda load_process: WHICH)
    longer = random_tokens(input=8, output=20, arrivals=closed(2), requests=40)
    engine._handle.warmed_for.add(str(longer))
    perf.check(perf.measure(engine, longer, runs=1), "error_rate == 0")
"""


def test_stopped_load_process_makes_test_an_error(suite):
    """Fault 48: a suspended machine or a starved process; its run is discarded."""
    suite.settings(clock_gap_limit_ms=1000)
    result, junit = suite.run(STOPPED.replace("FOR_S", "2").replace("WHICH", "load_process"))
    assert result.ret == 10
    (error,) = junit.iter("error")
    assert "the load process did not run for " in error.text
    suite.nothing_left()


def test_stopped_pytest_process_does_not_disturb_load(suite):
    """Fault 48: a separate load process sends the requests, so a stopped pytest process does not delay the load."""
    suite.settings(clock_gap_limit_ms=4500)
    result, _ = suite.run(STOPPED.replace("FOR_S", "5").replace("WHICH", "os.getpid()"))
    result.assert_outcomes(passed=1)


def test_times_are_utc_whatever_the_time_zone(suite, monkeypatch):
    """Fault 49."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    began = datetime.now(UTC).replace(microsecond=0)
    result, _ = suite.run(
        "@pytest.mark.engine(stub())\n"
        "def test_x(engine, perf):\n"
        "    assert time.localtime().tm_gmtoff == 20700\n"
        "    perf.check(perf.measure(engine, FEW, runs=1), 'error_rate == 0')\n"
    )
    result.assert_outcomes(passed=1)
    stamp = suite.run_files()["test_x"]["measurements"][0]["runs"][0]["started_at"]
    assert stamp.endswith("+00:00")
    assert began <= datetime.fromisoformat(stamp) <= datetime.now(UTC)
    (folder,) = suite.folder.glob(".llmperf/runs/*")
    named = datetime.strptime(folder.name.split("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert began <= named <= datetime.now(UTC)
