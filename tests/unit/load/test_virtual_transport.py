"""Virtual time behind the seams of real time."""

import sys
import threading
from pathlib import Path

import httpx
import pytest

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.engines.control.transports import PipeControl
from pytest_llmperf.errors import EngineError
from pytest_llmperf.load.virtual import VirtualEngine, VirtualTransport
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.piped import PipedProcess

STUB = Path(__file__).parents[2] / "stubs" / "piped_engine.py"
SECOND_NS = 1_000_000_000


@pytest.fixture
def clock():
    clock = VirtualClock()
    clock.sleep_ns(SECOND_NS)  # the session is older than the engine
    return clock


@pytest.fixture
def engine(tmp_path, clock):
    launch = Launch(argv=(sys.executable, str(STUB)), env={}, cwd=tmp_path, run_dir=tmp_path / "run")
    process = PipedProcess(launch, clock)
    process.read()
    yield VirtualEngine(process, clock)
    process.stop(0)


def plan(*requests, **kwargs):
    return LoadPlan("emulated-1", 80, requests, **kwargs)


def test_stamps_lie_on_the_sessions_clock(engine, clock):
    transport = VirtualTransport({"emulated-1": engine})
    replay = transport.replay(plan(PlannedRequest(0, "/v1/completions", b"{}", at_ns=7)), cancel=threading.Event())
    (exchange,) = replay.exchanges
    assert (replay.started_ns, replay.ended_ns) == (SECOND_NS, SECOND_NS + 1000)
    assert exchange.sent_ns == SECOND_NS + 7
    assert exchange.token_ns == (SECOND_NS + 500, SECOND_NS + 1000)
    assert exchange.token_counts == (1, 2)
    assert clock.now_ns() == SECOND_NS + 1000


def test_limits_reach_the_engine(engine):
    transport = VirtualTransport({"emulated-1": engine})
    limits = StreamLimits(idle_ns=0)
    replay = transport.replay(plan(PlannedRequest(0, "/", b"{}"), limits=limits), cancel=threading.Event())
    assert replay.exchanges[0].ending is Ending.IDLE_TIMEOUT


def test_progress_is_reported_once(engine):
    progress_reports = []
    transport = VirtualTransport({"emulated-1": engine})
    transport.replay(plan(PlannedRequest(0, "/", b"{}")), cancel=threading.Event(), progress=progress_reports.append)
    assert [(progress.sent, progress.done, progress.failed) for progress in progress_reports] == [(1, 1, 0)]
    assert (progress_reports[0].ttft_ns, progress_reports[0].itl_ns) == (500, 500)


def test_slept_time_passes_in_virtual_engine(engine, clock):
    clock.sleep_ns(3 * SECOND_NS)
    assert engine.call({"http": {}})["now_ns"] == 3 * SECOND_NS
    assert clock.now_ns() == 4 * SECOND_NS


def test_control_requests_go_through_the_pipe(engine):
    client = httpx.Client(base_url="http://emulated-1", transport=PipeControl(engine))
    request = client.post("/reset?hard=1", content=b"now").json()
    assert request == {"method": "POST", "path": "/reset?hard=1", "body": "now"}


def test_a_replay_that_is_given_up_ends(engine):
    cancel = threading.Event()
    timer = threading.Timer(0.3, cancel.set)
    timer.start()
    with pytest.raises(EngineError, match="signal 9"):
        VirtualTransport({"emulated-1": engine}).replay(plan(PlannedRequest(0, "/", b"hang")), cancel=cancel)
