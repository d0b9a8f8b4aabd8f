"""Faults during a run (24, 33, 45) through the whole session: an invalid run becomes an ERROR."""

import random
import sys
import tempfile
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_llmperf import Perf, Verdict, closed, random_tokens, vllm
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import ServerDied
from pytest_llmperf.results.causes.runs import TokensMiscounted
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import Hardware

STUB = Path(__file__).parents[1] / "stubs" / "engine.py"
WORKLOAD = random_tokens(input=8, output=20, arrivals=closed(2), requests=12)


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of the machine of its own
    settings = Settings(
        engines=MappingProxyType({"vllm": f"{sys.executable} {STUB}"}),
        ready_timeout_s=120.0,
        stop_grace_s=2.0,
        send_delay_p99_limit_ms=5000.0,  # not the subject here, and these tests share their cores
        stamp_error_p99_limit_ms=5000.0,
        clock_gap_limit_ms=60_000.0,
    )
    made = PerfSession(settings, tmp_path, Hardware(), lambda _line: None, rng=random.Random())
    yield made
    made.close()


def measured(session, mode, **kwargs):
    perf = Perf(begin_execution(session, "test", "cpu"))
    run = perf.measure(vllm("tiny", env={"STUB_MODE": mode}), WORKLOAD, runs=1, **kwargs)
    return perf, run


def test_a_sound_run_passes(session):
    perf, run = measured(session, "")
    (result,) = perf.check(run, "error_rate == 0")
    assert result.verdict is Verdict.PASS, result
    assert len(run.records) == 12
    assert all(record.output_tokens == 20 for record in run.records)


def test_a_server_killed_mid_run_is_named(session):
    with pytest.raises(ServerDied, match=r"died: signal 9 \(SIGKILL\)"):
        measured(session, "dies")


def test_wrong_usage_of_server_makes_measurement_an_error(session):
    perf, run = measured(session, "lies")
    (result,) = perf.check(run, "error_rate == 0")
    assert result.verdict is Verdict.ERROR
    (problem,) = result.problems
    assert problem.fault == TokensMiscounted(240, 480)


def test_missing_counters_are_an_error_only_where_asked_for(session):
    perf, run = measured(session, "no-metrics")
    fine, unavailable = perf.check(run, "error_rate == 0", "preemptions == 0")
    assert fine.verdict is Verdict.PASS
    assert unavailable.verdict is Verdict.ERROR
    assert "preemptions" in reason_text(unavailable)
