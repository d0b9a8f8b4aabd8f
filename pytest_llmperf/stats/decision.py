"""From differences to verdicts: all primary metrics of one test at one look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.stats.holm import holm
from pytest_llmperf.stats.mean import t_quantile
from pytest_llmperf.stats.prior import Margins
from pytest_llmperf.stats.shift import Shift

#: Of the limit that must lie below the tolerated margin.
PASS_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric against its baseline, with margins as distances on its scale (`Margins.on`)."""

    shift: Shift
    margins: Margins


def decide(
    compared: Sequence[Comparison], alpha: float, pass_confidence: float = PASS_CONFIDENCE, *, gross: bool = False
) -> list[Verdict]:
    """Verdicts on the primary metrics of one test.

    FAIL where a metric is proven to be worse by more than the negligible margin, by Holm's rule among them. Else PASS
    where it is proven to be worse by less than the tolerated one; IMPROVED where it is proven to be better by more than
    the negligible one. Else INCONCLUSIVE.

    Args:
        compared: one entry per metric.
        alpha: of all of them together at this look; nothing fails at 0.
        pass_confidence: of the upper limit that must lie below the tolerated margin.
        gross: only what is proven although sessions may differ by `spread.GROSS` times the estimate is FAIL or
            IMPROVED (`looks.only_gross`).
    """
    tested = [(one.shift.gross() if gross else one.shift, one.margins.negligible) for one in compared]
    worse = holm([shift.p_worse(negligible) for shift, negligible in tested], alpha)
    better = holm([shift.p_better(negligible) for shift, negligible in tested], alpha)
    return [_verdict(one, worse=bad and one.shift.carried(one.margins.negligible),
                     better=good and one.shift.mirrored().carried(one.margins.negligible),
                     pass_confidence=pass_confidence)
            for one, bad, good in zip(compared, worse, better, strict=True)]


def _verdict(one: Comparison, *, worse: bool, better: bool, pass_confidence: float) -> Verdict:
    if worse:
        return Verdict.FAIL
    if better:
        return Verdict.IMPROVED
    within = one.shift.upper(pass_confidence) < one.margins.tolerated
    return Verdict.PASS if within else Verdict.INCONCLUSIVE


def smallest_seen(shift: Shift, negligible: float, alpha: float, power: float = 0.9) -> float:
    """Smallest effect, on the metric's scale, that would have failed with probability `power`.

    Args:
        shift: what was seen.
        negligible: margin, as a distance.
        alpha: of this one comparison; infinite at 0.
        power: of the test, by the noncentral t distribution.
    """
    from scipy.special import nctdtrinc

    if alpha <= 0:
        return float("inf")
    beyond = nctdtrinc(shift.df, 1 - power, t_quantile(1 - alpha, shift.df))
    return negligible + float(beyond) * shift.se
