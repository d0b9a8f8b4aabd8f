"""One answer to a control request has one deadline and one size, whatever the server sends."""

import gzip
import tracemalloc
import zlib
from random import Random

import httpx
import pytest

from pytest_llmperf.clock import SystemClock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.control import transports
from pytest_llmperf.engines.control.contact import control_client
from pytest_llmperf.engines.control.json_answers import json_object
from pytest_llmperf.engines.control.transports import AnswerTooLarge
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.errors import EngineError
from pytest_llmperf.model.plan import Channel
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import Hang, Send, http_chunk, plain

HEAD = b"HTTP/1.1 200 OK\r\n"
DRIPS = [Send(b"x", 0.02)] * 20_000  # last far longer than a test may


@pytest.fixture
def ask(monkeypatch):
    def ask(*scripts, timeout_s=60, answer_bytes=1000, requests=1, **options):
        monkeypatch.setattr(transports, "ANSWER_BYTES", answer_bytes)
        with ScriptedServer(*scripts) as server, control_client(
            f"http://127.0.0.1:{server.port}", Channel(), timeout_s
        ) as client:
            answers = [client.get("/metrics", **options) for _ in range(requests)]
            return answers[-1], server

    return ask


@pytest.mark.parametrize(
    "script",
    [
        [Send(HEAD + b"content-length: 1000\r\n\r\n"), *DRIPS],
        [Send(HEAD + b"\r\n"), *DRIPS],
        [Send(HEAD + b"x: "), *DRIPS],
        [*[Send(b"HTTP/1.1 100 Continue\r\n\r\n", 0.02)] * 20_000],
        [Send(HEAD + b"content-length: 5\r\n\r\n"), Hang()],
        [Hang()],
    ],
    ids=["body", "body without a length", "head", "interim answers", "silence in the body", "silence"],
)
def test_slow_answer_ends_at_deadline(ask, script):
    with pytest.raises(httpx.ReadTimeout, match=r"no whole answer within 0\.3 s"):
        ask(script, timeout_s=0.3)


def test_timeout_of_request_limits_whole_answer(ask):
    with pytest.raises(httpx.ReadTimeout, match=r"within 1 s, [1-9]\d+ bytes came"):
        ask([Send(HEAD + b"\r\n"), *DRIPS], timeout=1.0)


@pytest.mark.parametrize(
    "script",
    [
        plain(200, b"x" * 1001),
        [Send(HEAD + b"\r\n"), *[Send(b"x" * 100_000)] * 20],
        [Send(HEAD + b"transfer-encoding: chunked\r\n\r\n"), *[Send(http_chunk(b"x" * 50_000))] * 20],
        [Send(HEAD + b"content-encoding: gzip\r\nconnection: close\r\ncontent-length: 1040\r\n\r\n"
              + gzip.compress(b"x" * 10**6, mtime=0)[:1040].ljust(1040, b"\0"))],
        [Send(HEAD + b"content-encoding: deflate\r\ncontent-length: 1007\r\n\r\n" + zlib.compress(b"x" * 10**6)
              .ljust(1007, b"\0"))],
    ],
    ids=["length", "endless", "chunked", "gzip", "deflate"],
)
def test_oversized_answer_is_refused(ask, script):
    with pytest.raises(AnswerTooLarge, match=r"longer than 0\.000953674 MiB, the limit"):
        ask(script)


def test_unpacking_a_bomb_takes_no_more_memory_than_allowed(ask):
    bomb = gzip.compress(b"\0" * 2**26, 9)
    script = [Send(HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb) + bomb)]
    tracemalloc.start()
    try:
        with pytest.raises(AnswerTooLarge):
            ask(script, answer_bytes=2**20)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_packed_answer_within_the_limits_is_unpacked(ask):
    packed = gzip.compress(b"a 1\n" * 100)
    answer, server = ask([Send(HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed)])
    assert answer.text == "a 1\n" * 100
    assert b"accept-encoding: identity" in server.requests[0].head.lower()


@pytest.mark.parametrize(("encoding", "problem"), [(b"br", "not be compressed, got 'br'"), (b"gzip", "is no gzip")])
def test_answer_that_cannot_be_unpacked_is_an_error_of_httpx(ask, encoding, problem):
    with pytest.raises(httpx.DecodingError, match=problem):
        ask([Send(HEAD + b"content-encoding: " + encoding + b"\r\ncontent-length: 4\r\n\r\nabcd")])


def test_answer_within_limits_is_complete_and_connection_is_reused(ask):
    answer, server = ask(plain(200, b"x" * 1000), requests=3)
    assert len(answer.content) == 1000
    assert server.connections == 1


def test_connection_without_listener_is_a_connection_error():
    with control_client("http://127.0.0.1:1", Channel()) as client, pytest.raises(httpx.ConnectError):
        client.get("/health")


@pytest.mark.parametrize("problem", [AnswerTooLarge(), httpx.ReadTimeout("no whole answer")])
def test_oversized_or_late_metrics_page_raises_engine_error(
    make_server, fake_engine, problem
):
    fake_engine.answers["/metrics"] = problem
    with pytest.raises(EngineError, match=rf"/metrics cannot be read: {problem}.*raise control_timeout_s"):
        make_server().counters.read()


def test_timeout_within_start_never_exceeds_control_timeout(make_server):
    server = make_server()
    with server.control.answers_within(2.0):
        assert server.control.client.timeout.read == 2.0
    assert server.control.client.timeout.read == 10.0
    with server.control.answers_within(60.0):
        assert server.control.client.timeout.read == 10.0


def test_dripping_model_list_ends_at_the_deadline(tmp_path):
    launcher = Launcher(Settings(control_timeout_s=0.3), tmp_path, tmp_path / "run", "cpu", SystemClock(), Random(1))
    with ScriptedServer([Send(HEAD + b"\r\n"), *DRIPS]) as server:
        spec = endpoint(f"http://127.0.0.1:{server.port}", model="m")
        with pytest.raises(EngineError, match=r"does not answer \(ReadTimeout: no whole answer within 0\.3 s"):
            launcher.start(spec, 1)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[" + b"[]," * 300_000 + b"[]]"])
def test_json_that_would_fill_memory_is_no_object(text):
    assert json_object(httpx.Response(200, content=b'{"data":' + text + b"}")) == {}
