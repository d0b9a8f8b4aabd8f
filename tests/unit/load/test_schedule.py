"""The schedule, without time or loop."""

from pytest_llmperf.load.schedule import Schedule, problem_of
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest

START = 1_000


def schedule_of(*requests: PlannedRequest, concurrency=None) -> Schedule:
    schedule = Schedule(LoadPlan("127.0.0.1", 1, requests, concurrency=concurrency))
    schedule.start(START)
    return schedule


def request(index, **options):
    return PlannedRequest(index, "/", b"", **options)


def departed(schedule, now_ns):
    return [
        (d.request.index, None if d.intended_ns is None else d.intended_ns - START)
        for d in schedule.take_due(START + now_ns, 100)
    ]


def test_open_loop_departs_by_time_whatever_the_order_of_the_plan():
    schedule = schedule_of(request(0, at_ns=20), request(1, at_ns=10), request(2, at_ns=30))
    assert schedule.next_due_ns == START + 10
    assert departed(schedule, 9) == []
    assert departed(schedule, 20) == [(1, 10), (0, 20)]
    assert schedule.next_due_ns == START + 30


def test_late_request_keeps_intended_send_time():
    schedule = schedule_of(*(request(i, at_ns=i) for i in range(5)))
    assert departed(schedule, 1_000_000) == [(i, i) for i in range(5)]


def test_no_request_is_sent_before_start():
    schedule = Schedule(LoadPlan("127.0.0.1", 1, (request(0),)))
    assert schedule.take_due(10**18, 9) == []
    assert schedule.upcoming(10**18) == 0


def test_closed_loop_request_has_possible_time_but_no_intended_time():
    schedule = schedule_of(*(request(i) for i in range(4)), concurrency=2)
    assert departed(schedule, 5) == [(0, None), (1, None)]
    assert departed(schedule, 50) == []
    schedule.finished(1, START + 60)
    (due,) = schedule.take_due(START + 65, 9)
    assert (due.intended_ns, due.possible_ns) == (None, START + 60)
    schedule.finished(0, START + 70)
    schedule.finished(2, START + 80)
    assert departed(schedule, 85) == [(3, None)]
    assert not schedule.done
    schedule.finished(3, START + 90)
    assert schedule.done


def test_timed_request_over_limit_is_intended_when_a_slot_becomes_free():
    schedule = schedule_of(request(0, at_ns=0), request(1, at_ns=10), request(2, at_ns=700), concurrency=1)
    assert departed(schedule, 20) == [(0, 0)]
    assert schedule.upcoming(START + 20) == 0  # no connection before the slot is free
    schedule.finished(0, START + 500)
    assert departed(schedule, 510) == [(1, 500)]
    schedule.finished(1, START + 600)
    assert departed(schedule, 710) == [(2, 700)]


def test_next_turn_is_intended_at_previous_end_plus_think_time():
    schedule = schedule_of(request(0, at_ns=0), request(1, after=0, think_ns=100), request(2, after=1))
    assert departed(schedule, 0) == [(0, 0)]
    assert schedule.next_due_ns is None
    schedule.finished(0, START + 50)
    assert schedule.next_due_ns == START + 150
    assert departed(schedule, 149) == []
    assert departed(schedule, 160) == [(1, 150)]
    schedule.finished(1, START + 200)
    assert departed(schedule, 201) == [(2, 200)]


def test_next_turn_with_a_time_waits_for_both():
    schedule = schedule_of(request(0), request(1, after=0, at_ns=300), request(2, after=0, at_ns=10))
    departed(schedule, 0)
    schedule.finished(0, START + 50)
    assert departed(schedule, 60) == [(2, 50)]
    assert departed(schedule, 300) == [(1, 300)]


def test_next_turns_are_served_before_new_conversations():
    schedule = schedule_of(request(0), request(1, after=0), request(2), concurrency=1)
    assert departed(schedule, 0) == [(0, None)]
    schedule.finished(0, START + 40)
    assert departed(schedule, 41) == [(1, 40)]


def test_slot_that_was_free_longer_does_not_move_the_intended_time_back():
    schedule = schedule_of(request(0), request(1, after=0, think_ns=100), concurrency=1)
    departed(schedule, 0)
    schedule.finished(0, START + 40)
    assert departed(schedule, 150) == [(1, 140)]


def test_upcoming_counts_requests_due_within_horizon():
    schedule = schedule_of(request(0, at_ns=10), request(1, at_ns=20), request(2, at_ns=90))
    assert schedule.upcoming(START + 50) == 2
    departed(schedule, 10)
    assert schedule.upcoming(START + 50) == 1


def test_upcoming_knows_the_next_turns_of_an_open_loop():
    turns = [request(0, at_ns=10), request(1, after=0, think_ns=100), request(2, after=0, think_ns=200)]
    schedule = schedule_of(*turns)
    departed(schedule, 10)
    schedule.finished(0, START + 50)
    assert [schedule.upcoming(START + until_ns) for until_ns in (149, 150, 250)] == [0, 1, 2]
    assert departed(schedule, 160) == [(1, 150)]
    assert [schedule.upcoming(START + until_ns) for until_ns in (160, 250)] == [0, 1]


def test_upcoming_counts_next_turns_up_to_free_slots_of_closed_loop():
    """The transport opens so many connections in advance. A turn that waits for a slot takes the slot's connection."""
    turns = [request(0), *(request(i, after=0, think_ns=100 * i) for i in (1, 2, 3))]
    schedule = schedule_of(*turns, concurrency=2)
    assert departed(schedule, 0) == [(0, None)]
    assert schedule.upcoming(START + 10**9) == 0
    schedule.finished(0, START + 50)
    assert [schedule.upcoming(START + until_ns) for until_ns in (149, 150, 250, 350)] == [0, 1, 2, 2]
    assert departed(schedule, 400) == [(1, 150), (2, 250)]
    assert schedule.upcoming(START + 10**9) == 0
    schedule.finished(1, START + 410)
    assert schedule.upcoming(START + 420) == 1
    departed(schedule, 420)
    schedule.finished(2, START + 430)
    schedule.finished(3, START + 440)
    assert schedule.upcoming(START + 10**9) == 0


def test_plans_that_could_never_end_are_named():
    assert problem_of([request(0), request(1, after=0)]) is None
    assert "position 0" in problem_of([request(1)])
    for after in (0, 1, -1):
        assert "does not come before" in problem_of([request(0, after=after), request(1)])


def test_a_burst_departs_in_parts_and_the_rest_is_due_at_once():
    schedule = schedule_of(*(request(i, at_ns=0) for i in range(5)))
    assert [d.request.index for d in schedule.take_due(START + 1, 2)] == [0, 1]
    assert schedule.next_due_ns <= START + 1
    assert [d.request.index for d in schedule.take_due(START + 1, 9)] == [2, 3, 4]
    assert schedule.next_due_ns is None


def test_a_ready_request_without_a_slot_is_not_due():
    schedule = schedule_of(request(0), request(1), concurrency=1)
    assert [d.request.index for d in schedule.take_due(START, 9)] == [0]
    assert schedule.next_due_ns is None
