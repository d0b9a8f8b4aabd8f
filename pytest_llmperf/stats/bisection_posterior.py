"""Which of several ordered builds changed a metric: a posterior over places, from noisy comparisons with the first.

A hypothesis is a place where the metric steps, or two places. The size of a step is normal with mean 0 and a stated sd.
The error of a comparison is normal with a stated sd, times a factor that all comparisons share and that the comparisons
teach (an inverse gamma prior). So the evidence of each hypothesis has a closed form. The build about which the
hypotheses disagree most is compared next (noisy binary search).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

#: Prior probability that two builds changed the metric, if any did.
TWO_CHANGES = 0.1
#: Posterior probability of a place with which the search ends.
DECIDED = 0.98
#: Degrees of freedom of the stated sd of the errors.
ERROR_DF = 4.0
#: Builds between which two changes are searched; among more, one change is searched.
MOST_BUILDS_OF_TWO = 512


@dataclass(frozen=True, slots=True)
class Comparison:
    """A build compared with the first build.

    Args:
        build: index of the build, from 1.
        differences: of each pair of runs, on the metric's scale; above 0 for worse.
        starts: number of server starts of each side.
    """

    build: int
    differences: tuple[float, ...]
    starts: int = 1

    @property
    def effect(self) -> float:
        return fmean(self.differences)


@dataclass(frozen=True)
class ChangePosterior:
    """The posterior of the places after some comparisons.

    Args:
        builds: number of builds, at least 2. The first build is the reference.
        comparisons: at least one.
        step_sd: prior sd of the size of a step, on the metric's scale.
        start_sd: expected sd of a server start, on the metric's scale.
        unusable: indices of builds that cannot be compared. A change cannot be told from a change at the next build.
    """

    builds: int
    comparisons: Sequence[Comparison]
    step_sd: float
    start_sd: float
    unusable: Collection[int] = ()

    @cached_property
    def _weights(self) -> list[float]:
        """1 / variance of each comparison. The pairs of all comparisons show their common sd."""
        df = sum(len(each.differences) - 1 for each in self.comparisons)
        squares = sum((value - each.effect) ** 2 for each in self.comparisons for value in each.differences)
        of_pair = squares / df if df else 2 * self.start_sd**2
        return [1 / (2 * self.start_sd**2 / each.starts + of_pair / len(each.differences)) for each in self.comparisons]

    @cached_property
    def _hypotheses(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Numbers]:
        """First place, second place (`builds` for none) and posterior probability of each hypothesis."""
        number = self.builds
        places = np.arange(1, number)
        first, second = np.triu_indices(number - 1, 1) if number <= MOST_BUILDS_OF_TWO else (places[:0], places[:0])
        firsts, seconds = np.concatenate([places, first + 1]), np.concatenate([np.full(number - 1, number), second + 1])
        weight, weighted = np.zeros(number + 1), np.zeros(number + 1)
        for each, precision in zip(self.comparisons, self._weights, strict=True):
            weight[each.build] += precision
            weighted[each.build] += each.effect * precision
        after, evidence = (np.cumsum(values[::-1])[::-1] for values in (weight, weighted))
        prior = self.step_sd**-2
        two = seconds < number
        w_first, w_second = after[firsts], np.where(two, after[seconds], 0.0)
        e_first, e_second = evidence[firsts], np.where(two, evidence[seconds], 0.0)
        # The precision of both steps is [[w_first + prior, w_second], [w_second, w_second + prior]].
        determinant = (w_first + prior) * (w_second + prior) - w_second**2
        quadratic = (e_first**2 * (w_second + prior) - 2 * e_first * e_second * w_second
                     + e_second**2 * (w_first + prior)) / determinant
        of_two = TWO_CHANGES if two.any() else 0.0
        log_prior = np.where(two, np.log(max(of_two, 1e-300) / max(two.sum(), 1)), np.log((1 - of_two) / (number - 1)))
        # One step leaves the size of the second at its prior, which adds `prior` to the determinant.
        left = sum(each.effect**2 * precision for each, precision in zip(self.comparisons, self._weights, strict=True))
        degrees = ERROR_DF + len(self.comparisons)
        log_posterior = log_prior - np.log(determinant) / 2 - degrees / 2 * np.log(ERROR_DF + left - quadratic)
        posterior = np.exp(log_posterior - log_posterior.max())
        return firsts, seconds, posterior / posterior.sum()

    @cached_property
    def _by_place(self) -> list[Numbers]:
        """Probability of each build as the first place, and as the second place."""
        *places, posterior = self._hypotheses
        return [np.asarray(np.bincount(place, posterior, self.builds + 1)[:self.builds], dtype=np.float64)
                for place in places]

    @cached_property
    def by_build(self) -> Numbers:
        """Probability that each build changed the metric. The first build never did."""
        return np.add(*self._by_place)

    @property
    def two_changes(self) -> float:
        """Probability that two builds changed the metric."""
        _, seconds, posterior = self._hypotheses
        return float(posterior[seconds < self.builds].sum())

    @cached_property
    def culprits(self) -> range:
        """The most probable place: a build with the unusable builds just before it."""
        ends = [build for build in range(1, self.builds) if build not in self.unusable]
        groups = [range(before + 1, end + 1) for before, end in zip([0, *ends], ends, strict=False)]
        return max(groups, key=self._probability)

    @property
    def certainty(self) -> float:
        """Probability of the most probable place."""
        return self._probability(self.culprits)

    def _probability(self, group: range) -> float:
        return float(self.by_build[group.start:group.stop].sum())

    def next_build(self, excluded: Collection[int] = ()) -> int | None:
        """The build about which the hypotheses disagree most; None if the place is decided, or no build is left."""
        if self.certainty >= DECIDED:
            return None
        passed = np.cumsum(self._by_place, axis=1)  # probability that the step is at this build or before
        disagreement = (passed * (1 - passed)).sum(axis=0)
        left = [build for build in range(1, self.builds) if build not in self.unusable and build not in excluded]
        return max(left, key=lambda build: float(disagreement[build]), default=None)

    def size(self) -> tuple[float, float]:
        """Size of the step at the most probable place, and the standard error of the size.

        The size is the mean effect of the builds from this place up to the next probable place, less the mean effect of
        the builds from the previous probable place up to this place.
        """
        first = self.culprits.stop - 1
        firsts, seconds, posterior = self._hypotheses
        best = int(posterior.argmax())
        others = {int(firsts[best]), int(seconds[best])} - set(self.culprits)
        low = max((place for place in others if place < first), default=0)
        high = min((place for place in others if place > first), default=self.builds)
        (level, variance), (level_before, variance_before) = (
            self._mean(range(first, high)), self._mean(range(low, self.culprits.start) if low else range(0)))
        return level - level_before, sqrt(variance + variance_before)

    @property
    def last_in_errors(self) -> float:
        """Difference of the last build from the first, in standard errors."""
        level, variance = self._mean(range(self.builds - 1, self.builds))
        return level / sqrt(variance) if variance else 0.0

    def _mean(self, builds: range) -> tuple[float, float]:
        """Weighted mean effect of some builds, and the variance of the mean; both are 0 without a comparison, because
        the first build equals itself."""
        of_builds = [(each.effect, precision) for each, precision in zip(self.comparisons, self._weights, strict=True)
                     if each.build in builds]
        weight = sum(precision for _, precision in of_builds)
        weighted = sum(effect * precision for effect, precision in of_builds)
        return (weighted / weight, 1 / weight) if weight else (0.0, 0.0)
