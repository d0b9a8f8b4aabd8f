"""Scales, margins and the default priors of every metric there is."""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.metrics.registry import all_metrics, find
from pytest_llmperf.stats.priors import (
    Kind,
    Margins,
    Prior,
    Scale,
    kind_of,
    margins_for,
    prior_for,
    scale_of,
    worse_when_larger,
)


@pytest.mark.parametrize(("name", "kind"), [
    ("ttft_p50", Kind.TTFT), ("ttft_mean", Kind.TTFT), ("e2el_p50", Kind.TTFT), ("tpot_mean", Kind.TPOT),
    ("itl_p50", Kind.STEP), ("itl_per_token_p50", Kind.STEP), ("itl_mean", Kind.TPOT), ("itl_p75", Kind.TPOT),
    ("tpot_p50", Kind.TPOT), ("output_throughput", Kind.TPOT), ("ttft_p99", Kind.TAIL), ("itl_p99", Kind.TAIL),
    ("tpot_max", Kind.TAIL), ("largest_stall_mean", Kind.TAIL), ("queue_time_mean", Kind.TAIL),
    ("prefix_cache_hit_rate", Kind.SHARE), ("error_rate", Kind.SHARE), ("spec_acceptance_length", Kind.TPOT),
])
def test_metric_has_expected_prior_kind(name, kind):
    assert kind_of(find(name)) is kind


def test_a_larger_value_is_worse_after_reading_whatever_the_direction():
    assert Scale.LOG.read(2.0) == pytest.approx(log(2))
    assert Scale.LOG.read(2.0, worse_when_larger=False) == pytest.approx(-log(2))
    assert Scale.POINTS.read(0.0, worse_when_larger=False) == 0
    assert worse_when_larger(find("tpot_mean"))
    assert not worse_when_larger(find("output_throughput"))
    assert not worse_when_larger(find("prefix_cache_hit_rate"))


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("scale", Scale)
def test_missing_or_infinite_value_is_refused_by_scale(scale, value):
    with pytest.raises(ValueError, match="run's value is"):
        scale.read(value)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_ratio_needs_values_above_0_and_a_difference_does_not(value):
    with pytest.raises(ValueError, match="only values above 0"):
        Scale.LOG.read(value)
    assert Scale.POINTS.read(value) == value


@given(st.floats(-0.5, 0.5), st.sampled_from(Scale), st.booleans())
def test_change_is_recovered_from_distance_on_scale(change, scale, larger):
    before, after = 0.4, 0.4 * (1 + change) if scale is Scale.LOG else 0.4 + change
    distance = scale.read(after, worse_when_larger=larger) - scale.read(before, worse_when_larger=larger)
    assert scale.change(distance, worse_when_larger=larger) == pytest.approx(change, abs=1e-12)


def test_margins_become_distances():
    assert Margins(0.02, 0.05).on(Scale.LOG).tolerated == pytest.approx(log(1.05))
    assert Margins(0.01, 0.03).on(Scale.POINTS) == Margins(0.01, 0.03)
    assert Margins(0, 0.05).on(Scale.LOG).negligible == 0


@pytest.mark.parametrize("margins", [(0.05, 0.05), (0.05, 0.02), (-0.01, 0.05)])
def test_contradictory_margins_are_refused(margins):
    with pytest.raises(ValueError, match="margins of"):
        Margins(*margins)


@pytest.mark.parametrize("figures", [(0, 0.1, 4), (0.1, 0, 4), (0.1, 0.1, 0)])
def test_prior_with_zero_figure_is_refused(figures):
    with pytest.raises(ValueError, match="a prior of"):
        Prior(*figures, "test")


@pytest.mark.parametrize("hardware", ["h200", "cpu", "emulated-h200"])
def test_every_metric_has_a_prior_and_margins(hardware):
    """A tolerated margin below what sessions differ by anyway would leave everything INCONCLUSIVE."""
    for metric in all_metrics().values():
        prior, margins = prior_for(metric, hardware), margins_for(metric, hardware)
        assert prior.source
        assert prior.session_sd <= margins.tolerated
        assert scale_of(metric) is (Scale.POINTS if kind_of(metric) is Kind.SHARE else Scale.LOG)


def test_cpu_priors_have_larger_session_sd():
    for name in ("ttft_p50", "tpot_mean", "itl_p99"):
        assert prior_for(find(name), "cpu").session_sd > prior_for(find(name), "h200").session_sd


def test_priors_include_measured_variation():
    """Between days on other hosts: TPOT 0.31 %, median TTFT 2.7 %; another host moved TTFT by 7 %."""
    tpot, ttft = prior_for(find("tpot_mean"), "h200"), prior_for(find("ttft_p50"), "h200")
    assert tpot.session_sd >= 0.0031
    assert tpot.run_sd >= 0.003
    assert ttft.session_sd >= 0.027
    assert margins_for(find("ttft_p50"), "h200").negligible >= 0.027


def test_decode_step_has_smaller_negligible_margin_than_mean_tpot():
    step, tpot = (margins_for(find(name), "h200") for name in ("itl_p50", "tpot_mean"))
    assert step.negligible < tpot.negligible
    assert step.tolerated == tpot.tolerated
