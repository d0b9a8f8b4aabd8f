"""The event decoder against the examples and corners of the WHATWG standard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.wire.sse import Event, EventDecoder


def decode(*parts: bytes, **options) -> list[Event]:
    decoder = EventDecoder(**options)
    return [event for part in parts for event in decoder.feed(part)]


def texts(*parts: bytes) -> list[str]:
    return [event.data for event in decode(*parts)]


@pytest.mark.parametrize("newline", [b"\n", b"\r", b"\r\n"])
def test_each_line_ending_ends_a_line(newline):
    assert texts(newline.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])) == ["a\nb", "c"]


def test_mixed_line_endings_are_accepted_in_one_event():
    assert texts(b"data: a\r\ndata: b\rdata: c\n\r\n") == ["a\nb\nc"]


def test_crlf_split_between_cr_and_lf_is_one_ending():
    assert texts(b"data: a\r", b"\n", b"\r", b"\ndata: b\r\n\r\n") == ["a", "b"]


def test_crlf_split_within_event_does_not_end_event():
    assert texts(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == ["a\nb"]


def test_event_ends_at_cr_of_blank_line():
    assert texts(b"data: a\r\n\r") == ["a"]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),  # only a leading BOM is one
        (b": comment\n\ndata: a\n\n", ["a"]),
        (b":\n\n", []),
        (b"data:a\n\ndata: a\n\ndata:  a\n\n", ["a", "a", " a"]),
        (b"data\n\n", [""]),
        (b"data:\n\n", [""]),
        (b"data\ndata\n\n", ["\n"]),
        (b"data: x\ndata\n\n", ["x\n"]),
        (b"\n\n\n", []),
        (b"event: ping\n\n", []),
        (b"id: 7\nretry: 10\nfoo: bar\ndata: a\n\n", ["a"]),
        (b"data: a: b\n\n", ["a: b"]),
        (b"Data: a\n\n", []),
        (b" data: a\n\n", []),
        (b"data: never finished\n", []),
        (b"data: a\x0bb\x0cc\x1cd\n\n", ["a\x0bb\x0cc\x1cd"]),  # line ends to str.splitlines only
    ],
)
def test_event_streams_match_whatwg_standard(stream, expected):
    assert texts(stream) == expected


def test_event_type_holds_for_one_event_only():
    assert decode(b"event: error\ndata: a\n\ndata: b\n\n") == [Event("a", "error"), Event("b")]


def test_utf8_split_anywhere_is_whole():
    stream = "data: häß€😀\n\n".encode()
    for cut in range(len(stream)):
        assert decode(stream[:cut], stream[cut:]) == [Event("häß€😀")]


@pytest.mark.parametrize("invalid", [b"\xff", b"\xe2\x82", b"\xc0\xaf", b"\xed\xa0\x80"])
def test_invalid_utf8_is_replaced_and_flagged(invalid):
    (event, after) = decode(b"data: a" + invalid + b"b\n\ndata: ok\n\n")
    assert event.replaced
    assert "�" in event.data
    assert event.data[0] + event.data[-1] == "ab"
    assert not after.replaced


def test_replacement_character_sent_by_the_server_is_not_flagged():
    assert decode("data: \ufffd\n\n".encode()) == [Event("\ufffd", "", False)]


def test_pending_tells_an_unfinished_event():
    decoder = EventDecoder()
    decoder.feed(b"data: a\n\n")
    assert not decoder.pending
    decoder.feed(b"data: b\n")
    assert decoder.pending


@pytest.mark.parametrize("parts", [[b"data: " + b"x" * 50 + b"\n\n"], [b"data: "] + [b"x"] * 50])
def test_line_above_the_limit_overflows_and_ends_decoding(parts):
    decoder = EventDecoder(line_limit_bytes=20)
    assert [e.data for e in decoder.feed(b"data: fits\n\n")] == ["fits"]
    assert [e for part in parts for e in decoder.feed(part)] == []
    assert decoder.overflowed
    assert decoder.feed(b"data: later\n\n") == []


def test_line_of_exactly_the_limit_is_taken():
    assert decode(b"data: 12\n\n", line_limit_bytes=8) == [Event("12")]


_PIECES = st.sampled_from(
    [
        *(b"data: ", b"data", b"event: e", b":", b" ", b"{}", b"x" * 9, b"\n", b"\r", b"\r\n", b"\n\n"),
        *(b"\xef\xbb\xbf", "é".encode(), b"\xe2", b"\xff"),
    ]
)


@given(st.lists(_PIECES, max_size=30).map(b"".join), st.data())
def test_any_split_gives_the_same_events(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, split = EventDecoder(line_limit_bytes=16), EventDecoder(line_limit_bytes=16)
    assert [e for part in parts for e in split.feed(part)] == whole.feed(stream)
    assert split.overflowed == whole.overflowed
