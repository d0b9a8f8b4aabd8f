"""Emulated engines in this process, behind the seams of real time."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.engines.control.transports import VirtualControl
from pytest_llmperf.errors import EngineError, ExitedEarly, LoadError
from pytest_llmperf.load.virtual import VirtualEngine, VirtualTransport
from pytest_llmperf.load.virtual_client import Client
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.process.launch import Launch

SECOND_NS = 1_000_000_000
WORDS = ("--hardware", "h200", "--noise", "none", "--", "serve", "tiny", "--max-model-len", "4096")
BODY = json.dumps({"prompt": [1, 2, 3], "max_tokens": 4, "stream": True}).encode()


@pytest.fixture
def clock():
    clock = VirtualClock()
    clock.sleep_ns(SECOND_NS)  # the session is older than the engine
    return clock


@pytest.fixture
def launch(tmp_path):
    return Launch(argv=("emulator", *WORDS), env={"TOKEN": "hush-hush"}, cwd=tmp_path, run_dir=tmp_path / "run")


@pytest.fixture
def engine(launch, clock):
    return VirtualEngine("vllm", launch, WORDS, clock)


def replay(engine, *requests, cancel=None, progress=None, **kwargs):
    plan = LoadPlan("emulated-1", 80, requests, **kwargs)
    transport = VirtualTransport({"emulated-1": engine})
    return transport.replay(plan, cancel=cancel or threading.Event(), progress=progress)


def test_stamps_lie_on_the_sessions_clock(engine, clock):
    replayed = replay(engine, PlannedRequest(0, "/v1/completions", BODY, at_ns=7))
    (exchange,) = replayed.exchanges
    assert (replayed.started_ns, replayed.ended_ns) == (SECOND_NS, exchange.ended_ns)
    assert exchange.sent_ns == SECOND_NS + 7
    assert exchange.token_counts == (1,) * 4
    assert exchange.sent_ns < exchange.token_ns[0] < exchange.token_ns[-1] == exchange.ended_ns
    assert clock.now_ns() == exchange.ended_ns


def test_limits_reach_the_engine(engine):
    replayed = replay(engine, PlannedRequest(0, "/v1/completions", BODY), limits=StreamLimits(idle_ns=0))
    assert replayed.exchanges[0].ending is Ending.IDLE_TIMEOUT


def test_progress_is_reported_once(engine):
    reports = []
    (exchange,) = replay(engine, PlannedRequest(0, "/v1/completions", BODY), progress=reports.append).exchanges
    assert [(progress.sent, progress.done, progress.failed) for progress in reports] == [(1, 1, 0)]
    assert reports[0].ttft_ns == exchange.token_ns[0] - exchange.intended_ns


def test_slept_time_passes_in_virtual_engine(engine, clock):
    clock.sleep_ns(3 * SECOND_NS)
    assert engine.answer("GET", "/health", b"").status == 200
    assert clock.now_ns() == 4 * SECOND_NS
    assert replay(engine, PlannedRequest(0, "/v1/completions", BODY)).started_ns == 4 * SECOND_NS


def test_control_request_is_answered_in_virtual_time(engine, clock):
    client = httpx.Client(base_url="http://emulated-1", transport=VirtualControl(engine))
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    before_ns = clock.now_ns()
    whole = client.post("/v1/completions", content=b'{"prompt": [1], "max_tokens": 9}')
    assert whole.json()["usage"]["completion_tokens"] == 9
    assert clock.now_ns() > before_ns


def test_replay_that_is_given_up_ends_engine(engine):
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(EngineError, match="ended: the load was given up"):
        replay(engine, PlannedRequest(0, "/v1/completions", BODY), cancel=cancel)
    assert engine.ending() == "the load was given up"
    with pytest.raises(EngineError, match="ended: the load was given up"):
        engine.answer("GET", "/health", b"")


def test_plan_that_cannot_end_is_refused(engine):
    with pytest.raises(LoadError, match="cannot be replayed: request 0 waits for request 7"):
        replay(engine, PlannedRequest(0, "/v1/completions", BODY, after=7))


@pytest.mark.parametrize(("error", "expected", "ending"), [
    (KeyboardInterrupt, KeyboardInterrupt, "interrupted"), (RuntimeError("no KV cache"), EngineError, "no KV cache")])
def test_engine_interrupted_in_a_step_has_ended(engine, monkeypatch, error, expected, ending):
    def interrupted(_client):
        raise error

    monkeypatch.setattr(Client, "run", interrupted)
    with pytest.raises(expected):
        replay(engine, PlannedRequest(0, "/v1/completions", BODY))
    assert engine.ending() == ending


@pytest.mark.parametrize(("words", "code", "line"), [
    (("--max-model-len", "9999999"), 1, "ValueError: User-specified max_model_len"),
    (("--no-such-flag",), 2, "error: vllm: --no-such-flag cannot be emulated")])
def test_engine_that_does_not_start_leaves_its_error_in_the_log(launch, clock, words, code, line):
    with pytest.raises(ExitedEarly, match=f"vllm server ended before it was ready: exit code {code}") as caught:
        VirtualEngine("vllm", launch, (*WORDS[:7], *words), clock)
    assert caught.value.evidence.log_tail[-1].startswith(line)
    assert launch.log_path.read_text().startswith(line)


def test_relative_configuration_file_counts_from_the_folder_of_the_launch(launch, clock, tmp_path, monkeypatch):
    (tmp_path / "lmcache.yaml").write_text("chunk_size: 128\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    connector = ("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}')
    launch = replace(launch, env={"LMCACHE_CONFIG_FILE": "lmcache.yaml"})
    assert VirtualEngine("vllm", launch, (*WORDS, *connector), clock).ending() is None
    assert Path.cwd() == tmp_path / "elsewhere"


def test_unanswered_control_request_names_its_ending(launch, clock):
    engine = VirtualEngine("vllm", launch, ("--fault", "hangs=100%", *WORDS), clock)
    with pytest.raises(EngineError, match="does not answer /v1/completions: first byte timeout"):
        engine.answer("POST", "/v1/completions", b'{"prompt": [1], "max_tokens": 9}')
    assert engine.ending() is None


@pytest.mark.parametrize(("taken", "named"), [("run", "The run folder"), ("run/server.log/x", "server.log")])
def test_unwritable_run_folder_is_refused(launch, clock, tmp_path, taken, named):
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).touch()
    with pytest.raises(EngineError, match=rf"^{named} cannot be written: .*--llmperf-runs=DIR"):
        VirtualEngine("vllm", launch, WORDS, clock)
