"""One connection and a bare socket: the end of a message is found in the read that brings it."""

import select
import socket
import time

import pytest

from pytest_llmperf.load.arrivals import ReadStamps
from pytest_llmperf.load.connection import Connection
from pytest_llmperf.load.connection_setup import Route
from pytest_llmperf.load.request_in_flight import Intake, RequestInFlight
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import PlannedRequest, StreamLimits
from pytest_llmperf.testing.streams import LAST_CHUNK, STREAM_HEAD, StreamShape, http_chunk

BODY = b"".join(map(http_chunk, StreamShape().events()))


class KeepsEndings:
    def __init__(self):
        self.endings = []
        self.forgotten = 0

    def opened(self, connection):
        pass

    def took(self, request, size):
        pass

    def finish(self, request, ending, error=None):
        self.endings.append(ending)

    def forget(self, connection):
        self.forgotten += 1


class ByHand:
    """An event loop that runs a handler when told to."""

    def watch(self, fd, handler, events=1):
        self.fd, self.handler = fd, handler

    def read(self):
        """Run the handler once there is something to read: the kernel of a busy machine may deliver it later."""
        assert select.select([self.fd], [], [], 60)[0]
        self.handler()

    def forget(self, fd):
        pass


class Pair:
    """A connection that serves a request, and the socket at its other end."""

    def __init__(self, owner):
        self.watcher, self.arrivals = ByHand(), ReadStamps()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            route = Route(socket.AF_INET, listener.getsockname(), "127.0.0.1")
            self.connection = Connection(self.watcher, self.arrivals, owner, route)
            self.server, _ = listener.accept()
        self.watcher.handler()
        self.connection.request = self.request = RequestInFlight(PlannedRequest(0, "/", b""), 0, 0)

    def say(self, data):
        self.server.sendall(data)
        self.watcher.read()

    def hang_up(self, *, reset):
        if reset:
            self.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.server.close()
        self.watcher.read()


@pytest.fixture
def owner():
    return KeepsEndings()


@pytest.fixture
def pair(owner):
    made = Pair(owner)
    yield made
    made.connection.close()
    made.server.close()
    made.arrivals.close()


@pytest.mark.parametrize(
    "reads",
    [
        [STREAM_HEAD, BODY, LAST_CHUNK],
        [STREAM_HEAD + BODY + LAST_CHUNK],
        [STREAM_HEAD, BODY + b"0\r\n", b"\r\n"],
        [STREAM_HEAD, BODY, b"0\r", b"\n\r\n"],
        [STREAM_HEAD, BODY, b"0;ext=1\r\n\r\n"],
        [STREAM_HEAD, BODY + b"0;ext", b"=1\r\n\r\n"],
        [STREAM_HEAD, BODY, b"0\r\nTrailer: t\r\n\r\n"],
        [STREAM_HEAD, BODY, b"0\r\nTrailer: t\r\n", b"\r\n"],
        [STREAM_HEAD[:30], STREAM_HEAD[30:] + BODY, LAST_CHUNK],
        [b"HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\n", b"no", b"no"],
        [b"HTTP/1.1 500 No\r\ncontent-length: 8\r\n\r\n", b"longer.."],
    ],
)
def test_ends_with_the_read_that_completes_the_message(pair, owner, reads):
    for data in reads[:-1]:
        pair.say(data)
        assert owner.endings == []
    pair.say(reads[-1])
    assert owner.endings == [Ending.COMPLETE]
    assert len(pair.request.stamps) == len(reads)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_stream_is_parsed_only_at_end(pair, line_end):
    pair.say(STREAM_HEAD)
    for _ in range(5):
        pair.say(http_chunk(StreamShape().events()[0].replace(b"\n", line_end)))
    assert pair.request.framed == 1


def test_kernel_stamp_gives_arrival_time_despite_late_read(pair):
    time.sleep(0.1)  # the kernel begins to stamp a moment after the first socket of the machine asks
    before_ns = time.monotonic_ns()
    pair.server.sendall(STREAM_HEAD)
    after_ns = time.monotonic_ns()
    time.sleep(0.05)
    pair.watcher.read()
    (stamp_ns,) = pair.request.stamps
    assert before_ns - 50_000 <= stamp_ns <= after_ns + 50_000


@pytest.mark.parametrize(
    ("reads", "reused", "reset", "ending"),
    [
        ([], True, False, Ending.STALE),
        ([], True, True, Ending.STALE),
        ([], False, False, Ending.CLOSED_EARLY),
        ([STREAM_HEAD], True, False, Ending.CLOSED_EARLY),
        ([STREAM_HEAD], True, True, Ending.RESET),
        ([b"HTTP/1.1 200 OK\r\n\r\nabc"], False, False, Ending.COMPLETE),
        ([b"HTTP/1.1 200 OK\r\n\r\nabc"], False, True, Ending.RESET),
    ],
)
def test_lost_connection_has_ending_by_reuse_and_bytes(pair, owner, reads, reused, reset, ending):
    pair.request.reused = reused
    for data in reads:
        pair.say(data)
    pair.hang_up(reset=reset)
    assert owner.endings == [ending]
    assert owner.forgotten == 1


def test_answer_that_is_not_http_ends_connection(pair, owner):
    pair.say(b"SSH-2.0-OpenSSH\r\n")
    assert owner.endings == [Ending.CLOSED_EARLY]


LIMITS = StreamLimits(connect_ns=10, first_byte_ns=20, idle_ns=30, total_ns=100)


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
    ],
)
def test_request_exceeds_connect_first_byte_and_idle_limits(sent_ns, reads, now_ns, ending):
    request = RequestInFlight(PlannedRequest(0, "/", b""), 0, 0, sent_ns=sent_ns)
    for stamp_ns, data in reads:
        request.stamps.append(stamp_ns)
        request.reads.append(data)
    assert request.overdue(now_ns, LIMITS) is ending
    assert request.overdue(now_ns, LIMITS) is ending


@pytest.mark.parametrize(
    ("limits", "reads", "problem"),
    [
        ({"response_bytes": 1000}, 10, None),
        ({"response_bytes": 999}, 10, "this answer is longer than 999 bytes (response_limit_mib)"),
        ({"held_bytes": 1800}, 10, None),
        ({"held_bytes": 1799}, 10,
         "the answers under way take more than 1,799 bytes of memory (responses_memory_limit_mib)"),
        ({"replay_bytes": 1000}, 10, None),
        ({"replay_bytes": 999}, 10, "the answers of this run are longer than 999 bytes together"),
    ],
)
def test_intake_names_the_limit_that_an_answer_exceeds(limits, reads, problem):
    intake, request = Intake(StreamLimits(**limits)), RequestInFlight(PlannedRequest(0, "/", b""), 0, 0)
    problems = [intake.take(request, 100) for _ in range(reads)]
    assert problems == [None] * (reads - 1) + [problem]


def test_recorded_answer_is_held_no_more_and_counts_among_all_answers():
    intake = Intake(StreamLimits(held_bytes=200, replay_bytes=250))
    for problem in (None, None, "the answers of this run are longer than 250 bytes together"):
        request = RequestInFlight(PlannedRequest(0, "/", b""), 0, 0)
        assert intake.take(request, 100) == problem
        request.reads.append(b"x" * 100)
        intake.recorded(request)
        assert intake.held_bytes == 0


PATIENCE = StreamLimits(first_byte_ns=1000, idle_ns=30)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("head", [[STREAM_HEAD], [STREAM_HEAD[:30], STREAM_HEAD[30:]], [INTERIM + STREAM_HEAD]])
def test_a_head_alone_is_no_first_byte(pair, head):
    """vLLM and SGLang send the head at once, and the first token when it is there."""
    pair.request.sent_ns = 0
    for data in head:
        pair.say(data)
    pair.request.stamps[-1] = 1
    assert pair.request.overdue(1000, PATIENCE) is None
    assert pair.request.overdue(1001, PATIENCE) is Ending.FIRST_BYTE_TIMEOUT


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("reads", [
    [STREAM_HEAD, BODY], [STREAM_HEAD + BODY], [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"],
])
def test_silence_after_start_of_body_is_an_idle_timeout(pair, reads, looks):
    pair.request.sent_ns = 0
    for data in reads:
        pair.say(data)
    if looks:  # as the sweep does, where nothing has come for a while
        pair.connection.look_for_end(pair.request)
    pair.request.stamps[-1] = 2000
    assert pair.request.overdue(2030, PATIENCE) is None
    assert pair.request.overdue(2031, PATIENCE) is Ending.IDLE_TIMEOUT
