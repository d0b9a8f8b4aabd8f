"""Arrival times: right on average, equal for ever, independent of everything else."""

import hashlib
import math
import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.errors import SpecError
from pytest_llmperf.workload import Arrivals, at_times, closed, constant, gamma, poisson, ramp, recorded

OPEN = [constant(8), poisson(8), gamma(8, 0.25), gamma(8, 4), ramp(2, 14)]

# Taken once. A change here means that every stored baseline was measured under other arrivals.
GOLDEN = {
    "constant(8)": "c0dda51e232ffaab",
    "poisson(8)": "29253a47aa050668",
    "gamma(8, burstiness=0.25)": "91381f09f00dce72",
    "gamma(8, burstiness=4)": "3ce36d8e31951af1",
    "ramp(2, 14)": "73f15daea1868d61",
}


def offsets_s(arrivals: Arrivals, count: int = 2000, seed: int = 0) -> list[float]:
    offsets = arrivals.offsets_ns(count, seed)
    assert offsets is not None
    return [ns / 1e9 for ns in offsets]


def gaps_s(arrivals: Arrivals, count: int = 2000, seed: int = 0) -> list[float]:
    times = [0.0, *offsets_s(arrivals, count, seed)]
    return [b - a for a, b in pairwise(times)]


@pytest.mark.parametrize("arrivals", OPEN, ids=str)
def test_arrival_offsets_match_golden_digests(arrivals):
    text = ",".join(map(str, arrivals.offsets_ns(500, 7)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == GOLDEN[str(arrivals)]


@pytest.mark.parametrize("arrivals", OPEN, ids=str)
def test_offsets_ascend_from_zero_or_later(arrivals):
    offsets = arrivals.offsets_ns(300, 3)
    assert len(offsets) == 300
    assert offsets[0] >= 0
    assert list(offsets) == sorted(offsets)


def test_constant_keeps_one_gap_from_zero_on():
    assert constant(4).offsets_ns(4, 0) == (0, 250_000_000, 500_000_000, 750_000_000)


@pytest.mark.parametrize("arrivals", [poisson(8), gamma(8, 0.25), gamma(8, 4), ramp(2, 14)], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_last_arrival_is_at_count_over_rate_for_every_seed(arrivals, seed):
    assert arrivals.offsets_ns(300, seed)[-1] == pytest.approx(300 / 8 * 1e9, abs=10)


@pytest.mark.parametrize("burstiness", [0.25, 1, 4])
def test_gap_variation_follows_the_burstiness(burstiness):
    """Gamma gaps of shape k have a coefficient of variation of 1/sqrt(k)."""
    gaps = gaps_s(gamma(10, burstiness), count=20_000)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_poisson_gaps_are_exponential():
    gaps = sorted(gaps_s(poisson(10), count=20_000))
    distance = max(abs((i + 1) / len(gaps) - (1 - math.exp(-10 * gap))) for i, gap in enumerate(gaps))
    assert distance < 1.63 / math.sqrt(len(gaps))  # Kolmogorov-Smirnov, 1 %


def test_gamma_gaps_are_gamma_distributed():
    from scipy.stats import gamma as law
    from scipy.stats import kstest

    for shape in (0.3, 2.5):
        assert kstest(gaps_s(gamma(1, shape), count=5000), law(shape, scale=1 / shape).cdf).pvalue > 0.001


def test_gamma_arrivals_with_burstiness_1_equal_poisson_arrivals():
    assert gamma(8, 1) == poisson(8)
    assert gamma(8, 1).offsets_ns(50, 1) == poisson(8).offsets_ns(50, 1)


def test_ramp_goes_from_one_rate_to_the_other():
    times = offsets_s(ramp(2, 18), count=4000)
    span = times[-1]
    assert span == pytest.approx(400)
    first, last = (sum(lo <= t / span < lo + 0.1 for t in times) / (span / 10) for lo in (0.0, 0.9))
    assert first == pytest.approx(2.8, rel=0.25)
    assert last == pytest.approx(17.2, rel=0.15)


def test_decreasing_or_level_ramp_has_expected_duration():
    assert ramp(14, 2).offsets_ns(100, 0)[-1] == pytest.approx(100 / 8 * 1e9, abs=10)
    assert ramp(8, 8).offsets_ns(100, 0) == pytest.approx(poisson(8).offsets_ns(100, 0), abs=10)


def test_ramp_to_nearly_zero_rate_has_increasing_offsets():
    """Rounding takes the square of the end rate below zero."""
    for seed in range(50):
        offsets = ramp(1000, 1e-6).offsets_ns(5, seed)
        assert list(offsets) == sorted(offsets)
        assert offsets[-1] == pytest.approx(2 * 5 / 1000 * 1e9, rel=1e-6)


def test_seeds_differ_and_repeat():
    assert poisson(8).offsets_ns(50, 1) != poisson(8).offsets_ns(50, 2)
    assert poisson(8).offsets_ns(50, 1) == poisson(8).offsets_ns(50, 1)


def test_at_times_are_kept():
    assert at_times((0, 0.5, 0.5, 2)).offsets_ns(3, 9) == (0, 500_000_000, 500_000_000)
    assert at_times([1]).capacity == 1


def test_closed_loop_has_concurrency_but_no_arrival_times():
    assert closed(4).offsets_ns(10, 0) is None
    assert closed(4).concurrency == 4
    assert poisson(1).concurrency is None


@given(st.floats(0.01, 1e4), st.floats(0.05, 50), st.integers(1, 60), st.integers(0, 2**64))
def test_gamma_offsets_are_sorted_and_end_at_given_rate(rate, burstiness, count, seed):
    offsets = gamma(rate, burstiness).offsets_ns(count, seed)
    assert list(offsets) == sorted(offsets)
    assert offsets[-1] == round(count / rate * 1e9)


def test_values_hash_and_compare():
    assert {poisson(8), poisson(8.0), closed(4)} == {poisson(8), closed(4)}


@pytest.mark.parametrize(("arrivals", "text"), [
    (constant(0.5), "constant(0.5)"), (poisson(8.0), "poisson(8)"), (gamma(8, 0.5), "gamma(8, burstiness=0.5)"),
    (ramp(1, 2), "ramp(1, 2)"), (at_times([0, 1.5]), "at_times((0, 1.5,))"), (closed(3), "closed(3)"),
    (poisson(50).at_most(250), "poisson(50).at_most(250)"),
])
def test_text_of_arrival_process_evaluates_to_equal_process(arrivals, text):
    assert str(arrivals) == repr(arrivals) == text
    assert eval(text) == arrivals


def test_limit_of_requests_in_flight_keeps_times_and_rate():
    limited = poisson(8).at_most(4)
    assert (limited.concurrency, limited.mean_rate, limited.capacity) == (4, 8, None)
    assert limited.offsets_ns(20, 3) == poisson(8).offsets_ns(20, 3)
    assert limited.at_rate(2) == poisson(2).at_most(4)
    assert at_times([0, 1]).at_most(1).capacity == 2


@pytest.mark.parametrize(("make", "part"), [
    (lambda: constant(0), "rate must be at least 1e-09, got 0"),
    (lambda: poisson(-1), "rate"),
    (lambda: poisson(1e-300), "rate must be at least 1e-09"),
    (lambda: constant(1e300), "rate must be at most 1e\\+09"),
    (lambda: poisson(10**400), "finite"),
    (lambda: gamma(8, 1e308), "burstiness must be at most"),
    (lambda: ramp(1e200, 1), "start_rate must be at most"),
    (lambda: poisson(float("nan")), "finite"),
    (lambda: poisson("8"), "finite number, got '8'"),
    (lambda: poisson(True), "finite number"),
    (lambda: gamma(8, 0), "burstiness"),
    (lambda: gamma(8, 0.001), "burstiness must be at least 0.05, got 0.001"),
    (lambda: ramp(0, 8), "start_rate"),
    (lambda: at_times(()), "at least one"),
    (lambda: at_times((0, 2, 1.5)), r"ascending order, and times_s\[2\] is 1.5 after 2. Sort them"),
    (lambda: at_times((0, -1)), r"times_s\[1\] must be at least 0, got -1"),
    (lambda: at_times((0, float("nan"))), r"times_s\[1\] must be a finite number, got nan"),
    (lambda: at_times(["a"]), r"times_s\[0\] must be a finite number, got 'a'"),
    (lambda: at_times(5), r"give the times as a list, at_times\(\[0, 0.5, 2\]\), got 5"),
    (lambda: at_times(None), "got None"),
    (lambda: closed(0), "concurrency must be at least 1"),
    (lambda: closed(1.5), "integer"),
    (lambda: poisson(8).at_most(0), "at_most: limit must be at least 1"),
    (lambda: closed(8).at_most(4), r"Write closed\(4\)"),
    (lambda: recorded().at_most(4), "times of a trace have no limit"),
])
def test_invalid_arrival_process_is_refused_in_one_paragraph(make, part):
    with pytest.raises(SpecError, match=part) as caught:
        make()
    assert "\n" not in str(caught.value)
