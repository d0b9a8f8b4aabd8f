"""Refusals of a busy service, and how long it asks the client to wait."""

import pytest

from pytest_llmperf.wire.http import refusal, retry_after_s

NOW_S = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT
AHEAD = "Sun, 06 Nov 1994 08:49:42 GMT"
VLLM = b'{"error": {"message": "The engine %s. Please try again later or on a different instance.", "code": 503}}'


@pytest.mark.parametrize(("headers", "pause_s"), [
    ({"retry-after": "4"}, 4.0),
    ({"retry-after": " 4.5 "}, 4.5),
    ({"retry-after": AHEAD}, 5.0),
    ({"retry-after": "Sunday, 06-Nov-94 08:49:42 GMT"}, 5.0),
    ({"retry-after": "Sun Nov  6 08:49:42 1994"}, 5.0),
    ({"retry-after": AHEAD, "date": "Sun, 06 Nov 1994 08:49:40 GMT"}, 2.0),  # the clock of the server is ahead
    ({"retry-after": AHEAD, "date": "yesterday"}, 5.0),
    ({"retry-after": "Sun, 06 Nov 1993 08:49:42 GMT"}, 0.0),
    ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 252_618_189_022.0),
    ({"retry-after": "9" * 400}, float("inf")),
    ({"retry-after-ms": "4000", "retry-after": "9"}, 4.0),
    ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
    *(({"retry-after": text}, None) for text in (
        "", "-5", "nan", "inf", "1e3", "soon", "4 s", "\u0664", "1994-11-06T08:49:42Z", "Sun, 99 Nov 1994 08:49:42 GMT",
        "Sun, 06 Nov 1994 25:99:42 GMT", "Fri, 31 Dec 99999999 23:59:59 GMT")),
    ({}, None),
])
def test_pause_is_read_from_each_valid_header(headers, pause_s):
    assert retry_after_s(headers, NOW_S) == pause_s


@pytest.mark.parametrize(("status", "headers", "body", "reason"), [
    (429, {}, b"", "HTTP 429"),
    (503, {}, VLLM % b"is currently busy and cannot accept new requests",
     "HTTP 503, admission control by max_num_queued_reqs"),
    (503, {}, VLLM % b"has reached its prefill token backlog limit",
     "HTTP 503, admission control by max_num_queued_tokens"),
    (503, {}, b'{"message": "The request queue is full."}', "HTTP 503, admission control by max_queued_requests"),
    (503, {"retry-after": "1"}, b"", "HTTP 503 with Retry-After"),
    (503, {"retry-after": AHEAD}, b"", "HTTP 503 with Retry-After"),
    (503, {"retry-after-ms": "250"}, b"", "HTTP 503 with Retry-After"),
    (503, {"retry-after": "soon"}, b"", None),
    (503, {}, b"no healthy upstream", None),
    (503, {}, b'{"error": "engine is dead"}', None),
    (500, {"retry-after": "1"}, b"", None),
    (502, {}, VLLM % b"is currently busy and cannot accept new requests", None),
])
def test_refusals_are_told_apart_from_outages_by_reason(status, headers, body, reason):
    assert refusal(status, headers, body) == reason
