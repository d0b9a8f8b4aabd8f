"""How far a check is from its limit."""

from __future__ import annotations

from math import copysign

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.slo.model import Comparison


def headroom(check: CheckResult) -> float | None:
    """How far the measured value is on the good side of the limit, as a share of the limit; None without a distance."""
    measured = check.facts.get("proven_rate", check.estimate)
    return None if measured is None else room(check, measured)


def room(check: CheckResult, value: float) -> float | None:
    """The same of any value."""
    limit = deciding_limit(check)
    if not limit or check.comparison in (None, Comparison.EQUAL):
        return None
    distance = limit - value if check.comparison is Comparison.AT_MOST else value - limit
    return distance / abs(limit)


def deciding_limit(check: CheckResult) -> float | None:
    """The limit that the verdict rests on: a comparison fails beyond its negligible margin, however much is tolerated.
    """
    if check.verdict is Verdict.FAIL and check.limit is not None and "negligible" in check.facts:
        return copysign(check.facts["negligible"], check.limit)
    return check.limit
