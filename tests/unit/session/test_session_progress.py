"""What progress means: rates, and how long it will still take."""

import pytest

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.session.progress import RunProgress

S = 1_000_000_000


def timed(requests, rate):
    return LoadPlan("h", 1, tuple(PlannedRequest(i, "/", b"", at_ns=round(i * S / rate)) for i in range(requests)))


PLANS = dict[int, LoadPlan]()  # a `RunProgress` knows its plan by identity
CLOSED = LoadPlan("h", 1, tuple(PlannedRequest(i, "/", b"") for i in range(20)), concurrency=4)


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


def test_report_at_start_of_schedule_has_no_remaining_time():
    assert RunProgress(1, 1).status(Progress(4, 0, 0, 0, reads=4), CLOSED).left_s is None


def test_closed_loop_status_predicts_remaining_time_from_pace():
    status = RunProgress(1, 2).status(Progress(8, 5, 0, 10 * S), CLOSED)
    assert status.left_s == pytest.approx(30 + 40)


def test_open_loop_remaining_time_includes_the_last_answer():
    durations_ns = dict.fromkeys(range(20), 3 * S)
    status = RunProgress(1, 1).status(Progress(30, 20, 0, 4 * S, durations_ns=durations_ns), timed(101, 10))
    assert status.left_s == pytest.approx(6 + 3)


@pytest.mark.parametrize(("elapsed_s", "done"), [(4.1, 4), (7.9, 4), (8.1, 8)])
def test_closed_loop_remaining_time_counts_requests_in_flight(elapsed_s, done):
    """20 requests in 4 slots, 4 s each, end after 20 s, whether a wave has just begun or is about to end."""
    progress = Progress(done + 4, done, 0, round(elapsed_s * S), durations_ns=dict.fromkeys(range(done), 4 * S))
    assert RunProgress(1, 1).status(progress, CLOSED).left_s == pytest.approx(20 - elapsed_s)


def test_closed_loop_remaining_time_weighs_requests_by_output_tokens():
    """The short requests end first; the long ones take four times as long."""
    bodies = [b'{"max_tokens": %d}' % (100 if i % 2 else 25) for i in range(16)]
    requests = tuple(PlannedRequest(i, "/", body) for i, body in enumerate(bodies))
    plan = LoadPlan("h", 1, requests, concurrency=4)
    progress = Progress(6, 2, 0, 2 * S, durations_ns={0: S, 2: S})
    assert RunProgress(1, 1).status(progress, plan).left_s == pytest.approx(10 - 2, abs=2)


def test_closed_loop_remaining_time_separates_wait_from_tokens():
    """Each request waits 2 s and takes 10 ms per token; the 8 that ended have 25 to 60 tokens, the others 200."""
    tokens = [25 + 5 * i for i in range(8)] + [200] * 32
    requests = tuple(PlannedRequest(i, "/", b'{"max_tokens": %d}' % count) for i, count in enumerate(tokens))
    plan = LoadPlan("h", 1, requests, concurrency=8)
    durations_ns = {i: round((2 + tokens[i] / 100) * S) for i in range(8)}
    status = RunProgress(1, 1).status(Progress(16, 8, 0, 3 * S, durations_ns=durations_ns), plan)
    assert status.left_s == pytest.approx(2.6 + 4 * 4 - 3)


def test_conversation_remaining_time_is_extrapolated_from_pace():
    requests = tuple(PlannedRequest(i, "/", b"", after=i - 1 if i else None) for i in range(10))
    plan = LoadPlan("h", 1, requests, concurrency=1)
    progress = Progress(3, 2, 0, 10 * S, durations_ns={0: S, 1: S})
    assert RunProgress(1, 1).status(progress, plan).left_s == pytest.approx(40)


def streams(at_s, *, slots, requests, wait_s, token_s, tokens):
    """A closed loop whose requests all take `wait_s` and then `token_s` per token: its plan and its progress."""
    plan = LoadPlan("h", 1, tuple(PlannedRequest(i, "/", b'{"max_tokens": %d}' % tokens) for i in range(requests)),
                    concurrency=slots)
    duration_s = wait_s + tokens * token_s
    waves, age_s = divmod(at_s, duration_s)
    done = slots * int(waves)
    read = max(0, min(tokens, int((age_s - wait_s) / token_s)))
    progress = Progress(min(done + slots, requests), done, 0, round(at_s * S), None,
                        round(token_s * S) if done else None, dict.fromkeys(range(done), round(duration_s * S)),
                        reads=done * tokens + slots * read, ended_reads=done * tokens)
    return plan, progress


@pytest.mark.parametrize("tenth", range(1, 10))
def test_remaining_time_of_64_streams_is_exact_from_first_tenth(tenth):
    """Four waves of 64 requests: after a tenth of the run none has ended, and the reads in flight show the pace."""
    load = {"slots": 64, "requests": 256, "wait_s": 0.3, "token_s": 0.008, "tokens": 512}
    end_s = 4 * (0.3 + 512 * 0.008)
    shown = RunProgress(1, 1)
    for step in range(1, round(end_s * tenth / 10 * 4) + 1):
        plan, progress = streams(step / 4, **load)
        status = shown.status(progress, PLANS.setdefault(256, plan))
    assert status.left_s == pytest.approx(end_s - step / 4, rel=0.03)


def test_draining_streams_take_pace_of_fewer_streams():
    """Four streams of 400 to 700 tokens are left of 64; a token takes 8 ms at 64 streams, and 4 ms in the warm-up."""
    tokens = [100] * 60 + [400, 500, 600, 700]
    plan = LoadPlan("h", 1, tuple(PlannedRequest(i, "/", b'{"max_tokens": %d}' % t) for i, t in enumerate(tokens)),
                    concurrency=64)
    shown = RunProgress(1, 1, quiet_itl_s=0.004)
    ended = dict.fromkeys(range(60), round(0.8 * S))
    status = shown.status(Progress(64, 60, 0, S, None, 8_000_000, ended, 6400, 6000), plan)
    steps_s = [0.004 + 0.004 * (left - 2) / 62 for left in (4, 3, 2)] + [0.004]
    tokens_left = (300, 100, 100, 100)
    assert status.left_s == pytest.approx(sum(s * n for s, n in zip(steps_s, tokens_left, strict=True)))


def test_whole_answers_are_predicted_from_ended_requests():
    """A read brings a whole answer, so reads show no pace."""
    progress = Progress(8, 4, 0, 5 * S, durations_ns=dict.fromkeys(range(4), 4 * S), reads=4, ended_reads=4)
    assert RunProgress(1, 1).status(progress, CLOSED).left_s == pytest.approx(20 - 5)


def test_after_the_last_answer_only_other_runs_are_left():
    plan = timed(11, 10)
    assert RunProgress(3, 3).status(Progress(11, 11, 0, 2 * S), plan).left_s == 0
    assert RunProgress(1, 3).status(Progress(11, 11, 0, 2 * S), plan).left_s == pytest.approx(4)


def test_remaining_time_includes_answers_after_last_send():
    progress = Progress(11, 10, 0, 2 * S, durations_ns=dict.fromkeys(range(10), round(1.2 * S)))
    assert RunProgress(1, 1).status(progress, timed(11, 10)).left_s == pytest.approx(0.2)
