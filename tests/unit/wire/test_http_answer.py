"""HTTP framing read by read."""

import pytest

from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.testing.scripted_transport import make_exchange
from pytest_llmperf.wire.http import Framing, NotHttpError, read_answer

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_body_pieces_keep_stamp_of_read():
    answer = read_answer(make_exchange([(10, CHUNKED + b"3\r\nabc"), (20, b"\r\n4\r\nde"), (30, b"fg\r\n0\r\n\r\n")]))
    assert answer.pieces == ((10, b"abc"), (20, b"de"), (30, b"fg"))
    assert answer.status == 200
    assert answer.complete
    assert answer.header("transfer-encoding") == "chunked"


@pytest.mark.parametrize(("status", "until_close"), [(200, True), (204, False), (304, False)])
def test_answer_without_length_lasts_until_close_unless_status_has_no_body(status, until_close):
    framing = Framing()
    framing.feed(b"HTTP/1.1 %d X\r\n\r\n" % status)
    assert framing.until_close == until_close


def test_answer_is_read_byte_by_byte():
    message = CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"
    answer = read_answer(make_exchange([(at, message[at : at + 1]) for at in range(len(message))]))
    assert answer.body == b"abc"
    assert answer.complete


FLOODS = {
    "headers": (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 500),
    "one header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 3000),
    "reason": (b"HTTP/1.1 200 ", b"O" * 3000),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n" * 500),
    "one trailer": (CHUNKED + b"1\r\nx\r\n0\r\na: ", b"x" * 3000),
    "size of a chunk": (CHUNKED + b"1", b";" + b"x" * 3000),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_endless_headers_and_trailers_are_refused(flood):
    begin, more = FLOODS[flood]
    framing = Framing()
    framing.feed(begin)

    def keep_feeding():
        for _ in range(30):
            framing.feed(more)

    with pytest.raises(NotHttpError, match=r"more than 256 headers, or 65,536 bytes|[Ii]nvalid"):
        keep_feeding()
    assert sum(len(name) + len(value) for name, value in framing.headers) < 70_000


def test_long_stream_in_small_chunks_is_no_flood():
    framing = Framing()
    framing.feed(CHUNKED)
    for _ in range(200):
        framing.feed(b"1\r\nx\r\n" * 100)
    framing.feed(b"0\r\nTrailer: t\r\n\r\n")
    assert framing.complete


@pytest.mark.parametrize(
    ("message", "status", "body", "keep_alive"),
    [
        (b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", 503, b"no", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 200, b"", False),
        (b"HTTP/1.1 204 None\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", True),
        (CHUNKED + b"1;ext=1\r\nx\r\n0\r\nTrailer: t\r\n\r\n", 200, b"x", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False),
    ],
)
def test_message_ends_by_length_status_or_close(message, status, body, keep_alive):
    framing = Framing()
    assert not framing.feed(message[:-1])
    assert framing.feed(message[-1:])
    assert framing.keep_alive is keep_alive
    answer = read_answer(make_exchange([(1, message)]))
    assert (answer.status, answer.body, answer.complete) == (status, body, True)


def test_body_without_announced_end_is_complete_only_with_an_orderly_close():
    message = b"HTTP/1.1 200 OK\r\n\r\nabc"
    assert read_answer(make_exchange([(1, message)], ending=Ending.COMPLETE)).complete
    assert not read_answer(make_exchange([(1, message)], ending=Ending.RESET)).complete


def test_bytes_after_the_end_are_ignored_but_end_the_connection():
    framing = Framing()
    assert framing.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx garbage")
    assert not framing.keep_alive
    assert framing.feed(b"HTTP/1.1 500 Again\r\n\r\n")
    assert framing.status == 200


@pytest.mark.parametrize(
    "garbage", [b"220 smtp ready\r\n", b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"]
)
def test_bytes_that_are_not_http_are_refused(garbage):
    with pytest.raises(NotHttpError):
        Framing().feed(garbage)
    assert read_answer(make_exchange([(1, garbage)])).problem


def test_malformed_chunk_size_keeps_earlier_body():
    answer = read_answer(make_exchange([(1, CHUNKED + b"1\r\nx\r\n"), (2, b"zz\r\n")]))
    assert answer.body == b"x"
    assert answer.problem
    assert not answer.complete


def test_answer_without_bytes_has_no_status():
    answer = read_answer(make_exchange([], ending=Ending.CONNECT_FAILED))
    assert (answer.status, answer.pieces, answer.complete) == (None, (), False)
