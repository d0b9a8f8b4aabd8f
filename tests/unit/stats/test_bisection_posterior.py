"""The posterior of the build that changed a metric, on comparisons whose truth is known."""

import random

import pytest

from pytest_llmperf.stats.bisection_posterior import DECIDED, ChangePosterior, Comparison

STEP, PAIR_SD, START_SD = 0.03, 0.003, 0.0018


def search(levels, seed=1, unusable=()):
    """The posterior at the end of a search, and the builds that were compared."""
    noise = random.Random(seed)

    def compared(build):
        start = noise.gauss(0, START_SD * 2**0.5)
        return Comparison(build, tuple(levels[build] - levels[0] + start + noise.gauss(0, PAIR_SD) for _ in range(3)))

    comparisons = [compared(len(levels) - 1)]
    while True:
        posterior = ChangePosterior(len(levels), comparisons, abs(comparisons[0].effect), START_SD, unusable)
        counts = [each.build for each in comparisons]
        build = posterior.next_build([each for each in counts if counts.count(each) >= 4])
        if build is None:
            return posterior, counts
        comparisons.append(compared(build))


@pytest.mark.parametrize("place", [1, 2, 17, 32, 62, 63])
def test_one_step_is_found_with_a_logarithmic_number_of_comparisons(place):
    posterior, builds = search([STEP * (build >= place) for build in range(64)])
    assert list(posterior.culprits) == [place]
    assert posterior.certainty >= DECIDED
    assert len(builds) <= 10
    effect, se = posterior.size()
    assert effect == pytest.approx(STEP, abs=4 * se)
    assert posterior.two_changes < 0.5


def test_improvement_is_found_as_a_negative_step():
    posterior, _ = search([-STEP * (build >= 20) for build in range(64)])
    assert list(posterior.culprits) == [20]
    assert posterior.size()[0] == pytest.approx(-STEP, abs=0.01)


def test_second_step_is_stated_and_the_size_is_of_one_step():
    posterior, _ = search([STEP * (build >= 10) + STEP * (build >= 40) for build in range(64)])
    assert set(posterior.culprits) <= {10, 40}
    assert posterior.two_changes > 0.5
    assert posterior.size()[0] == pytest.approx(STEP, abs=0.01)


def test_builds_that_cannot_be_compared_leave_a_range():
    posterior, builds = search([STEP * (build >= 31) for build in range(64)], unusable=[30, 31, 32])
    assert list(posterior.culprits) == [30, 31, 32, 33]
    assert not {30, 31, 32} & set(builds)


def test_equal_comparisons_name_no_build_with_certainty():
    comparisons = [Comparison(build, (0.0001, -0.0001, 0.0)) for build in (63, 32, 16)]
    posterior = ChangePosterior(64, comparisons, STEP, START_SD)
    assert posterior.certainty < DECIDED
    assert posterior.next_build() is not None
    assert posterior.next_build(range(64)) is None


def test_probabilities_of_one_change_add_up_to_one_and_two_builds_have_one_place():
    posterior = ChangePosterior(2, [Comparison(1, (0.03, 0.03, 0.031))], STEP, START_SD)
    assert posterior.by_build.tolist() == pytest.approx([0, 1])
    assert posterior.next_build() is None
