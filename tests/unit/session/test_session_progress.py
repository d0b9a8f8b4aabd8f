"""What progress means: rates, and how long it will still take."""

import pytest

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.session.progress import RunProgress

S = 1_000_000_000


def timed(requests, rate):
    return LoadPlan("h", 1, tuple(PlannedRequest(i, "/", b"", at_ns=round(i * S / rate)) for i in range(requests)))


def loop(tokens, slots):
    """A closed loop of requests with these output tokens."""
    requests = (PlannedRequest(i, "/", b"", output_tokens=count) for i, count in enumerate(tokens))
    return LoadPlan("h", 1, tuple(requests), concurrency=slots)


CLOSED = loop([100] * 20, 4)


def test_open_loop_status_shows_rates_and_remaining_time():
    status = RunProgress(2, 3, "A").status(Progress(30, 20, 1, 4 * S, 45_000_000, 6_000_000), timed(101, 10))
    assert (status.run, status.runs, status.label, status.requests) == (2, 3, "A", 101)
    assert (status.done, status.failed, status.elapsed_s) == (20, 1, 4.0)
    assert status.requested_rate == pytest.approx(10)
    assert status.rate == 5
    assert (status.ttft_ms, status.itl_ms) == (45, 6)
    assert status.left_s == pytest.approx(6 + 10)  # the rest of this run and one more


def test_status_before_first_answer_has_no_rates():
    status = RunProgress(1, 3).status(Progress(4, 0, 0, S), CLOSED)
    assert (status.rate, status.requested_rate, status.left_s, status.ttft_ms) == (None, None, None, None)


def test_closed_loop_remaining_time_includes_the_further_runs():
    progress = Progress(8, 5, 0, 10 * S, durations_ns=dict.fromkeys(range(5), 8 * S))
    assert RunProgress(1, 2).status(progress, CLOSED).left_s == pytest.approx(30 + 40)


def test_open_loop_remaining_time_includes_the_last_answer():
    durations_ns = dict.fromkeys(range(20), 3 * S)
    status = RunProgress(1, 1).status(Progress(30, 20, 0, 4 * S, durations_ns=durations_ns), timed(101, 10))
    assert status.left_s == pytest.approx(6 + 3)


def test_closed_loop_remaining_time_weighs_requests_by_output_tokens():
    """Eight short requests of 25 tokens have ended, eight of 100 tokens are left."""
    progress = Progress(12, 8, 0, 2 * S, durations_ns=dict.fromkeys(range(8), S))
    assert RunProgress(1, 1).status(progress, loop([25] * 8 + [100] * 8, 4)).left_s == pytest.approx(8)


@pytest.mark.parametrize(("done", "reads_per_token"), [(0, 1), (64, 1), (64, 0.5)])
def test_remaining_time_counts_reads_of_streams_in_flight(done, reads_per_token):
    """64 streams of 512 tokens each, and 100 tokens of each further stream in flight; 8,000 tokens a second."""
    generated = done * 512 + 64 * 100
    progress = Progress(done + 64, done, 0, round(generated / 8000 * S), durations_ns=dict.fromkeys(range(done), S),
                        reads=round(generated * reads_per_token), ended_reads=round(done * 512 * reads_per_token))
    status = RunProgress(1, 1).status(progress, loop([512] * 256, 64))
    assert status.left_s == pytest.approx((256 * 512 - generated) / 8000)


def test_last_streams_generate_one_token_per_inter_token_latency():
    """Two streams of 64 are left, each with 300 further tokens of 8 ms."""
    ended = dict.fromkeys(range(62), round(0.8 * S))
    progress = Progress(64, 62, 0, S, None, 8_000_000, ended, 62 * 100 + 200, 62 * 100)
    assert RunProgress(1, 1).status(progress, loop([100] * 62 + [400] * 2, 64)).left_s == pytest.approx(300 * 0.008)


def test_whole_answers_are_predicted_from_ended_requests():
    """A read brings a whole answer, so requests in flight have no reads."""
    progress = Progress(8, 4, 0, 5 * S, durations_ns=dict.fromkeys(range(4), 4 * S), reads=4, ended_reads=4)
    assert RunProgress(1, 1).status(progress, CLOSED).left_s == pytest.approx(20)


def test_conversation_remaining_time_is_extrapolated_from_pace():
    requests = tuple(PlannedRequest(i, "/", b"", after=i - 1 if i else None) for i in range(10))
    plan = LoadPlan("h", 1, requests, concurrency=1)
    progress = Progress(3, 2, 0, 10 * S, durations_ns={0: S, 1: S})
    assert RunProgress(1, 1).status(progress, plan).left_s == pytest.approx(40)


def test_after_the_last_answer_the_time_left_is_that_of_later_runs():
    plan = timed(11, 10)
    assert RunProgress(3, 3).status(Progress(11, 11, 0, 2 * S), plan).left_s == 0
    assert RunProgress(1, 3).status(Progress(11, 11, 0, 2 * S), plan).left_s == pytest.approx(4)


def test_remaining_time_includes_answers_after_last_send():
    progress = Progress(11, 10, 0, 2 * S, durations_ns=dict.fromkeys(range(10), round(1.2 * S)))
    assert RunProgress(1, 1).status(progress, timed(11, 10)).left_s == pytest.approx(0.2)
