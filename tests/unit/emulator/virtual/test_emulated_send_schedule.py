"""Send times of a plan's requests: open loop, closed loop, conversations."""

from __future__ import annotations

import pytest

from pytest_llmperf.emulator.virtual.send_schedule import Posted, SendSchedule


def schedule(*requests: dict[str, int], started_ns: int = 0, concurrency: int | None = None) -> SendSchedule:
    posts = [Posted(i, "", b"", **request) for i, request in enumerate(requests)]
    return SendSchedule(posts, concurrency, started_ns)


def gone(send_schedule: SendSchedule, now_ns: int) -> list[tuple[int, int]]:
    return [(request.index, intended_ns) for request, intended_ns in send_schedule.take_due(now_ns)]


def test_open_loop_sends_at_the_times_of_the_plan():
    send_schedule = schedule({"at_ns": 30}, {"at_ns": 10}, {}, started_ns=1000)
    assert send_schedule.next_ns == 1000
    assert gone(send_schedule, 1000) == [(2, 1000)]
    assert send_schedule.next_ns == 1010
    assert gone(send_schedule, 1015) == [(1, 1010)]
    assert gone(send_schedule, 1030) == [(0, 1030)]
    assert send_schedule.next_ns is None


def test_closed_loop_sends_when_a_slot_is_free():
    send_schedule = schedule({}, {}, {}, concurrency=2)
    assert gone(send_schedule, 0) == [(0, 0), (1, 0)]
    assert send_schedule.next_ns is None
    send_schedule.ended(1, 70)
    assert send_schedule.next_ns == 70
    assert gone(send_schedule, 69) == []
    assert gone(send_schedule, 70) == [(2, 70)]


def test_closed_loop_request_waits_for_intended_send_time():
    send_schedule = schedule({"at_ns": 30}, concurrency=1)
    assert gone(send_schedule, 0) == []
    assert send_schedule.next_ns == 30


def test_timed_request_over_limit_is_intended_when_a_slot_becomes_free():
    send_schedule = schedule({"at_ns": 0}, {"at_ns": 10}, concurrency=1)
    assert gone(send_schedule, 0) == [(0, 0)]
    send_schedule.ended(0, 50)
    assert send_schedule.next_ns == 50
    assert gone(send_schedule, 50) == [(1, 50)]


def test_next_turn_waits_for_previous_end_and_think_time_before_new_requests():
    send_schedule = schedule({}, {"after": 0, "think_ns": 20}, {}, {}, concurrency=1)
    assert gone(send_schedule, 0) == [(0, 0)]
    send_schedule.ended(0, 100)
    assert gone(send_schedule, 100) == [(2, 100)]
    send_schedule.ended(2, 150)
    assert gone(send_schedule, 150) == [(1, 150)]


def test_next_turn_may_have_later_intended_send_time():
    send_schedule = schedule({}, {"after": 0, "think_ns": 20, "at_ns": 500}, started_ns=1000)
    send_schedule.take_due(1000)
    send_schedule.ended(0, 1100)
    assert send_schedule.next_ns == 1500


@pytest.mark.parametrize(
    ("requests", "concurrency", "why"),
    [
        ((Posted(1, "", b""),), None, "stands at position 0"),
        ((Posted(0, "", b"", after=0),), None, "not before it"),
        ((Posted(0, "", b""),), 0, "lets nothing go"),
    ],
)
def test_plans_that_could_not_end_are_refused(requests, concurrency, why):
    with pytest.raises(ValueError, match=why):
        SendSchedule(requests, concurrency, 0)
