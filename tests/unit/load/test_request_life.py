"""Requests that the client sends again or cancels, over real sockets."""

import threading

import pytest

from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.metrics import measure
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.record import Outcome, failure_counts
from pytest_llmperf.model.request import Cancellation, RetryPolicy
from pytest_llmperf.testing.replaying import replay_scripts
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import (
    STREAM_HEAD,
    Close,
    Hang,
    Reset,
    Send,
    StreamShape,
    http_chunk,
    plain,
    streamed,
)

EVENTS = StreamShape().events()
GOOD = streamed(EVENTS)
MS = 1_000_000
TWICE = RetryPolicy(attempts=2, backoff_ns=50 * MS)
LIMITED = plain(429, b"{}")


def test_limited_request_is_sent_again_after_pause_of_policy():
    with ScriptedServer(LIMITED, LIMITED, GOOD) as server:
        replayed = replay_scripts(server, retry=RetryPolicy(attempts=3, backoff_ns=50 * MS))
    record = replayed.record
    assert (record.outcome, record.attempts, len(server.requests)) == (Outcome.OK, 3, 3)
    assert record.arrivals_ns[0] - record.intended_ns >= 150 * MS  # 50 ms and 100 ms
    assert record.arrivals_ns[0] - record.sent_ns >= 150 * MS  # the first attempt was sent before both pauses
    metrics = measure(replayed.records)
    assert metrics.value("retries") == 2
    assert metrics.value("retried_prompt_tokens") == 2 * 8
    assert metrics.value("ttft_p50") >= 150


@pytest.mark.parametrize("headers", [
    {"retry_after": "1"}, {"retry_after": "1.0"}, {"retry_after_ms": "1000"},
    {"retry_after": "Sun, 06 Nov 1994 08:49:38 GMT", "date": "Sun, 06 Nov 1994 08:49:37 GMT"},
])
def test_longer_retry_after_replaces_pause_of_policy(headers):
    with ScriptedServer(plain(429, b"{}", **headers), GOOD) as server:
        record = replay_scripts(server, retry=TWICE).record
    assert record.ok
    assert record.arrivals_ns[0] - record.intended_ns >= 1_000 * MS


def test_retry_after_of_more_than_a_minute_ends_request():
    with ScriptedServer(plain(429, b"{}", retry_after="3600"), GOOD) as server:
        record = replay_scripts(server, retry=TWICE).record
    assert (record.outcome, record.attempts) == (Outcome.RATE_LIMITED, 1)


def test_last_refusal_counts_after_all_attempts():
    with ScriptedServer(LIMITED) as server:
        replayed = replay_scripts(server, requests=3, retry=TWICE)
    assert {(record.outcome, record.attempts) for record in replayed.records} == {(Outcome.RATE_LIMITED, 2)}
    assert len(server.requests) == 6
    metrics = measure(replayed.records)
    assert (metrics.value("rate_limited_rate"), metrics.value("error_rate")) == (1.0, 0.0)


@pytest.mark.parametrize("first", [plain(503, b"{}"), [Reset()], [Close()], [Send(STREAM_HEAD), Close()]])
def test_request_without_content_is_sent_again(first):
    with ScriptedServer(first, GOOD) as server:
        record = replay_scripts(server, retry=TWICE).record
    assert (record.outcome, record.attempts) == (Outcome.OK, 2)


@pytest.mark.parametrize("first", [plain(400, b"{}"), [Send(STREAM_HEAD + http_chunk(EVENTS[0])), Close()]])
def test_refused_body_and_broken_answer_are_not_sent_again(first):
    with ScriptedServer(first, GOOD) as server:
        record = replay_scripts(server, retry=TWICE).record
    assert not record.ok
    assert record.attempts == 1


def test_silent_attempt_is_sent_again_after_timeout():
    with ScriptedServer([Hang()], GOOD) as server:
        record = replay_scripts(server, retry=TWICE, limits=StreamLimits(first_byte_ns=2_000 * MS)).record
    assert (record.outcome, record.attempts) == (Outcome.OK, 2)
    assert record.arrivals_ns[0] - record.intended_ns >= 2_050 * MS


def test_timeout_names_the_setting_that_ended_the_request():
    with ScriptedServer([Hang()]) as server:
        record = replay_scripts(server, limits=StreamLimits(first_byte_ns=200 * MS)).record
    assert record.outcome is Outcome.TIMEOUT
    assert "first_byte_timeout_s = 0.2" in record.detail
    assert failure_counts([record, record]) == {"timeout (first_byte_timeout_s = 0.2)": 2}


def test_slot_of_closed_loop_stays_taken_during_pause():
    with ScriptedServer(LIMITED, GOOD) as server:
        first, second = replay_scripts(server, requests=2, concurrency=1, retry=TWICE).records
    assert first.attempts == 2
    assert second.sent_ns >= first.ended_ns


def test_cancelled_run_ends_request_that_waits_for_next_attempt():
    cancel = threading.Event()
    with ScriptedServer(LIMITED) as server:
        plan = LoadPlan("127.0.0.1", server.port, (
            PlannedRequest(0, "/", b"{}", retry=RetryPolicy(attempts=2, backoff_ns=600_000 * MS)),))
        replay = ProcessTransport().replay(plan, cancel=cancel, progress=lambda now: now.sent and cancel.set())
    assert replay.exchanges[0].ending is Ending.CANCELLED


def test_request_is_cancelled_at_stated_token():
    with ScriptedServer([*streamed(EVENTS[:2], end="open"), Hang()]) as server:
        replayed = replay_scripts(server, requests=2, cancellation=Cancellation(after_tokens=2))
    assert {record.outcome for record in replayed.records} == {Outcome.ABANDONED}
    assert {sum(record.chunk_tokens) for record in replayed.records} == {2}
    assert {received.connection for received in server.requests} == {0, 1}  # the first was closed
    metrics = measure(replayed.records)
    assert (metrics.value("cancelled_rate"), metrics.value("error_rate")) == (1.0, 0.0)
    assert metrics.value("ttft_p50") is not None
    assert metrics.value("e2el_p50") is None


def test_request_is_cancelled_at_stated_time():
    with ScriptedServer([*streamed(EVENTS[:1], end="open"), Hang()]) as server:
        record = replay_scripts(server, cancellation=Cancellation(after_ns=1_000 * MS)).record
    assert record.outcome is Outcome.ABANDONED
    assert record.ended_ns - record.intended_ns >= 1_000 * MS
    assert len(record.arrivals_ns) == 1


def test_cancellation_before_first_token_counts_as_infinitely_slow():
    with ScriptedServer([Hang()]) as server:
        replayed = replay_scripts(server, cancellation=Cancellation(after_ns=100 * MS))
    assert measure(replayed.records).by_request("ttft") == (None,)


def test_client_gives_up_during_pause_before_next_attempt():
    with ScriptedServer(LIMITED) as server:
        record = replay_scripts(server, cancellation=Cancellation(after_ns=1_000 * MS),
                                retry=RetryPolicy(attempts=2, backoff_ns=60_000 * MS)).record
    assert (record.outcome, record.attempts, len(server.requests)) == (Outcome.ABANDONED, 1, 1)


def test_retries_and_cancellations_survive_several_load_processes():
    with ScriptedServer([*streamed(EVENTS[:1], end="open"), Hang()]) as server:
        replayed = replay_scripts(server, requests=8, concurrency=4, processes=2, retry=TWICE,
                                  cancellation=Cancellation(after_tokens=1))
    assert {record.outcome for record in replayed.records} == {Outcome.ABANDONED}
