"""Requests that are served at once see the same, and are less evidence than as many one after the other."""

from dataclasses import replace
from functools import partial
from math import exp

import numpy as np
import pytest
from scipy.signal import lfilter

from pytest_llmperf.judging.dependence import mean_concurrency, observations_per_step
from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.metrics import measure
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import ObservationsTooFew, RequestsConcurrent, StartsDiffer
from pytest_llmperf.results.sentences import basis_text, reason_text
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.testing.records import make_record
from pytest_llmperf.testing.steps import arriving, in_step

TOKENS = 63
TRIALS = 100
#: 5 % and three standard errors of the simulation.
MOST = 0.05 + 3 * (0.05 * 0.95 / TRIALS) ** 0.5


def stalling(share, rng, steps):
    """So many of the requests see one stall at least."""
    each = 1 - (1 - share) ** (1 / TOKENS)
    return np.where(rng.random(steps) < each, 80.0, 20.0)


def varying(rng, steps):
    return 20 * np.exp(0.3 * rng.standard_normal(steps))


def slow_at_times(rng, steps):
    """Logarithms with an sd of 0.3 that forget half of themselves in 1.4 s."""
    noise = rng.standard_normal(steps)
    noise[1:] *= (1 - 0.99**2) ** 0.5
    return 20 * np.exp(0.3 * lfilter([1.0], [1.0, -0.99], noise))


def waves(streams, count, rng, steps_of):
    return in_step(streams, [steps_of(rng, TOKENS).tolist() for _ in range(count)])


def poisson(rate, requests, rng, steps_of):
    return arriving(rng, steps_of(rng, int(60 * requests / rate + 1000)), rate, requests, TOKENS)


SHAPES = {
    "40 streams in 3 waves": partial(waves, 40, 3),
    "8 streams in 10 waves": partial(waves, 8, 10),
    "10/s": partial(poisson, 10, 100),
    "30/s": partial(poisson, 30, 200),
}
OPEN_LOOPS = ["10/s", pytest.param("30/s", marks=pytest.mark.thorough)]
EACH_SHAPE = [
    pytest.param("40 streams in 3 waves", marks=pytest.mark.thorough), "8 streams in 10 waves", *OPEN_LOOPS,
]


def judge(text, *runs, seeds=None):
    return judge_slo(parse_slo(text), runs, ["s"] * len(runs), seeds)


def rates(text, run_of, trials=TRIALS):
    """How often three runs PASS, and how often they FAIL."""
    rng = np.random.default_rng(3)
    verdicts = [judge(text, *[run_of(rng) for _ in range(3)]).verdict for _ in range(trials)]
    return [verdicts.count(verdict) / trials for verdict in (Verdict.PASS, Verdict.FAIL)]


@pytest.mark.parametrize(("family", "intended_ms", "requests"), [
    ("itl", [0.0, 1000.0], 1),             # one after the other
    ("tpot", [0.0, 0.0], 2),
    ("largest_stall", [0.0, 5.0], 1.5),    # half of each alone: (5 · 1 + 5 · 4 + 5 · 1) ÷ 20
    ("send_delay", [0.0, 0.0], 1),         # each left when it should
    ("ttft", [0.0, 50.0], 1 + 2 * 10 / 120),  # what the one computes, the other waits for
    ("e2el", [0.0, 50.0], 1 + 2 * 10 / 120),  # 60 ms each, of which the last 10
])
def test_mean_concurrency_counts_overlapping_requests(family, intended_ms, requests):
    records = [make_record(i, intended_ms=at, itl_ms=[5.0, 5.0]) for i, at in enumerate(intended_ms)]
    assert mean_concurrency([measure(records)], family) == pytest.approx(requests)


def test_tokens_of_a_chunk_come_at_once_and_means_do_not():
    run = measure([make_record(0, chunk_tokens=(1, 4, 4)), make_record(1, chunk_tokens=(1, 4, 4))])
    assert observations_per_step([run], "itl_per_token", 2.0) == 8
    assert observations_per_step([run], "itl", 2.0) == observations_per_step([run], "largest_stall", 2.0) == 2
    assert observations_per_step([run], "tpot", 2.0) == observations_per_step([run], "ttft", 2.0) == 1


def test_unsent_requests_do_not_change_mean_concurrency():
    """A request that is cancelled before its intended send time ends before it begins."""
    served = [make_record(i, intended_ms=10.0 * i) for i in range(50)]
    unsent = [replace(make_record(50 + i, intended_ms=2000.0 + 10 * i, outcome=Outcome.CANCELLED, chunks=0),
                      ended_ns=600_000_000, sent_ns=None) for i in range(50)]
    assert mean_concurrency([measure([*served, *unsent])], "ttft") == pytest.approx(
        mean_concurrency([measure(served)], "ttft")
    )


def test_concurrency_is_1_if_all_requests_fail():
    run = measure([make_record(0, chunks=1), make_record(1, outcome=Outcome.TIMEOUT, chunks=0)])
    assert mean_concurrency([run], "tpot") == observations_per_step([run], "itl", 1.0) == 1


@pytest.mark.parametrize("shape", EACH_SHAPE)
@pytest.mark.parametrize("share", [0.1, 0.25])
def test_largest_stall_at_exact_limit_keeps_error_rates(shape, share):
    """By batches of requests alone: 128 streams 37 % false PASS and 23 % false FAIL, 40/s 13 and 6 %."""
    steps = partial(stalling, share)
    verdict_rates = rates(f"largest_stall_p{100 * (1 - share):.0f} <= 50ms", lambda rng: SHAPES[shape](rng, steps))
    assert max(verdict_rates) <= MOST


@pytest.mark.parametrize("shape", EACH_SHAPE)
@pytest.mark.parametrize("steps", [varying, slow_at_times])
def test_tpot_at_exact_limit_keeps_error_rates(shape, steps):
    """By batches of requests alone: 49 and 16 % of 128 streams where steps vary, 40 and 8 % at 40/s of a server with
    slow seconds."""
    many = [SHAPES[shape](np.random.default_rng(seed), steps).samples("tpot") for seed in range(150)]
    limit_ms = np.quantile(np.concatenate(many), 0.9)
    assert max(rates(f"tpot_p90 <= {limit_ms:.6f}ms", lambda rng: SHAPES[shape](rng, steps))) <= MOST


@pytest.mark.parametrize("shape", OPEN_LOOPS)
@pytest.mark.parametrize("text", ["ttft_p90 <= {}ms", "slo_attainment(ttft <= {}ms) >= 90%"])
def test_ttft_at_exact_limit_keeps_error_rates_despite_slow_seconds(shape, text):
    """A request that waits for its first token waits for the work of other requests, so all requests in flight are
    correlated."""
    many = [SHAPES[shape](np.random.default_rng(seed), slow_at_times).samples("ttft") for seed in range(150)]
    limit_ms = np.quantile(np.concatenate(many), 0.9)
    assert max(rates(text.format(f"{limit_ms:.6f}"), lambda rng: SHAPES[shape](rng, slow_at_times))) <= MOST


@pytest.mark.parametrize("family", ["tpot", "ttft", "largest_stall"])
def test_an_attainment_counts_as_the_percentile_does(family):
    rng = np.random.default_rng(8)
    runs = [poisson(30, 200, rng, slow_at_times) for _ in range(3)]
    for limit_ms in range(20, 80, 2):
        percentile = judge(f"{family}_p90 <= {limit_ms}ms", *runs)
        attained = judge(f"slo_attainment({family} <= {limit_ms}ms) >= 90%", *runs)
        assert percentile.verdict is attained.verdict
        assert basis_text(percentile).replace("over", "missed") == basis_text(attained)
        lowest = 100 * attained.interval.low
        assert (lowest >= 90) == (attained.verdict is Verdict.PASS)


def test_slo_attainment_fails_although_stall_limit_has_no_exceedances():
    """All streams in step: a stall would be one event for all, and here there is none; half of the requests wait."""
    runs = [measure([make_record(i, ttft_ms=500.0 if i % 2 else 50.0, chunks=100) for i in range(100)])
            for _ in range(3)]
    assert judge("slo_attainment(ttft <= 300ms) >= 90%", *runs).verdict is Verdict.FAIL
    assert judge("slo_attainment(ttft <= 300ms, largest_stall <= 1s) >= 90%", *runs).verdict is Verdict.FAIL
    assert judge("slo_attainment(ttft <= 900ms, largest_stall <= 1s) >= 90%", *runs).verdict is Verdict.INCONCLUSIVE


def test_attainment_cause_is_the_latency_near_limit():
    """Starts differ five times in TPOT, far below its limit, and by a tenth in TTFT, which is near its own."""
    rng = np.random.default_rng(2)
    runs = [measure([make_record(i, intended_ms=2000.0 * i, ttft_ms=float(rng.normal(level, 10)), itl_ms=itl)
                     for i in range(100)]) for level, itl in ((400.0, 0.2), (440.0, 1.0), (480.0, 5.0))]
    alone, both = (judge_slo(parse_slo(f"slo_attainment({limits}) >= 90%"), runs, list("abc"))
                   for limits in ("ttft <= 520ms", "ttft <= 520ms, tpot <= 100s"))
    assert isinstance(alone.cause, StartsDiffer)
    assert alone.numbers["slowdown"] < 3  # the words of a known spread
    assert (both.verdict, both.cause) == (alone.verdict, alone.cause)
    assert reason_text(both) == reason_text(alone)


def test_repeated_seeds_do_not_change_verdict():
    """Three draws of the traffic, each sent three times, with hardly another answer: as three runs are judged."""
    rng = np.random.default_rng(9)
    runs = [poisson(10, 100, rng, slow_at_times) for _ in range(3)]
    for limit_ms in range(24, 60, 4):
        text = f"tpot_p90 <= {limit_ms}ms"
        assert judge(text, *runs * 3, seeds=[1, 2, 3] * 3).verdict is judge(text, *runs, seeds=[1, 2, 3]).verdict


@pytest.mark.parametrize("shape", EACH_SHAPE)
def test_tpot_slo_is_decided_with_clear_margin(shape):
    """The limit is 22 ms. Of three waves a margin of 20 % passes in 84 %, and one of 30 % in 98 % (100 trials each)."""
    clear_ms = 28.6 if shape == "40 streams in 3 waves" else 26.4
    pass_rate, _ = rates(f"tpot_p90 <= {clear_ms}ms", lambda rng: SHAPES[shape](rng, varying), 20)
    _, fail_rate = rates("tpot_p90 <= 19.8ms", lambda rng: SHAPES[shape](rng, varying), 20)
    assert min(pass_rate, fail_rate) >= 0.9


def test_slow_seconds_make_tpot_slo_inconclusive_for_too_few_observations():
    """One request at a time would pass: 4 of 300 are over, 10 % may be."""
    rng = np.random.default_rng(5)
    runs = [poisson(10, 100, rng, slow_at_times) for _ in range(3)]
    worst_ms = sorted(ms for run in runs for ms in run.samples("tpot"))[-5]
    check = judge(f"tpot_p90 <= {worst_ms:.6f}ms", *runs)
    assert (check.verdict, type(check.cause)) == (Verdict.INCONCLUSIVE, ObservationsTooFew)
    assert check.numbers["needed"] > 0
    assert judge(f"tpot_p90 <= {worst_ms * exp(1.0):.6f}ms", *runs).verdict is Verdict.PASS


def test_queue_growth_common_to_all_runs_does_not_prevent_decision():
    """The queue grows in each run in the same way from an empty server on. So the long waits of late requests belong to
    the workload, and the limit on p90 includes them."""
    grows = [measure([make_record(i, intended_ms=10.0 * i, ttft_ms=50 + 10 * i + shift, chunks=30) for i in range(200)])
             for shift in (0.0, 3.0, 6.0)]
    assert judge("ttft_p90 <= 2100ms", *grows).verdict is Verdict.PASS
    assert judge("ttft_p90 <= 1500ms", *grows).verdict is Verdict.FAIL


def test_simultaneous_requests_of_one_run_count_as_a_single_observation():
    rng = np.random.default_rng(4)
    once = in_step(40, [varying(rng, TOKENS).tolist(), (1.5 * varying(rng, TOKENS)).tolist()])
    check = judge("tpot_p90 <= 100ms", once)
    assert (check.verdict, type(check.cause)) == (Verdict.INCONCLUSIVE, RequestsConcurrent)
    alike = [in_step(40, [[20.0] * TOKENS]) for _ in range(2)]
    waiting = judge("ttft_p90 <= 500ms", *alike)
    assert (type(waiting.cause), waiting.numbers["share"]) == (RequestsConcurrent, 0)
    assert judge("tpot_p90 <= 4ms", once).verdict is Verdict.FAIL  # one run fails beyond four times its limit
