"""How much slower the typical server start may be than those that were seen."""

from math import exp, sqrt

import pytest

from pytest_llmperf.stats.segments import LARGEST_MARGIN, MARGIN_HALF_WIDTHS, start_pass_margin

INF = float("inf")


def test_pass_margin_of_single_start_is_zero():
    assert start_pass_margin([[1.0, 2.0], [8.0]], ["s", "s"], 0.95) == 0


def test_pass_margin_of_starts_matches_hand_calculation():
    """Levels e⁰, e⁰·¹ and e⁰·²: sd 0.1, t(2) 2.92. Failed requests and zeros say nothing of a level."""
    values = [[exp(-1), exp(1)], [exp(0.1), INF, 0.0], [exp(0.2)], [exp(0.2)]]
    margin = start_pass_margin(values, ["a", "b", "c", "c"], 0.95)
    assert margin == pytest.approx(MARGIN_HALF_WIDTHS * 2.919986 * 0.1 / sqrt(3))


def test_pass_margin_is_limited_to_largest_margin():
    """At the confidence of a sixth execution t is so large that e to it is none."""
    assert start_pass_margin([[5.0], [9000.0]], ["a", "b"], 1 - 0.05 / 2**5) == LARGEST_MARGIN
