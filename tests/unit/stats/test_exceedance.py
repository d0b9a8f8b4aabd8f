"""How many over the limit prove what, with requests that resemble each other."""

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.design import PRIOR_EFFECT, Count, View, design_effect, effective_fraction, total
from pytest_llmperf.stats.exceedance import Exceedance, exceedance

INF = float("inf")


def independent(over, of, allowed=0.01):
    return Exceedance(Count(over, of), allowed, 1.0, 0.95)


def run_with(over, of):
    """A run whose requests over the limit are spread evenly."""
    marks = {of * i // over for i in range(over)} if over else set()
    return [Count(int(i in marks), 1) for i in range(of)]


@pytest.mark.parametrize(("over", "of", "verdict"), [
    (0, 100, Verdict.INCONCLUSIVE), (4, 100, Verdict.FAIL), (0, 300, Verdict.PASS), (1, 300, Verdict.INCONCLUSIVE),
    (4, 1000, Verdict.PASS),
    (5, 1000, Verdict.INCONCLUSIVE), (16, 1000, Verdict.FAIL), (15, 1000, Verdict.INCONCLUSIVE),
])
def test_independent_requests_are_judged_by_the_table(over, of, verdict):
    assert independent(over, of).verdict is verdict


def test_needed_observations_are_the_smallest_deciding_number():
    assert independent(0, 100).still_needed() == 199
    evaluated = independent(2, 400)
    more = evaluated.still_needed()
    assert independent(2 * (400 + more) / 400, 400 + more).verdict is Verdict.PASS
    assert independent(2 * (399 + more) / 400, 399 + more).verdict is Verdict.INCONCLUSIVE


def test_rate_at_allowed_share_is_never_decided():
    assert independent(10, 1000).still_needed() is None


@given(st.lists(st.floats(1, 1000) | st.just(INF), min_size=1, max_size=400), st.floats(1, 1000), st.floats(0.2, 1),
       st.sampled_from([0.01, 0.05, 0.1, 0.5]), st.floats(0, 2))
def test_the_interval_never_contradicts_the_verdict(values, limit, share_worth, allowed, pass_margin):
    over, margin_count = (sum(value * exp(by) > limit for value in values) for by in (0, pass_margin))
    evaluated = Exceedance(
        Count(over, len(values)), allowed, share_worth, 0.95, pass_margin, Count(margin_count, len(values))
    )
    interval = evaluated.quantile_interval(values)
    assert (interval.high <= limit) == (evaluated.verdict is Verdict.PASS)
    if evaluated.verdict is Verdict.FAIL:
        assert interval.low > limit
    elif len(values) > 100:
        assert interval.low <= limit


def test_limits_of_a_percentile_are_order_statistics():
    """Of 1000, 4 over pass and 16 fail: the fifth and the sixteenth from the top."""
    interval = independent(0, 1000).quantile_interval(list(range(1, 1001)))
    assert (interval.low, interval.high) == (985, 996)


def test_an_interval_that_the_sample_does_not_bound_is_infinite():
    assert independent(0, 100).quantile_interval([1.0] * 100).high == INF


def test_design_effect_without_exceedances_is_prior():
    assert design_effect([Count(0, 100)] * 5, 0.01, 1.5) == PRIOR_EFFECT


def test_design_effect_equals_hand_calculation():
    """Rates 0 and 0.2 around 0.1: 2/1 · (10² + 10²) / (0.1 · 0.9 · 200) = 22.2, of which 20 over outweigh the prior."""
    assert design_effect([Count(0, 100), Count(20, 100)], 0.1, 1.0) == pytest.approx((4 * 1.75 + 20 * 200 / 9) / 24)


def test_runs_with_all_exceedances_keep_effective_sample_size_of_runs():
    """Three runs of a hundred streams in step are three observations, all over: nothing varied that could be known
    badly."""
    all_over = exceedance([View([[Count(1, 1)] * 100] * 3, overlap=100.0)], ["s"] * 3, 0.1, per_step=100.0)
    assert all_over.effective_n == pytest.approx(3)
    assert all_over.verdict is Verdict.FAIL
    none_over = exceedance([View([[Count(0, 1)] * 100] * 3, overlap=100.0)], ["s"] * 3, 0.1, per_step=100.0)
    assert none_over.effective_n < 1


def test_prior_design_effect_counts_simultaneous_requests_as_one_event():
    """What ten streams see at once is one event: 20 observations are two, and nothing over is known as badly."""
    assert design_effect([Count(0, 100)] * 5, 0.01, 1.5, 10.0) == 10
    assert design_effect([Count(0, 100)] * 5, 0.01, 1.5, 1.5) == PRIOR_EFFECT
    assert design_effect([Count(100, 100)] * 5, 0.01, 1.5, 10.0) == 10
    effect = design_effect([Count(0, 100), Count(20, 100)], 0.1, 1.0, 10.0)
    assert effect == pytest.approx((4 * 10 + 2 * 200 / 9) / 6)


def worth_of(*cuts, **how):
    """Of one start, and of each cut its runs."""
    return effective_fraction(
        [View(runs) for runs in cuts], ["s"] * len(cuts[0]), how.pop("allowed", 0.05), 0.95, **how
    ).value


def test_the_worse_of_requests_and_time_counts():
    """Forty streams that stall together are alike, and differ from one stretch to the next; or the other way round."""
    alike = [[Count(1, 10)] * 40]
    stretches = [[Count(40 if at == 3 else 0, 40) for at in range(10)]]
    together = worth_of(alike, stretches, allowed=0.1)
    assert together < worth_of(alike, allowed=0.1) / 10
    assert worth_of(stretches, alike, allowed=0.1) == together


def test_repeated_seeds_halve_effective_fraction():
    """Two runs of one seed, alike in everything, are known as badly as the one."""
    runs = [run_with(30, 600), run_with(20, 600)]
    assert worth_of(runs * 2, seeds=[1, 2, 1, 2]) == pytest.approx(worth_of(runs, seeds=[1, 2]) / 2)


def test_common_trend_within_runs_keeps_effective_fraction():
    """All that is over comes at the end of each run: at one place of it the runs are alike."""
    course = [Count(int(at >= 270), 1) for at in range(300)]
    alike = worth_of([course] * 3, seeds=[1, 2, 3], allowed=0.1)
    assert alike == 1
    assert worth_of([course] * 3, seeds=[1, 1, 1], allowed=0.1) < alike / 10


def test_requests_without_observations_do_not_change_segments():
    """Answers of one token have no TPOT: ten that have one are ten stretches, however many of the others came first."""
    spoken = [Count(int(at == 3), 1) for at in range(10)]
    silent = [Count(0, 0)] * 90
    assert worth_of([silent + spoken]) == worth_of([spoken])


def test_design_effect_is_corrected_for_rate_below_allowed_share():
    clusters = [Count(0, 100), Count(10, 100)]
    effects = [design_effect(clusters, 0.1, growth) for growth in (0, 0.5, 1.5)]
    assert effects == sorted(effects)
    assert effects[0] < effects[2]


def test_many_independent_requests_keep_the_effective_sample_size():
    assert worth_of([run_with(30, 600) for _ in range(5)]) == 1


def test_the_worse_of_runs_and_starts_counts():
    runs = [View([run_with(over, 300) for over in (2, 30, 3, 28)])]
    one_start, two_starts = (
        effective_fraction(runs, starts, 0.05, 0.95, seeds=[1, 2, 1, 2]).value for starts in ("ssss", "abab")
    )
    assert two_starts < one_start


def test_a_pooled_sample_counts_requests_as_clusters():
    """Ten gaps over in one request are one event, not ten."""
    bunched = [[Count(100 if i == 7 else 0, 100) for i in range(100)]]
    spread = [[Count(1, 100) for _ in range(100)]]
    assert worth_of(bunched, allowed=0.01) < worth_of(spread, allowed=0.01) / 10


def alternating(of, slow_from, slow_until):
    """Every other request is over, and all of them in the slow time."""
    return [Count(int(at % 4 == 0 or slow_from <= at < slow_until), 1) for at in range(of)]


def test_measured_independence_keeps_the_effective_sample_size():
    """Nothing is over the limit, and the quartile shows no dependence: 300 requests prove a p99, and 298 do not."""
    even = [alternating(100, 0, 0)] * 3
    evaluated = exceedance([View([[Count(0, 1)] * 100] * 3, [even])], ["s"] * 3, 0.01)
    assert (evaluated.effective_n, evaluated.verdict) == (300, Verdict.PASS)
    unknown = exceedance([View([[Count(0, 1)] * 100] * 3)], ["s"] * 3, 0.01)
    assert unknown.effective_n < 200


def test_dependence_at_quartile_reduces_effective_sample_size():
    slow = [alternating(100, begin, begin + 30) for begin in (0, 40, 70)]
    evaluated = exceedance([View([[Count(0, 1)] * 100] * 3, [slow])], ["s"] * 3, 0.01)
    assert evaluated.effective_n < 100
    assert evaluated.verdict is Verdict.INCONCLUSIVE


def test_single_dependent_run_never_passes():
    run, slow = [[Count(0, 1)] * 5000], [alternating(5000, 1000, 1500)]
    alone = exceedance([View(run, [slow])], ["s"], 0.1)
    assert (alone.bounded, alone.verdict) == (False, Verdict.INCONCLUSIVE)
    assert alone.quantile_interval([1.0] * 5000).high == INF
    assert exceedance([View(run, [[alternating(5000, 0, 0)]])], ["s"], 0.1).verdict is Verdict.PASS
    assert exceedance([View([[Count(1, 1)] * 5000], [slow])], ["s"], 0.1).verdict is Verdict.FAIL


def test_pass_requires_margin_below_limit_and_fail_does_not():
    clear = Exceedance(Count(0, 1000), 0.01, 1.0, 0.95, log(1.1), Count(4, 1000))
    touched = Exceedance(Count(0, 1000), 0.01, 1.0, 0.95, log(1.1), Count(5, 1000))
    over = Exceedance(Count(16, 1000), 0.01, 1.0, 0.95, log(1.1), Count(900, 1000))
    assert [evaluated.verdict for evaluated in (clear, touched, over)] == [
        Verdict.PASS,
        Verdict.INCONCLUSIVE,
        Verdict.FAIL,
    ]
    assert [evaluated.margin_prevents_pass for evaluated in (clear, touched, over)] == [False, True, False]
    assert touched.passes_without_margin
    assert clear.quantile_interval(list(range(1, 1001))).high == pytest.approx(996 * 1.1)


def test_single_observation_is_inconclusive():
    assert exceedance([View([[Count(0, 1)]])], ["s"], 0.01).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("runs", "allowed"), [([[]], 0.01), ([[Count(0, 5)]], 0.0), ([[Count(0, 5)]], 1.0)])
def test_exceedance_without_observations_or_valid_share_is_refused(runs, allowed):
    with pytest.raises(ValueError, match="there must be observations and an allowed share between 0 and 1"):
        exceedance([View(runs)], ["s"], allowed)


def test_total_adds_exceedances_and_observations():
    assert total([Count(1, 5), Count(2, 7)]) == Count(3, 12)


def test_needed_observations_count_new_requests_only():
    """900 observations of requests that were sent three times are worth 300; further ones count whole."""
    count, once = Count(12, 900), Exceedance(Count(4, 300), 0.03, 1.0, 0.95)
    again = Exceedance(count, 0.03, 1 / 3, 0.95, repeats=3.0)
    assert again.still_needed() == once.still_needed() > 0
    assert Exceedance(count, 0.03, 1 / 3, 0.95).still_needed() == pytest.approx(3 * once.still_needed(), abs=3)
