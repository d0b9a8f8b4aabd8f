"""Which sessions are kept, and when a person must say so."""

import random
from dataclasses import replace
from math import exp, inf, log

import pytest

from pytest_llmperf.baseline.rules import (
    comparable_sessions_on,
    far_from_anchor,
    gradual_drift,
    merge_runs,
    newest_sessions,
    outlier_shifts,
    sessions_at_level,
    tolerances,
    tolerated_distance,
)
from pytest_llmperf.metrics.registry import all_metrics
from pytest_llmperf.results.levels import change, mean_level, offset
from pytest_llmperf.stats.priors import margins_for

MARGINS = tolerances(all_metrics(), {}, "h200")


def ids(sessions):
    return [int(session.id[-2:]) for session in sessions]


def sessions_of(make, values, metric="tpot_mean"):
    return [make.session(i, anchor=i == 0, **{metric: value}) for i, value in enumerate(values)]


def test_offsets_are_paired_by_seed(make):
    """Seeds differ by 20 % and the sessions by 1 %. The offset is 1 %, even if a session has two runs of the same
    seed."""
    first = make.session(0, tpot_mean=(10.0, 12.0, 8.0))
    other = make.session(1, tpot_mean=(10.1, 12.0, 12.24), runs=((0, 1), (1, 1), (1, 2)))
    assert offset(other, first, "tpot_mean") == pytest.approx(log(1.01))


def test_offsets_without_a_common_seed_compare_means(make):
    first = make.session(0, tpot_mean=(10.0, 10.0))
    other = make.session(1, tpot_mean=(11.0, 11.0), runs=((5, 1), (6, 1)))
    assert offset(other, first, "tpot_mean") == pytest.approx(log(1.1))


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [(0.0, 0.0, 0.0), (0.0, 1.0, inf), (1.0, 0.0, inf), ((None, 2.0), (4.0, 4.0), log(0.5)), (None, 1.0, None)],
)
def test_offset_of_zero_values_is_infinite_and_of_missing_values_unknown(make, first, other, expected):
    distance = offset(make.session(0, tpot_mean=first), make.session(1, tpot_mean=other), "tpot_mean")
    assert distance == expected or distance == pytest.approx(expected)


def test_levels_are_means_over_sessions(make):
    sessions = [make.session(0, tpot_mean=(1.0, 1.0, 1.0, 1.0)), make.session(1, tpot_mean=(2.0, 3.0))]
    assert mean_level(sessions, "tpot_mean") == pytest.approx(1.75)
    assert mean_level(sessions, "ttft_p50") is None


def test_change_of_share_is_measured_in_percentage_points(make):
    first, other = (make.session(i, prefix_cache_hit_rate=share) for i, share in enumerate((0.0, 0.04)))
    assert offset(other, first, "prefix_cache_hit_rate") == pytest.approx(0.04)


def test_change_is_shown_in_percent_or_percentage_points():
    assert change("tpot_mean", log(0.9)) == "-10.0 %"
    assert change("tpot_mean", inf) == "from or to 0"
    assert change("prefix_cache_hit_rate", 0.02) == "+2.0 pp"


def test_update_tolerances_equal_margins_of_comparison():
    """One table: what a comparison tolerates is no outlier, whatever the hardware and the test's own margins."""
    for kind in ("h200", "cpu"):
        limits = tolerances(all_metrics(), {}, kind)
        assert limits == {name: margins_for(metric, kind).tolerated for name, metric in all_metrics().items()}
    assert (MARGINS["ttft_p50"], MARGINS["tpot_mean"], MARGINS["itl_p99"]) == (0.15, 0.05, 0.15)
    assert tolerances(["itl_p99"], {"itl_p99": 0.3}, "h200") == {"itl_p99": 0.3}
    assert tolerated_distance("tpot_mean", MARGINS) == pytest.approx(log(1.05))
    assert tolerated_distance("prefix_cache_hit_rate", MARGINS) == 0.03


def test_other_host_counts_as_one_session(make):
    sessions = [replace(make.session(i, tpot_mean=1.0), host=host) for i, host in enumerate("aaab")]
    assert [comparable_sessions_on(sessions, host) for host in "abc"] == [4, 4, 2]


def test_the_oldest_drops_out_and_never_the_anchor(make):
    sessions = sessions_of(make, [1.0] * 12)
    assert ids(newest_sessions(sessions)) == [0, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert ids(newest_sessions(sessions[:10])) == list(range(10))


def test_rerun_adds_runs_to_session(make):
    first = make.session(1, anchor=True, accepted="why", tpot_mean=(1.0, 2.0), ttft_p50=(5.0, 6.0))
    again = make.session(1, tpot_mean=(1.0, 2.5), itl_mean=(None, 3.0))
    both = merge_runs(first, again)
    assert both.runs == ((0, 1), (1, 1), (0, 1), (1, 1))
    assert both.values("tpot_mean") == (1.0, 2.0, 1.0, 2.5)
    assert both.values("ttft_p50") == (5.0, 6.0, None, None)
    assert both.values("itl_mean") == (None, None, None, 3.0)
    assert (both.anchor, both.accepted) == (True, "why")
    assert merge_runs(both, again) == both
    assert merge_runs(first, first) == first


def test_gradual_drift_above_margin_is_detected(make):
    """Fault 61: +2 % five times, each within the margin."""
    values, refused = [100.0], []
    for step in range(1, 6):
        values.append(100 * 1.02**step)
        refused.append(bool(gradual_drift(sessions_of(make, values), ["tpot_mean"], MARGINS)))
    assert refused == [False, False, False, False, True]
    (shift,) = gradual_drift(sessions_of(make, values), ["tpot_mean"], MARGINS)
    assert (shift.metric, shift.distance > 0) == ("tpot_mean", True)
    assert "+5.1 % over 6 sessions since the anchor 20260100T000000Z-000000, tolerated are +5.0 %" in shift.text
    assert not gradual_drift(sessions_of(make, values), ["tpot_mean"], {"tpot_mean": 0.06})


def test_gradual_drift_downwards_is_found(make):
    (shift,) = gradual_drift(sessions_of(make, [100.0, 90, 90, 90]), ["tpot_mean"], MARGINS)
    assert shift.distance < 0
    assert shift.text.endswith("tolerated are -4.8 %")  # 1 ÷ 1.05


def test_gradual_drift_is_looked_for_in_primaries_only(make):
    sessions = [make.session(i, anchor=not i, tpot_mean=1.0, ttft_p50=1.0 + i) for i in range(4)]
    assert not gradual_drift(sessions, ["tpot_mean"], MARGINS)
    assert gradual_drift(sessions, ["tpot_mean", "ttft_p50"], MARGINS)[0].metric == "ttft_p50"


def test_new_primary_without_values_in_the_anchor_shows_no_gradual_drift(make):
    sessions = [make.session(0, anchor=True, tpot_mean=1.0), make.session(1, tpot_mean=1.0, ttft_p50=9.0)]
    assert not gradual_drift(sessions, ["ttft_p50"], MARGINS)


@pytest.mark.parametrize(
    ("others", "value", "outlier"),
    [
        ([100.0], 104.0, False),
        ([100.0], 106.0, True),
        ([100.0], 94.0, True),
        ([100, 100.5, 99.5, 100], 106.0, True),
        ([100, 97, 103, 98, 102], 106.0, False),  # they spread: 4 sd are more than the margin
        ([100, 97, 103, 98, 102], 120.0, True),
        ([], 106.0, False),
    ],
)
def test_outlier_exceeds_margin_and_four_sd_of_sessions(make, others, value, outlier):
    outliers = outlier_shifts(make.session(99, tpot_mean=value), sessions_of(make, others), ["tpot_mean"], MARGINS)
    assert bool(outliers) is outlier
    if outliers:
        assert outliers[0].distance == pytest.approx(log(value / 100), abs=0.01)


def test_session_beyond_tolerated_margin_from_anchor_gives_shift(make):
    anchor = make.session(0, anchor=True, tpot_mean=100.0)
    assert not far_from_anchor(make.session(3, tpot_mean=104.0), anchor, ["tpot_mean"], MARGINS)
    (shift,) = far_from_anchor(make.session(3, tpot_mean=106.0), anchor, ["tpot_mean"], MARGINS)
    assert "tpot_mean lies +6.0 % from the anchor" in shift.text


def test_three_contaminated_sessions_do_not_hide_an_outlier(make):
    """Fault 60 of tests/faults/README.md. The mean and sd of contaminated sessions would accept the outlier; the median
    and the median absolute deviation refuse it."""
    window = sessions_of(make, [100, 100.4, 99.7, 100.2, 99.9, 100.1, 131, 128, 133])
    assert outlier_shifts(make.session(99, tpot_mean=130.0), window, ["tpot_mean"], MARGINS)
    assert not outlier_shifts(make.session(99, tpot_mean=100.3), window, ["tpot_mean"], MARGINS)


def test_tails_have_a_wider_margin(make):
    others = sessions_of(make, [100.0], metric="itl_p99")
    assert not outlier_shifts(make.session(99, itl_p99=112.0), others, ["itl_p99"], MARGINS)
    assert outlier_shifts(make.session(99, itl_p99=117.0), others, ["itl_p99"], MARGINS)


def test_accepted_level_keeps_nearby_sessions(make):
    sessions = sessions_of(make, [100.0, 102.0, 104.0])
    remaining = sessions_at_level(make.session(99, tpot_mean=106.0), sessions, ["tpot_mean"], MARGINS)
    assert ids(remaining) == [1, 2]
    assert not any(session.anchor for session in remaining)
    assert sessions_at_level(make.session(99, tpot_mean=200.0), sessions, ["tpot_mean"], MARGINS) == ()


@pytest.mark.parametrize("sd", [0.003, 0.005, 0.01])
def test_steady_sessions_are_hardly_ever_refused(make, sd):
    """What is known of mean TPOT (0.3 % between hosts) and of good metrics: ten sessions, nothing changed."""
    rng = random.Random(1)
    refused = 0
    for _ in range(200):
        sessions = sessions_of(make, [100 * exp(rng.gauss(0, sd))])
        for number in range(1, 10):
            new = make.session(number, tpot_mean=100 * exp(rng.gauss(0, sd)))
            refused += bool(outlier_shifts(new, sessions, ["tpot_mean"], MARGINS))
            refused += bool(gradual_drift([*sessions, new], ["tpot_mean"], MARGINS))
            sessions.append(new)
    assert refused <= (0 if sd < 0.01 else 4)
