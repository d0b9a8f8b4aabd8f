"""TLS, proxies and connections for one request only, over real sockets and through the real load process."""

import socket
import ssl
import threading
from contextlib import suppress
from statistics import median

import pytest
import trustme

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import Channel, LoadPlan, PlannedRequest
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.testing.replaying import replay_scripts
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import Close, Send, StreamShape, plain, streamed
from pytest_llmperf.testing.waiting import until

EVENTS = StreamShape().events()
GOOD = streamed(EVENTS, ttft_s=0.03, itl_s=0.01)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def trusted(authority, tmp_path):
    """File of the certificate to trust."""
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.fixture
def identity(authority):
    """What a server on 127.0.0.1 shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


class TunnellingProxy:
    """Answers CONNECT and passes bytes on, each way in a thread."""

    def __init__(self, refuse=False):
        self._refuse = refuse
        self.paths = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self):
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self.paths.append(head.split(b"\r\n")[0].decode())
        if self._refuse:
            client.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            client.close()
            return
        host, port = self.paths[-1].split(" ")[1].split(":")
        server = socket.create_connection((host, int(port)))
        client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass_on(source, sink):
        with suppress(OSError), source:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.fixture
def proxy():
    made = TunnellingProxy()
    yield made
    made.close()


def test_tls_streams_have_kernel_stamps_and_reuse_connections(identity, trusted):
    with ScriptedServer(GOOD, tls=identity) as server:
        replayed = replay_scripts(server, requests=3, channel=Channel(tls=True, tls_ca_file=trusted))
    assert all(record.ok for record in replayed.records), replayed.records
    assert [e.reused for e in replayed.replay.exchanges] == [False, True, True]
    assert len(set(replayed.record.arrivals_ns)) + replayed.record.coalesced_chunks == 4
    assert replayed.record.arrivals_ns[0] - replayed.record.intended_ns >= 29_000_000
    assert replayed.replay.load.kernel_stamped > 0.5  # the kernel begins to stamp a moment after it was asked to


def test_large_tls_requests_and_answers_succeed(identity, trusted):
    """Records that are split over reads, and more than one record a read."""
    shape = StreamShape((200,) * 40, text="x" * 20_000)
    with ScriptedServer(streamed(shape.events()), tls=identity) as server:
        replayed = replay_scripts(
            server, requests=2, output_tokens=8000, channel=Channel(tls=True, tls_ca_file=trusted)
        )
    assert all(record.ok for record in replayed.records)


def test_untrusted_certificate_is_refused(identity):
    with ScriptedServer(GOOD, tls=identity) as server:
        (exchange,) = replay_scripts(server, channel=Channel(tls=True)).replay.exchanges
    assert exchange.ending is Ending.CONNECT_FAILED
    assert "certificate verify failed" in exchange.error
    assert exchange.sent_ns is None


def test_a_certificate_for_another_host_is_refused(authority, trusted):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.example").configure_cert(context)
    with ScriptedServer(GOOD, tls=context) as server:
        (exchange,) = replay_scripts(server, channel=Channel(tls=True, tls_ca_file=trusted)).replay.exchanges
    assert "IP address mismatch" in exchange.error


def test_verification_can_be_turned_off(identity):
    with ScriptedServer(GOOD, tls=identity) as server:
        assert replay_scripts(server, channel=Channel(tls=True, tls_verify=False)).record.ok


def test_trust_that_cannot_be_read_is_an_error_of_the_load(identity, tmp_path):
    (tmp_path / "empty.pem").write_text("")
    channel = Channel(tls=True, tls_ca_file=str(tmp_path / "empty.pem"))
    with ScriptedServer(GOOD, tls=identity) as server, pytest.raises(LoadError, match="exit code 1"):
        replay_scripts(server, channel=channel)


def test_end_of_scripted_server_closes_unfinished_tls_handshake(identity):
    """The client sends nothing, so the handshake has no end of its own."""
    with ScriptedServer(GOOD, tls=identity) as server:
        client = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        until(lambda: server.connections == 1)
    with client:
        assert client.recv(1) == b""


def test_a_server_without_tls_is_named():
    """A server without TLS takes the TLS handshake for a bad request and answers 400."""
    def answer(listener):
        client, _ = listener.accept()
        with client:
            client.recv(65536)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        plan = LoadPlan("127.0.0.1", listener.getsockname()[1], (PlannedRequest(0, "/", b"{}"),),
                        channel=Channel(tls=True, tls_verify=False))
        (exchange,) = ProcessTransport().replay(plan, cancel=threading.Event()).exchanges
        thread.join()
    assert exchange.ending is Ending.CONNECT_FAILED
    assert "WRONG_VERSION_NUMBER" in exchange.error.upper().replace(" ", "_")


def test_a_stream_cut_within_tls_is_truncated(identity):
    with ScriptedServer([*streamed(EVENTS[:2], end="open"), Close()], tls=identity) as server:
        record = replay_scripts(server, channel=Channel(tls=True, tls_verify=False)).record
    assert record.outcome is Outcome.TRUNCATED
    assert len(record.arrivals_ns) == 2


def test_a_proxy_is_asked_for_the_whole_url():
    with ScriptedServer(GOOD) as proxy:
        replayed = replay_scripts(proxy, host="model.example", channel=Channel(proxy=("127.0.0.1", proxy.port)))
        assert replayed.record.ok
        (received,) = proxy.requests
    expected = f"POST http://model.example:{proxy.port}/v1/completions HTTP/1.1\r\nHost: model.example:{proxy.port}\r\n"
    assert received.head.decode().startswith(expected)


def test_tls_goes_through_a_tunnel(identity, trusted, proxy):
    with ScriptedServer(GOOD, tls=identity) as server:
        replayed = replay_scripts(
            server, requests=2, channel=Channel(tls=True, tls_ca_file=trusted, proxy=proxy.address)
        )
        assert all(record.ok for record in replayed.records)
        assert proxy.paths == [f"CONNECT 127.0.0.1:{server.port} HTTP/1.1"]


def test_a_proxy_that_refuses_is_quoted(identity):
    refusing = TunnellingProxy(refuse=True)
    with ScriptedServer(GOOD, tls=identity) as server:
        channel = Channel(tls=True, tls_verify=False, proxy=refusing.address)
        (exchange,) = replay_scripts(server, channel=channel).replay.exchanges
    refusing.close()
    assert exchange.ending is Ending.CONNECT_FAILED
    assert "the proxy refuses the tunnel: HTTP/1.1 403 Forbidden" in exchange.error


def test_fresh_connections_serve_one_request_each():
    with ScriptedServer(GOOD) as server:
        replayed = replay_scripts(server, requests=4, channel=Channel(fresh=True))
        assert sorted(r.connection for r in server.requests) == [0, 1, 2, 3]
        assert all(b"\r\nConnection: close\r\n" in r.head for r in server.requests)
    assert all(record.ok for record in replayed.records)
    assert not any(e.reused for e in replayed.replay.exchanges)


def test_fresh_connections_of_an_open_loop_are_opened_ahead():
    at_ns = tuple(index * 20_000_000 for index in range(10))

    with ScriptedServer([*plain(200, b"x"), Send(b"")]) as server:
        replay = replay_scripts(server, requests=10, at_ns=at_ns, channel=Channel(fresh=True)).replay
        assert server.connections >= 10
    # Beside what a busy machine delays the loop itself.
    assert median(e.sent_ns - e.intended_ns for e in replay.exchanges) < 5_000_000 + max(replay.loop_lag_ns)
