"""Alpha of each look, and from differences to verdicts: all primary metrics of one test at one look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ldexp, log, sqrt
from typing import Protocol

from pytest_llmperf.lazy import special
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.interval import t_quantile
from pytest_llmperf.stats.priors import MARGINS_OF_TWO_SESSIONS, Margins
from pytest_llmperf.stats.shift import Shift

#: Runs at each look, and the share of α that is spent by then.
LOOKS = (3, 5, 8)
SPENT = (0.5, 0.75, 1.0)
#: One suite run in a hundred may raise a false alarm.
SUITE_ALPHA = 0.01
#: Error of one SLO, on either side, over all looks at its measurement.
SLO_ALPHA = 0.05
#: Stored sessions from which their spread says something of its own.
ENOUGH_SESSIONS = 3


def spent_share(runs: int) -> float:
    """Share of α that decisions after `runs` runs may have used: 0 to 1."""
    return max((share for look, share in zip(LOOKS, SPENT, strict=True) if runs >= look), default=0.0)


def alpha_of_execution(alpha: float, executions: int) -> float:
    """α of one decision when `executions` executions of its test are pooled. All together use less than 2 α."""
    return ldexp(alpha, 1 - executions)


def alpha_at(
    runs: int, looked_at: int, *, primaries: int, suite_primaries: int, suite_alpha: float = SUITE_ALPHA
) -> float:
    """α of one test's family of primary metrics at this look.

    Args:
        runs: of today's, at this look.
        looked_at: runs at the look before, 0 at the first.
        primaries: metrics that this test judges.
        suite_primaries: metrics that the whole suite judges, at least `primaries`.
        suite_alpha: share of suite runs that may raise a false alarm.

    Raises:
        ValueError: the suite has fewer metrics than the test, or the test has none.
    """
    if not 0 < primaries <= suite_primaries:
        raise ValueError(f"a test of {primaries} primary metrics in a suite of {suite_primaries}")
    share = spent_share(runs) - spent_share(looked_at)
    return suite_alpha * primaries / suite_primaries * max(0.0, share)


#: Of the limit that must lie below the tolerated margin, over all looks together.
PASS_CONFIDENCE = 0.95
#: Share of a PASS's error at each look, with one, two, and more stored sessions: looks resemble each other, and one
#: session shows no spread between sessions. By simulation at exactly the tolerated margin, where runs differ by 3.5 %
#: and sessions by 2 % (1,800 comparisons of one metric each): with the whole error at each look 12.7, 8.4 and 7.1 %
#: pass falsely, with these shares 6.2, 4.8 and 5.5 %.
SHARE_OF_LOOK = (0.2, 0.5, 0.7)
#: How often an unchanged metric passes with a margin learnt from stored sessions.
LEARNT_PASS = 0.975
#: A gross change exceeds so many tolerated margins, or this factor.
GROSS_MARGINS = 5
GROSS_FACTOR = 4.0


class Difference(Protocol):
    """A difference on a metric's scale, above 0 for worse, with its one-sided limits."""

    @property
    def effect(self) -> float: ...

    def lower(self, confidence: float) -> float: ...

    def upper(self, confidence: float) -> float: ...


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric against its baseline, with margins as distances on its scale (`Margins.on`)."""

    shift: Shift
    margins: Margins

    @property
    def gross(self) -> float:
        """Distance that a FAIL or IMPROVED must exceed while few stored sessions show their spread; 0 from then on.

        Against one stored session nothing shows how much sessions differ, and a prior can be several times too small.
        """
        if not self.shift.prior.learnt:
            return min(GROSS_MARGINS * self.margins.tolerated, log(GROSS_FACTOR))
        two = self.shift.sessions == 2
        return min(MARGINS_OF_TWO_SESSIONS * self.margins.negligible, log(GROSS_FACTOR)) if two else 0.0

    def smallest_detectable(self, alpha: float) -> float:
        """Smallest effect, on the metric's scale, that fails with 90 % probability."""
        return max(smallest_detectable_effect(self.shift, self.margins.negligible, alpha),
                   smallest_detectable_effect(self.shift, self.gross, 0.5))


def decide(
    comparisons: Sequence[MetricComparison],
    alpha: float,
    pass_confidence: float = PASS_CONFIDENCE,
) -> list[Verdict]:
    """Verdicts on the primary metrics of one test.

    FAIL: the metric is proven to be worse by more than the negligible margin (Holm's rule over the metrics). PASS: the
    metric is proven to be worse by less than the tolerated margin. IMPROVED: the metric is proven to be better by more
    than the negligible margin. FAIL precedes the other two verdicts. INCONCLUSIVE: none of the three is proven. While
    few stored sessions show their spread, FAIL and IMPROVED need a gross change, too.

    Args:
        comparisons: one entry per metric.
        alpha: error probability of all metrics together at this look; with 0 no metric can fail.
        pass_confidence: confidence of a PASS, over all looks together (`at_each_look`).
    """
    tested = [(comparison.shift, comparison.margins.negligible) for comparison in comparisons]
    worse = holm([shift.p_worse(negligible) for shift, negligible in tested], alpha)
    better = holm([shift.p_better(negligible) for shift, negligible in tested], alpha)
    return [verdict_of(comparison.shift, comparison.margins, at_each_look(pass_confidence, comparison.shift.sessions),
                       worse=bad and _is_shown(comparison.shift, comparison),
                       better=good and _is_shown(comparison.shift.negated(), comparison))
            for comparison, bad, good in zip(comparisons, worse, better, strict=True)]


def _is_shown(shift: Shift, comparison: MetricComparison) -> bool:
    return shift.effect >= comparison.gross and shift.shown_by_most_runs(comparison.margins.negligible)


def verdict_of(
    difference: Difference, margins: Margins, pass_confidence: float, *, worse: bool, better: bool
) -> Verdict:
    """FAIL, then IMPROVED, then PASS if the upper limit at `pass_confidence` is below the tolerated margin.

    Args:
        worse, better: whether a change beyond the negligible margin is proven.
    """
    if worse:
        return Verdict.FAIL
    if better:
        return Verdict.IMPROVED
    return Verdict.PASS if difference.upper(pass_confidence) < margins.tolerated else Verdict.INCONCLUSIVE


def passing_distance(shift: Shift) -> float:
    """Smallest tolerated distance at which an unchanged metric passes with probability `LEARNT_PASS`."""
    confidences = (at_each_look(PASS_CONFIDENCE, shift.sessions), LEARNT_PASS)
    return sum(t_quantile(confidence, shift.df) for confidence in confidences) * shift.se


def at_each_look(pass_confidence: float, sessions: int) -> float:
    """Confidence of the limit at one look, so that a PASS has `pass_confidence` over all looks.

    Args:
        pass_confidence: over all looks.
        sessions: stored ones, 1 or more.
    """
    return 1 - (1 - pass_confidence) * SHARE_OF_LOOK[min(sessions, len(SHARE_OF_LOOK)) - 1]


def smallest_detectable_effect(shift: Shift, negligible: float, alpha: float, power: float = 0.9) -> float:
    """Smallest effect, on the metric's scale, that would have failed with probability `power`.

    Args:
        shift: what was seen.
        negligible: margin, as a distance.
        alpha: of this one comparison; infinite at 0.
        power: of the test, by the noncentral t distribution.
    """
    if alpha <= 0:
        return float("inf")
    beyond = special.nctdtrinc(shift.df, 1 - power, t_quantile(1 - alpha, shift.df))
    return negligible + float(beyond) * shift.se


def detectable_with_more(shift: Shift, negligible: float, alpha: float, more: int) -> float:
    """`smallest_detectable_effect` after `more` runs on each side."""
    runs = (len(shift.differences), shift.stored_runs)
    fewer = sum(1 / count - 1 / (count + more) for count in runs)
    variance = max(shift.se**2 - fewer * shift.run_sd**2, 0.0)
    return smallest_detectable_effect(replace(shift, se=sqrt(variance)), negligible, alpha)


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which null hypotheses Holm's step-down test (Holm, 1979) rejects at family-wise error rate `alpha`; none at 0.

    The smallest of the m p-values is compared with α/m, the next with α/(m − 1), and so on. The first hypothesis that
    is not rejected ends the test, and all remaining hypotheses are kept.
    """
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if alpha <= 0 or p_values[index] > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected
