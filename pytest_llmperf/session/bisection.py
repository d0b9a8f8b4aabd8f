"""The highest rate within an SLO: bracketing, then bisection. Knows neither servers nor statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log, log1p, log2, sqrt

from pytest_llmperf.model.verdict import Verdict

FACTOR = 2.0
DISPLACEMENTS = 3  # of the rates of quick searches within a step
MOST_STEPS = 12  # of bracketing: a factor of 4096


@dataclass(frozen=True, slots=True)
class TriedRate:
    """One rate that was tried.

    Args:
        rate: requests/s.
        verdict: PASS if the rate is proven to meet the SLO, FAIL if it is proven to miss the SLO, else INCONCLUSIVE.
        holds: whether the measured values meet the SLO, proven or not.
        measured: metric → value over all runs at this rate (a latency in ms); None for a missing metric.
        failures: reasons of the failed requests, most frequent first; "" where none failed.
        runs: number of runs at this rate.
    """

    rate: float
    verdict: Verdict
    holds: bool
    measured: Mapping[str, float | None] = field(default_factory=dict, compare=False)
    failures: str = field(default="", compare=False)
    runs: int = field(default=0, compare=False)

    @property
    def within(self) -> bool:
        """Whether the rate meets the SLO: the proven answer, or for an INCONCLUSIVE verdict the measured answer."""
        return self.verdict is Verdict.PASS or (self.verdict is Verdict.INCONCLUSIVE and self.holds)

    def __str__(self) -> str:
        known = "proven" if self.verdict is not Verdict.INCONCLUSIVE else "one run" if self.runs == 1 else "not decided"
        return f"{self.rate:.4g}/s {'within' if self.within else 'over'} ({known})"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search. Rates are in requests/s.

    Args:
        highest_within: highest tried rate that met the SLO; None if no tried rate met it.
        lowest_over: lowest tried rate that missed the SLO; None if no tried rate missed it.
        points: all tried rates, in order.
    """

    highest_within: float | None
    lowest_over: float | None
    points: tuple[TriedRate, ...]

    def decides(self, rate: float) -> bool:
        """Whether it is proven that this rate is within the SLO or over it, or the rate itself was tried."""
        within = self.proven is not None and self.proven >= rate
        over = self.refuted is not None and self.refuted <= rate
        return within or over or any(point.rate == rate for point in self.points)

    @property
    def proven(self) -> float | None:
        """Highest rate that was proven to be within the SLO; None: none was."""
        return max((point.rate for point in self.points if point.verdict is Verdict.PASS), default=None)

    @property
    def refuted(self) -> float | None:
        """Lowest rate that was proven to be over the SLO; None: none was."""
        return min((point.rate for point in self.points if point.verdict is Verdict.FAIL), default=None)


def search_rate(
    judge: Callable[[float], TriedRate], start: float, precision: float, *, first_factor: float = FACTOR,
    to_beat: float | None = None,
) -> SearchResult:
    """Double or halve from `start` until the limit lies between two rates, then halve the interval on a log scale.

    For an undecided rate the measured answer counts. If undecided rates counted as too high, the result would depend on
    the number of requests.

    Args:
        judge: measures and judges a rate.
        start: the first rate.
        precision: the search ends when the rates on both sides differ by at most this share.
        first_factor: ratio of the first two rates, at most 2. Each further ratio is the square of the ratio before, at
            most 2.
        to_beat: the search ends without a result as soon as this rate or a lower one is proven to miss the SLO.
    """
    points: list[TriedRate] = []

    def within(rate: float) -> bool:
        points.append(judge(rate))
        return points[-1].within

    def hopeless() -> bool:
        return to_beat is not None and points[-1].verdict is Verdict.FAIL and points[-1].rate <= to_beat

    low, high = _bracket(within, start, first_factor, hopeless)
    while low is not None and high is not None and high / low > 1 + precision:
        middle = sqrt(low * high)
        if within(middle):
            low = middle
        else:
            high = middle
    return SearchResult(low, high, tuple(points))


def bracket_of(points: Sequence[TriedRate]) -> tuple[float, float] | None:
    """The highest rate within the SLOs and the lowest rate over them; None if no limit lies between the rates."""
    low = max((point.rate for point in points if point.within), default=None)
    high = min((point.rate for point in points if not point.within), default=None)
    return None if low is None or high is None or low >= high else (low, high)


def halvings(low: float, high: float, precision: float) -> int:
    """Bisection steps until the rates on both sides of the limit differ by at most `precision`."""
    return max(ceil(log2(log(high / low) / log1p(precision))), 0)


def quick_beginning(start: float, precision: float, seed: int) -> tuple[float, float]:
    """The first rate of a quick search, and its ratio to the second rate.

    A quick search takes the first rate as a good guess, and tries a neighbouring rate next. The rates of searches with
    successive seeds are displaced against each other by a third of a step. Otherwise a limit near a tried rate could
    make the ratio of two equal servers a whole step in each pair, and the pairs would not show this error.

    Args:
        start: the guess, in requests/s.
        precision: as in `search_rate`.
        seed: of the search.
    """
    step = final_step(precision)
    return start * step ** (seed % DISPLACEMENTS / DISPLACEMENTS), step


def final_step(precision: float) -> float:
    """Ratio of the two rates on both sides of the limit at the end of a search that begins with `FACTOR`."""
    return float(FACTOR ** (0.5 ** halvings(1.0, FACTOR, precision)))


def _bracket(
    within: Callable[[float], bool], start: float, factor: float, hopeless: Callable[[], bool]
) -> tuple[float | None, float | None]:
    """Neighbouring rates of which the lower is within and the higher is not; None if there is no such rate."""
    rate = start
    upwards = within(rate)
    for _ in range(MOST_STEPS):
        if not upwards and hopeless():
            break
        following = rate * factor if upwards else rate / factor
        if within(following) is not upwards:
            return (rate, following) if upwards else (following, rate)
        rate, factor = following, min(factor**2, FACTOR)
    return (rate, None) if upwards else (None, rate)
