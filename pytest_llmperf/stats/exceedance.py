"""Tests whether a percentile is below its limit, by counting exceedances.

p99 ≤ L is true if at most 1 % of the observations exceed L. PASS and FAIL are exact one-sided binomial tests on the
effective sample size. The interval of the percentile inverts the same tests, so it never contradicts them. If server
starts differ, a PASS must also hold for the limit lowered by the pass margin. A single run with dependent requests
cannot bound slow changes of its server. Such a run never passes, and it fails only what is grossly over the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.design import (
    GROWTH_LEVELLED_STARTS,
    GROWTH_STARTS,
    Count,
    View,
    effective_fraction,
    mean_repeats,
    total,
)
from pytest_llmperf.stats.interval import Interval, at_least, at_most, fail_limit, pass_limit
from pytest_llmperf.stats.segments import independent_segments

#: More requests than this are not asked for.
MOST_REQUESTS = 1_000_000
#: How many times the limit a single run with dependent requests must exceed to FAIL. False FAIL at the exact limit
#: behind a queue at 95 % load (300 requests, 300 trials, `ttft_p50`): factor 1 31 %, 2 9 %, 3 3 %, 4 0.7 %.
GROSS = 4


@dataclass(frozen=True, slots=True)
class Exceedance:
    """What a count of observations over a limit proves.

    Args:
        count: exceedances and observations.
        allowed: allowed exceedance rate.
        effective_fraction: effective sample size ÷ number of observations.
        confidence: confidence of each one-sided test.
        pass_margin: log ratio by which a PASS must stay below the limit; 0 without a margin.
        count_at_margin: exceedances of the limit lowered by `pass_margin`; None without a margin.
        repeats: mean number of runs that sent the same request. A further observation is of a new request, so it adds
            `repeats` times the information.
        single_segment: whether a run serves all its requests at the same time, so that only further runs add
            information.
        bounded: whether the data can bound slow changes of the server. If not, no PASS is possible.
        gross: exceedances of `GROSS` times the limit. If the data are not bounded, only these can prove a FAIL. None
            for a share: then only a share above `GROSS` times the allowed rate is a FAIL.
        by_level: whether a PASS rests on the level model (`pass_margin.level_pass_margin`).
    """

    count: Count
    allowed: float
    effective_fraction: float
    confidence: float
    pass_margin: float = 0.0
    count_at_margin: Count | None = None
    repeats: float = 1.0
    single_segment: bool = False
    bounded: bool = True
    gross: Count | None = None
    by_level: bool = False

    @property
    def effective_n(self) -> float:
        return self.count.of * self.effective_fraction

    @property
    def verdict(self) -> Verdict:
        return self._verdict(self.count.of)

    @property
    def margin_prevents_pass(self) -> bool:
        """Whether only the pass margin prevents a PASS, with these observations or with any larger number."""
        if self.verdict is not Verdict.INCONCLUSIVE or self.passes_without_margin:
            return self.verdict is Verdict.INCONCLUSIVE
        return self.still_needed() is None and self._without_margin.still_needed() is not None

    @property
    def passes_without_margin(self) -> bool:
        """Whether the verdict would be PASS without the pass margin."""
        return replace(self._without_margin, bounded=True).verdict is Verdict.PASS

    @property
    def _without_margin(self) -> Exceedance:
        return replace(self, pass_margin=0.0, count_at_margin=None)

    def still_needed(self) -> int | None:
        """Further observations until the exceedance rate is decided; None for a rate too close to the allowed rate."""
        low = high = self.count.of
        while self._verdict(high) is Verdict.INCONCLUSIVE:
            low, high = high, high * 2
            if high > MOST_REQUESTS:
                return None
        while low + 1 < high:
            middle = (low + high) // 2
            decided = self._verdict(middle) is not Verdict.INCONCLUSIVE
            low, high = (low, middle) if decided else (middle, high)
        return high - self.count.of

    def quantile_interval(self, values: Sequence[float]) -> Interval:
        """Interval of the percentile between order statistics; infinite on a side that the sample cannot bound.

        Args:
            values: all observations, with infinity for failed requests.
        """
        falling = sorted(values, reverse=True)
        few = pass_limit(len(falling), self.allowed, self.confidence, self.effective_fraction)
        many = fail_limit(len(falling), self.allowed, self.confidence, self.effective_fraction)
        unbounded = few is None or few >= len(falling) or not self.bounded
        high = float("inf") if few is None or unbounded else falling[few] * exp(self.pass_margin)
        low = (falling[-1] if many is None else falling[many - 1]) / (1 if self.bounded else GROSS)
        return Interval(low, high, self.confidence)

    def _verdict(self, of: float) -> Verdict:
        """The verdict that `of` observations would have at the observed exceedance rates."""
        n = self.effective_n + (of - self.count.of) * self.effective_fraction * self.repeats
        alpha, exceeding = 1 - self.confidence, self.count_at_margin or self.count
        if self.bounded and at_most(n * exceeding.over / exceeding.of, n, self.allowed) <= alpha:
            return Verdict.PASS
        failing, allowed = self.count, self.allowed
        if not self.bounded:
            failing, allowed = (failing, min(1.0, GROSS * allowed)) if self.gross is None else (self.gross, allowed)
        over = n * failing.over / failing.of
        return Verdict.FAIL if at_least(over, n, allowed) <= alpha else Verdict.INCONCLUSIVE


def exceedance(views: Sequence[View], starts: Sequence[str], allowed: float, confidence: float = 0.95, *,
               pass_margin: float = 0.0, count_at_margin: Count | None = None, seeds: Sequence[int] | None = None,
               per_step: float = 1.0, gross: Count | None = None) -> Exceedance:
    """Judge an exceedance rate.

    Args:
        views: groupings of the runs' observations (`design.View`), by request first.
        starts: server start of each run.
        allowed: allowed exceedance rate, between 0 and 1.
        confidence: confidence of each one-sided test.
        pass_margin, count_at_margin: pass margin and its exceedances (`pass_margin.start_pass_margin`), see
            `Exceedance`.
        seeds: seed of each run; None if all seeds differ.
        per_step: mean number of observations per server step, see `design.effective_fraction`.
        gross: exceedances of `GROSS` times the limit, see `Exceedance`.

    Raises:
        ValueError: there are no observations, or `allowed` is not between 0 and 1.
    """
    by_request = views[0]
    everything = total([total(run) for run in by_request.over])
    if not everything.of or not 0 < allowed < 1:
        raise ValueError(f"there must be observations and an allowed share between 0 and 1, got {everything.of} "
                         f"observations and {allowed}")
    growth = GROWTH_STARTS if count_at_margin is None else GROWTH_LEVELLED_STARTS
    each = effective_fraction(views, starts, allowed, confidence, growth, seeds=seeds, per_step=per_step)
    return Exceedance(
        everything,
        allowed,
        each.value,
        confidence,
        pass_margin,
        count_at_margin,
        mean_repeats(seeds) if seeds else 1.0,
        single_segment=independent_segments([len(run) for run in by_request.over], by_request.overlap) < 2,
        bounded=each.bounded,
        gross=gross,
    )


def or_by_level(counted: Exceedance, views: Sequence[View], starts: Sequence[str], pass_margin: float, *,
                seeds: Sequence[int], at_once: float = 1.0) -> Exceedance:
    """The result of the level model if this result is PASS; else the counted result.

    Args:
        counted: result at the limit itself, INCONCLUSIVE and bounded.
        views: groupings at the limit lowered by `pass_margin`.
        starts, seeds, at_once: as `starts`, `seeds` and `per_step` of `exceedance`.
        pass_margin: pass margin (log ratio) for differences between server starts and for slow changes.
    """
    each = effective_fraction(views, starts, counted.allowed, counted.confidence, GROWTH_LEVELLED_STARTS, seeds=seeds,
                              per_step=at_once, given_level=True)
    exceeding = total([total(run) for run in views[0].over])
    modelled = replace(
        counted, effective_fraction=each.value, pass_margin=pass_margin, count_at_margin=exceeding, by_level=True
    )
    return modelled if modelled.verdict is Verdict.PASS else counted
