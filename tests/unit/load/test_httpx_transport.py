"""httpx over stamped connections."""

import asyncio
import errno
import ssl
import sys
import time
from pathlib import Path

import httpx
import pytest
import trustme

from pytest_llmperf.model.plan import Channel
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import LAST_CHUNK, STREAM_HEAD, Close, Hang, Send, http_chunk, plain

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import stamped_httpx
from stamped_httpx import StampedTransport

PIECES = [b"one", b"two", b"three"]
STREAM = [Send(STREAM_HEAD), *(Send(http_chunk(piece), 0.05) for piece in PIECES), Send(LAST_CHUNK, 0.05)]


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def url_of(server, scheme="http"):
    return f"{scheme}://127.0.0.1:{server.port}/v1/completions"


async def answers_of(server, *, requests=1, transport=None, **options):
    async with httpx.AsyncClient(transport=transport or StampedTransport(), **options) as client:
        return [await client.post(url_of(server), json={"n": number}) for number in range(requests)]


def test_httpx_answer_contains_status_json_and_body():
    with ScriptedServer(plain(201, b'{"a": 1}', content_type="application/json")) as server:
        (answer,) = run(answers_of(server))
        (received,) = server.requests
    assert (answer.status_code, answer.json()) == (201, {"a": 1})
    assert received.head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert received.body in (b'{"n":0}', b'{"n": 0}')


def test_stamps_are_of_the_arrival_though_the_reader_sleeps():
    async def read_late(server):
        async with (
            httpx.AsyncClient(transport=StampedTransport()) as client,
            client.stream("POST", url_of(server), content=b"{}") as answer,
        ):
            time.sleep(2)  # a busy program blocks its loop
            body = [piece async for piece in answer.aiter_raw()]
            return body, list(answer.extensions["read_ns"])

    quick = [Send(STREAM_HEAD), *(Send(http_chunk(piece), 0.02) for piece in PIECES), Send(LAST_CHUNK)]
    with ScriptedServer(quick) as server:
        begun_ns = time.monotonic_ns()
        body, stamps = run(read_late(server))
    assert b"".join(body) == b"onetwothree"
    assert stamps[-1] - begun_ns < 1_900_000_000  # the last bytes came while the reader slept


def test_stream_pieces_have_one_stamp_each():
    async def read(server):
        async with (
            httpx.AsyncClient(transport=StampedTransport()) as client,
            client.stream("POST", url_of(server), content=b"{}") as answer,
        ):
            return [piece async for piece in answer.aiter_raw()], list(answer.extensions["read_ns"])

    with ScriptedServer(STREAM) as server:
        body, stamps = run(read(server))
    assert body == PIECES
    assert len(stamps) == 5  # head, pieces, last chunk
    assert stamps == sorted(stamps)


def test_connections_are_reused_unless_fresh_is_requested():
    with ScriptedServer(STREAM) as server:
        run(answers_of(server, requests=3))
        assert server.connections == 1
        run(answers_of(server, requests=2, transport=StampedTransport(Channel(fresh=True))))
        assert server.connections == 3


def test_closed_port_is_a_connect_error():
    with ScriptedServer(STREAM) as server:
        pass
    with pytest.raises(httpx.ConnectError):
        run(answers_of(server))


def test_a_host_without_address_is_a_connect_error():
    async def ask():
        async with httpx.AsyncClient(transport=StampedTransport(), timeout=15) as client:
            await client.get("http://no-such-host.invalid/")

    with pytest.raises(httpx.ConnectError, match=r"cannot resolve 'no-such-host\.invalid'") as caught:
        run(ask())
    assert caught.value.request.url.host == "no-such-host.invalid"


def test_no_descriptor_left_is_a_connect_error(monkeypatch):
    def no_more(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(stamped_httpx, "Link", no_more)
    with ScriptedServer(STREAM) as server, pytest.raises(httpx.ConnectError, match="Too many open files"):
        run(answers_of(server))


def test_a_look_up_that_takes_long_is_a_connect_timeout(monkeypatch):
    monkeypatch.setattr(stamped_httpx, "route_of", lambda plan: time.sleep(1))
    with ScriptedServer(STREAM) as server, pytest.raises(httpx.ConnectTimeout):
        run(answers_of(server, timeout=0.1))


def test_a_cut_answer_is_a_read_error():
    with ScriptedServer([Send(STREAM_HEAD + http_chunk(b"one")), Close()]) as server, pytest.raises(httpx.ReadError):
        run(answers_of(server))


def test_silent_server_causes_read_timeout():
    silence = httpx.Timeout(15, read=0.3)
    with ScriptedServer([Send(STREAM_HEAD), Hang()]) as server, pytest.raises(httpx.ReadTimeout):
        run(answers_of(server, timeout=silence))
    with ScriptedServer([Hang()]) as server, pytest.raises(httpx.ReadTimeout):
        run(answers_of(server, timeout=silence))


def test_tls_request_is_answered_with_trusted_ca(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def ask(server):
        channel = Channel(tls_ca_file=str(tmp_path / "ca.pem"))
        async with httpx.AsyncClient(transport=StampedTransport(channel)) as client:
            return await client.post(url_of(server, "https"), content=b"{}")

    with ScriptedServer(STREAM, tls=context) as server:
        assert run(ask(server)).content == b"onetwothree"
