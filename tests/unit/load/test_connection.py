"""The protocol without a loop: the end of a message is found in the read that brings it."""

import pytest

from pytest_llmperf.load.connection import Connection
from pytest_llmperf.load.flight import Flight
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import PlannedRequest, StreamLimits
from pytest_llmperf.testing.streams import LAST_CHUNK, STREAM_HEAD, StreamShape, http_chunk

BODY = b"".join(map(http_chunk, StreamShape().events()))


class KeepsEndings:
    def __init__(self):
        self.endings = []
        self.forgotten = 0

    def finish(self, flight, ending, error=None):
        self.endings.append(ending)

    def forget(self, connection):
        self.forgotten += 1


@pytest.fixture
def owner():
    return KeepsEndings()


@pytest.fixture
def connection(owner):
    connection = Connection(owner)
    connection.flight = Flight(PlannedRequest(0, "/", b""), 0, 0)
    return connection


@pytest.mark.parametrize(
    "reads",
    [
        [STREAM_HEAD, BODY, LAST_CHUNK],
        [STREAM_HEAD + BODY + LAST_CHUNK],
        [STREAM_HEAD, BODY + b"0\r\n", b"\r\n"],
        [STREAM_HEAD, BODY, b"0\r", b"\n\r\n"],
        [STREAM_HEAD[:30], STREAM_HEAD[30:] + BODY, LAST_CHUNK],
        [b"HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\n", b"no", b"no"],
        [b"HTTP/1.1 500 No\r\ncontent-length: 8\r\n\r\n", b"longer.."],
    ],
)
def test_ends_with_the_read_that_completes_the_message(connection, owner, reads):
    for data in reads[:-1]:
        connection.data_received(data)
        assert owner.endings == []
    connection.data_received(reads[-1])
    assert owner.endings == [Ending.COMPLETE]
    assert len(connection.flight.stamps) == len(reads)


def test_streams_are_not_parsed_while_they_run(connection):
    connection.data_received(STREAM_HEAD)
    for _ in range(5):
        connection.data_received(http_chunk(StreamShape().events()[0]))
    assert connection.flight.framed == 1


@pytest.mark.parametrize(
    ("reads", "reused", "problem", "ending"),
    [
        ([], True, None, Ending.STALE),
        ([], True, ConnectionResetError(), Ending.STALE),
        ([], False, None, Ending.CLOSED_EARLY),
        ([STREAM_HEAD], True, None, Ending.CLOSED_EARLY),
        ([STREAM_HEAD], True, ConnectionResetError(), Ending.RESET),
        ([b"HTTP/1.1 200 OK\r\n\r\nabc"], False, None, Ending.COMPLETE),
        ([b"HTTP/1.1 200 OK\r\n\r\nabc"], False, ConnectionResetError(), Ending.RESET),
    ],
)
def test_a_lost_connection(connection, owner, reads, reused, problem, ending):
    connection.flight.reused = reused
    for data in reads:
        connection.data_received(data)
    connection.connection_lost(problem)
    assert owner.endings == [ending]
    assert owner.forgotten == 1


def test_what_is_not_http_ends_at_once(connection, owner):
    connection.data_received(b"SSH-2.0-OpenSSH\r\n")
    assert owner.endings == [Ending.CLOSED_EARLY]


LIMITS = StreamLimits(connect_ns=10, first_byte_ns=20, idle_ns=30, total_ns=100, response_bytes=5)


@pytest.mark.parametrize(
    ("sent_ns", "reads", "now_ns", "ending"),
    [
        (None, [], 10, None),
        (None, [], 11, Ending.CONNECT_TIMEOUT),
        (5, [], 25, None),
        (5, [], 26, Ending.FIRST_BYTE_TIMEOUT),
        (5, [(20, b"x")], 50, None),
        (5, [(20, b"x")], 51, Ending.IDLE_TIMEOUT),
        (5, [(20, b"x"), (100, b"x")], 105, None),
        (5, [(20, b"x"), (100, b"x")], 106, Ending.TOTAL_TIMEOUT),
        (5, [(20, b"xxx"), (21, b"xx")], 22, None),
        (5, [(20, b"xxx"), (21, b"xxx")], 22, Ending.TOO_LARGE),
    ],
)
def test_limits(sent_ns, reads, now_ns, ending):
    flight = Flight(PlannedRequest(0, "/", b""), 0, 0, sent_ns=sent_ns)
    for stamp_ns, data in reads:
        flight.stamps.append(stamp_ns)
        flight.reads.append(data)
    assert flight.overdue(now_ns, LIMITS) is ending
    assert flight.overdue(now_ns, LIMITS) is ending
