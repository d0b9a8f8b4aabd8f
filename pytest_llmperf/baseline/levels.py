"""How far apart two sessions are in a metric: logarithms of ratios, seed by seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import expm1, inf, isfinite, log
from statistics import fmean

from pytest_llmperf.baseline.model import StoredSession


def offset(session: StoredSession, reference: StoredSession, metric: str) -> float | None:
    """Mean log ratio to the reference, over the seeds that both have, or over all where they share none.

    None where either has no value; infinite where a value is 0 on one side only.
    """
    ours, theirs = _by_seed(session, metric), _by_seed(reference, metric)
    if not ours or not theirs:
        return None
    shared = ours.keys() & theirs.keys()
    if not shared:
        return _log_ratio(_pooled(ours), _pooled(theirs))
    return fmean(_log_ratio(fmean(ours[seed]), fmean(theirs[seed])) for seed in sorted(shared))


def offsets(sessions: Sequence[StoredSession], reference: StoredSession, metric: str) -> list[float]:
    """Of each session that has the metric."""
    found = (offset(session, reference, metric) for session in sessions)
    return [value for value in found if value is not None]


def session_mean(session: StoredSession, metric: str) -> float | None:
    """Mean over its runs; None where it has no value."""
    known = [value for value in session.values(metric) if value is not None]
    return fmean(known) if known else None


def mean_level(sessions: Sequence[StoredSession], metric: str) -> float | None:
    """Mean over sessions of their means; None where none has a value."""
    means = [mean for session in sessions if (mean := session_mean(session, metric)) is not None]
    return fmean(means) if means else None


def percent(log_ratio: float) -> str:
    """A log ratio as people read it.

    >>> percent(log(1.05)), percent(inf)
    ('+5.0 %', 'from or to 0')
    """
    return f"{100 * expm1(log_ratio):+.1f} %" if isfinite(log_ratio) else "from or to 0"


def _by_seed(session: StoredSession, metric: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for (seed, _), value in zip(session.runs, session.values(metric), strict=True):
        if value is not None:
            found[seed].append(value)
    return found


def _pooled(by_seed: dict[int, list[float]]) -> float:
    return fmean(value for values in by_seed.values() for value in values)


def _log_ratio(value: float, reference: float) -> float:
    if value == reference:
        return 0.0
    return log(value / reference) if min(value, reference) > 0 else inf
