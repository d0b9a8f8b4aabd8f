"""How far apart two sessions are in a metric, seed by seed: logarithms of ratios, or points of a share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf, isfinite, log
from statistics import fmean

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.results.baseline import StoredSession
from pytest_llmperf.stats.priors import Scale, scale_of, worse_when_larger


def offset(session: StoredSession, reference: StoredSession, metric: str) -> float | None:
    """Mean distance from the reference on the metric's scale, over the seeds that both have, else over all.

    None if either has no value; infinite if one side of a ratio is 0.
    """
    ours, theirs = _by_seed(session, metric), _by_seed(reference, metric)
    if not ours or not theirs:
        return None
    scale, shared = scale_of(find(metric)), ours.keys() & theirs.keys()
    if not shared:
        return _distance(_pooled(ours), _pooled(theirs), scale)
    return fmean(_distance(fmean(ours[seed]), fmean(theirs[seed]), scale) for seed in sorted(shared))


def offsets(sessions: Sequence[StoredSession], reference: StoredSession, metric: str) -> list[float]:
    """Offset of each session that has the metric from the reference session."""
    distances = (offset(session, reference, metric) for session in sessions)
    return [value for value in distances if value is not None]


def session_mean(session: StoredSession, metric: str) -> float | None:
    """Mean over its runs; None if it has no value."""
    available_values = [value for value in session.values(metric) if value is not None]
    return fmean(available_values) if available_values else None


def mean_level(sessions: Sequence[StoredSession], metric: str) -> float | None:
    """Mean over sessions of their means; None if none has a value."""
    means = [mean for session in sessions if (mean := session_mean(session, metric)) is not None]
    return fmean(means) if means else None


def change(metric: str, distance: float) -> str:
    """A distance on a metric's scale as people read it.

    >>> change("tpot_mean", log(1.05)), change("tpot_mean", inf), change("prefix_cache_hit_rate", -0.05)
    ('+5.0 %', 'from or to 0', '-5.0 pp')
    """
    if not isfinite(distance):
        return "from or to 0"
    scale = scale_of(find(metric))
    return f"{100 * scale.change(distance):+.1f} {'%' if scale is Scale.LOG else 'pp'}"


def change_for_the_worse(metric: str, distance: float) -> str:
    """A distance above 0 for worse, as people read the change of the metric.

    >>> change_for_the_worse("tpot_mean", log(1.05)), change_for_the_worse("output_throughput", log(1.25))
    ('+5.0 %', '-20.0 %')
    """
    return change(metric, distance if worse_when_larger(find(metric)) else -distance)


def _by_seed(session: StoredSession, metric: str) -> dict[int, list[float]]:
    values_by_seed: dict[int, list[float]] = defaultdict(list)
    for (seed, _), value in zip(session.runs, session.values(metric), strict=True):
        if value is not None:
            values_by_seed[seed].append(value)
    return values_by_seed


def _pooled(by_seed: dict[int, list[float]]) -> float:
    return fmean(value for values in by_seed.values() for value in values)


def _distance(value: float, reference: float, scale: Scale) -> float:
    if value == reference:
        return 0.0
    if scale is Scale.POINTS:
        return value - reference
    return log(value / reference) if min(value, reference) > 0 else inf
