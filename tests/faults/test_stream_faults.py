"""Streams that go wrong, over real sockets and through the real load process: faults 26 to 33, 36 to 38 and 43."""

import threading
import time
from dataclasses import replace

import pytest

from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.testing.replaying import replay_scripts
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    Close,
    Hang,
    Reset,
    Send,
    StreamShape,
    error_event,
    http_chunk,
    plain,
    streamed,
)

MS = 1_000_000
EVENTS = StreamShape().events()
GOOD = streamed(EVENTS)


def outcomes(*scripts, **options):
    with ScriptedServer(*scripts) as server:
        return replay_scripts(server, requests=len(scripts), **options)


def test_hang_after_some_tokens_is_a_timeout_of_that_request():
    """Fault 26."""
    limits = StreamLimits(idle_ns=1500 * MS)
    replayed = outcomes([*streamed(EVENTS[:2], end="open"), Hang()], GOOD, limits=limits)
    hung, after = replayed.records
    assert hung.outcome is Outcome.TIMEOUT
    assert hung.detail == "idle timeout: idle_timeout_s = 1.5 after 2 content chunks"
    assert len(hung.arrivals_ns) == 2
    assert hung.ended_ns - hung.arrivals_ns[-1] > 1500 * MS
    assert after.ok


@pytest.mark.parametrize("expected", [0, 2, 4, 5])
def test_close_without_done_is_truncated_never_a_short_success(expected):
    """Fault 27."""
    replayed = outcomes([*streamed(EVENTS[:expected], end="open"), Close()], GOOD)
    assert replayed.record.outcome is Outcome.TRUNCATED
    assert len(replayed.record.arrivals_ns) == min(expected, 4)
    assert replayed.records[1].ok


def test_chunked_end_without_done_is_truncated():
    """Fault 27: the HTTP message is whole, the stream is not."""
    replayed = outcomes(streamed(EVENTS[:3]))
    assert replayed.replay.exchanges[0].ending is Ending.COMPLETE
    assert replayed.record.outcome is Outcome.TRUNCATED


def test_body_without_length_ends_at_connection_close():
    """Fault 27: without chunks or length an orderly close ends the message, and `[DONE]` decides."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    whole, cut = ([Send(head), *map(Send, events), Close()] for events in (EVENTS, EVENTS[:3]))
    replayed = outcomes(whole, cut)
    assert [r.outcome for r in replayed.records] == [Outcome.OK, Outcome.TRUNCATED]


def test_reset_in_chunk_is_a_failed_request():
    """Fault 28."""
    replayed = outcomes([*streamed(EVENTS[:2], end="open"), Send(b"ff\r\ndata: {", 0.05), Reset(0.05)], GOOD)
    assert replayed.record.outcome is Outcome.RESET
    assert "reset" in replayed.record.detail.lower()
    assert len(replayed.record.arrivals_ns) == 2
    assert replayed.records[1].ok


def test_malformed_json_is_a_failed_request_with_first_bytes():
    """Fault 29."""
    bad = b'data: {"choices": [' + b"x" * 300 + b"\n\n"
    replayed = outcomes(streamed([*EVENTS[:1], bad, *EVENTS[1:]]), GOOD)
    assert replayed.record.outcome is Outcome.MALFORMED
    assert repr(bad[6:206]) in replayed.record.detail
    assert replayed.records[1].ok


def test_split_utf8_is_joined_and_invalid_utf8_is_flagged():
    """Fault 30."""
    split = b"".join(e.replace(b" x", "€😀".encode()) for e in EVENTS)
    invalid = b"".join(e.replace(b" x", b"\xe2\x82") for e in EVENTS)
    by_byte = [Send(STREAM_HEAD), *(Send(http_chunk(split[at : at + 1])) for at in range(len(split))), Send(LAST_CHUNK)]
    replayed = outcomes(by_byte, streamed([invalid]))
    assert [(r.ok, r.replaced_text) for r in replayed.records] == [(True, False), (True, True)]


def test_event_stream_spellings_of_standard_are_accepted():
    """Fault 31: byte order mark, comments, CRLF, several data lines, empty data."""
    fancy = [b"\xef\xbb\xbf: hello\r\n\r\n", b"data:\n\n", b"event: message\nid: 1\nretry: 5\n\n"]
    fancy += [e.replace(b"data: ", b"data:").replace(b',"object"', b',\ndata: "object"') for e in EVENTS]
    crlf = [e.replace(b"\n", b"\r\n") for e in fancy]
    replayed = outcomes(streamed(fancy), streamed(crlf), streamed([e.replace(b"\n", b"\r") for e in EVENTS]))
    assert [(r.outcome, len(r.arrivals_ns)) for r in replayed.records] == [(Outcome.OK, 4)] * 3


def test_missing_usage_is_truncated():
    """Fault 32."""
    bare = StreamShape(continuous_usage=False).events()
    replayed = outcomes(streamed([*bare[:4], DONE]))
    assert replayed.record.outcome is Outcome.TRUNCATED
    assert replayed.record.detail == "the stream ended without usage, after 4 content chunks"


def test_tokens_of_multi_token_chunks_are_counted():
    """Fault 32."""
    replayed = outcomes(streamed(StreamShape((1, 3, 5)).events()), output_tokens=9)
    assert replayed.record.ok
    assert replayed.record.chunk_tokens == (1, 3, 5)
    assert replayed.record.output_tokens == 9


def test_coalesced_chunks_are_counted():
    """Fault 32: three chunks of one write reach the client in one read. A late read also includes the first chunk."""
    first, *rest = EVENTS
    script = [Send(STREAM_HEAD + http_chunk(first)), Send(b"".join(map(http_chunk, rest)) + LAST_CHUNK, 0.05)]
    replayed = outcomes(script)
    assert replayed.record.ok
    assert replayed.record.coalesced_chunks >= 2
    assert len(set(replayed.record.arrivals_ns)) == 4 - replayed.record.coalesced_chunks


def test_usage_that_contradicts_token_ids_makes_request_failed():
    """Fault 33."""
    shape = StreamShape(continuous_usage=False, token_ids=True)
    lies = streamed([*StreamShape((1, 1), continuous_usage=False, token_ids=True).events()[:2], *shape.events()[4:]])
    replayed = outcomes(lies)
    assert replayed.record.outcome is Outcome.COUNTS_DISAGREE
    assert "the chunks bring 2 tokens, usage says 4" in replayed.record.detail


def test_error_in_200_stream_is_a_failed_request():
    replayed = outcomes(streamed([*EVENTS[:1], error_event("EngineCore encountered an issue"), DONE]))
    assert replayed.record.outcome is Outcome.ERROR_IN_STREAM
    assert "EngineCore encountered an issue" in replayed.record.detail


def by_the_byte(message, delay_s):
    return [Send(message[at : at + 1], delay_s) for at in range(len(message))]


SLOW = {
    "silent": ([Hang()], Ending.FIRST_BYTE_TIMEOUT),
    "only its head": ([Send(STREAM_HEAD), Hang()], Ending.FIRST_BYTE_TIMEOUT),
    "slow head": (by_the_byte(STREAM_HEAD * 2, 0.04), Ending.FIRST_BYTE_TIMEOUT),
    "slow body": ([Send(STREAM_HEAD), *by_the_byte(http_chunk(EVENTS[0]), 0.04)], Ending.TOTAL_TIMEOUT),
    "stalls": ([*streamed(EVENTS[:1], end="open"), Hang()], Ending.IDLE_TIMEOUT),
}


@pytest.mark.parametrize(("script", "ending"), SLOW.values(), ids=SLOW)
def test_first_byte_idle_and_total_limits_apply_separately(script, ending):
    """Fault 36: each server is slow in one way only, and each limit catches its own."""
    limits = StreamLimits(first_byte_ns=2000 * MS, idle_ns=1500 * MS, total_ns=4500 * MS)
    replayed = outcomes(script, GOOD, limits=limits)
    assert [e.ending for e in replayed.replay.exchanges] == [ending, Ending.COMPLETE]
    assert [r.outcome for r in replayed.records] == [Outcome.TIMEOUT, Outcome.OK]


def test_body_above_limit_is_a_failed_request():
    """Fault 37."""
    unending = [Send(STREAM_HEAD)] + [Send(http_chunk(b": " + b"x" * 65_536 + b"\n"))] * 64 + [Hang()]
    replayed = outcomes(unending, GOOD, limits=StreamLimits(response_bytes=1_000_000))
    assert replayed.replay.exchanges[0].ending is Ending.TOO_LARGE
    assert replayed.record.outcome is Outcome.MALFORMED
    assert replayed.record.detail.startswith("response too large")
    assert replayed.records[1].ok


FLOODS = {
    "headers": [Send(b"HTTP/1.1 200 OK\r\n"), *[Send(b"a: b\r\n" * 100_000)] * 40],
    "one header": [Send(b"HTTP/1.1 200 OK\r\nX: "), *[Send(b"x" * 600_000)] * 40],
    "interim answers": [Send(b"HTTP/1.1 100 Continue\r\n\r\n" * 24_000)] * 40,
}


@pytest.mark.parametrize("flood", FLOODS)
def test_endless_response_head_fails_the_request_in_bounded_memory(flood):
    """Fault 37: 24 MB of headers would take 600 MB as Python's objects."""
    replayed = outcomes([*FLOODS[flood], Hang()], GOOD)
    assert replayed.record.outcome is Outcome.MALFORMED
    assert "more than 256 headers, or 65,536 bytes of them" in replayed.record.detail
    assert replayed.records[1].ok
    assert replayed.replay.load.peak_memory_bytes < 100e6


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (StreamLimits(held_bytes=4_000_000), "the answers under way take more than 4,000,000 bytes of memory"),
        (StreamLimits(replay_bytes=4_000_000), "the answers of this run are longer than 4,000,000 bytes together"),
    ],
)
def test_answers_that_are_too_large_only_together_end(limits, problem):
    """Fault 37: each of the eight is within the limit of one answer."""
    large = [Send(STREAM_HEAD), *[Send(http_chunk(b": " + b"x" * 65_536 + b"\n"))] * 15, Hang()]
    ended = threading.Event()
    with ScriptedServer(large) as server:
        requests = tuple(PlannedRequest(index, "/", b"{}") for index in range(8))
        plan = LoadPlan("127.0.0.1", server.port, requests, concurrency=8,
                        limits=replace(limits, response_bytes=1_500_000))
        replay = ProcessTransport().replay(plan, cancel=ended, progress=lambda now: now.failed and ended.set())
    assert {exchange.ending for exchange in replay.exchanges} <= {Ending.TOO_LARGE, Ending.CANCELLED}
    assert any(problem in (exchange.error or "") for exchange in replay.exchanges)


def test_line_above_limit_is_a_failed_request():
    """Fault 37."""
    giant = [Send(http_chunk(b"x" * 1_000_000))] * 5
    replayed = outcomes([Send(STREAM_HEAD), Send(http_chunk(b"data: ")), *giant, Send(LAST_CHUNK)])
    assert replayed.record.outcome is Outcome.MALFORMED
    assert "line" in replayed.record.detail


def test_redirects_are_refused():
    """Fault 38: the other server never hears of it."""
    with ScriptedServer(GOOD) as other:
        location = f"http://127.0.0.1:{other.port}/v1/completions"
        replayed = outcomes(plain(307, location=location))
        assert other.requests == []
    assert replayed.record.outcome is Outcome.HTTP_STATUS
    assert location in replayed.record.detail


@pytest.mark.parametrize("tokens", [2, 6])
def test_output_of_another_length_is_an_error(tokens):
    """Fault 43."""
    replayed = outcomes(streamed(StreamShape((1,) * tokens).events()))
    assert replayed.record.outcome is Outcome.WRONG_LENGTH
    assert f"{tokens} output tokens instead of 4" in replayed.record.detail


def test_answer_without_content_is_a_failed_request():
    choiceless = [StreamShape(()).usage_event(), DONE]
    replayed = outcomes(streamed([EVENTS[3].replace(b'" x"', b'""').replace(b'tokens":4', b'tokens":0'), *choiceless]))
    assert replayed.record.outcome is Outcome.EMPTY


def test_arrivals_are_stamped_when_the_bytes_came():
    begun = time.monotonic_ns()
    replayed = outcomes(streamed(EVENTS, ttft_s=0.1, itl_s=0.03))
    record = replayed.record
    assert begun < record.intended_ns <= record.sent_ns < record.arrivals_ns[0] < time.monotonic_ns()
    # Lower bounds, and from the intended send: on a busy machine a read, and the stamp of the send, may come late.
    assert record.arrivals_ns[0] - record.intended_ns >= 99 * MS
    assert record.arrivals_ns[3] - record.intended_ns >= 186 * MS
    assert len(set(record.arrivals_ns)) + record.coalesced_chunks == 4
