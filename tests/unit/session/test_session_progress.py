"""What progress means: rates, and how long it will still take."""

import pytest

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.session.progress import measuring_status

S = 1_000_000_000


def timed(requests, rate):
    return LoadPlan("h", 1, tuple(PlannedRequest(i, "/", b"", at_ns=round(i * S / rate)) for i in range(requests)))


CLOSED = LoadPlan("h", 1, tuple(PlannedRequest(i, "/", b"") for i in range(20)), concurrency=4)


def test_open_loop_status_shows_rates_and_remaining_time():
    status = measuring_status(
        Progress(30, 20, 1, 4 * S, 45_000_000, 6_000_000), timed(101, 10), run=2, runs=3, label="A"
    )
    assert (status.run, status.runs, status.label, status.asked) == (2, 3, "A", 101)
    assert (status.done, status.failed, status.elapsed_s) == (20, 1, 4.0)
    assert status.rate_asked == pytest.approx(10)
    assert status.rate == 5
    assert (status.ttft_ms, status.itl_ms) == (45, 6)
    assert status.left_s == pytest.approx(6 + 10)  # the rest of this run and one more


def test_status_before_first_answer_has_no_rates():
    status = measuring_status(Progress(4, 0, 0, S), CLOSED, run=1, runs=3)
    assert (status.rate, status.rate_asked, status.left_s, status.ttft_ms) == (None, None, None, None)


def test_closed_loop_status_predicts_remaining_time_from_pace():
    status = measuring_status(Progress(8, 5, 0, 10 * S), CLOSED, run=1, runs=2)
    assert status.left_s == pytest.approx(30 + 40)


def test_after_the_last_answer_only_other_runs_are_left():
    plan = timed(11, 10)
    assert measuring_status(Progress(11, 11, 0, 2 * S), plan, run=3, runs=3).left_s == 0
    assert measuring_status(Progress(11, 11, 0, 2 * S), plan, run=1, runs=3).left_s == pytest.approx(4)


def test_remaining_time_includes_answers_after_last_send():
    assert measuring_status(Progress(11, 10, 0, 2 * S), timed(11, 10), run=1, runs=1).left_s == pytest.approx(0.2)
