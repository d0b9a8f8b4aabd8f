"""Decides which sessions a baseline keeps, and which session it stores only as an accepted change.

The anchor is the first session, the last one whose level a person accepted, or the last proven improvement. It keeps
small steps from adding up: each may lie within the margin while their sum does not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import copysign
from statistics import fmean, median

from pytest_llmperf.metrics.registry import find, is_metric
from pytest_llmperf.results.baseline import StoredSession
from pytest_llmperf.results.levels import change, offset, offsets
from pytest_llmperf.stats.priors import margins_for, scale_of

MOST_SESSIONS = 10
OUTLIER_SDS = 4
MAD_TO_SD = 1.4826  # of a normal distribution


@dataclass(frozen=True, slots=True)
class LevelShift:
    """A primary metric whose level has moved too far.

    Args:
        metric: its name.
        distance: by how much, on the metric's scale; positive: larger than before.
        text: for people.
    """

    metric: str
    distance: float
    text: str


def tolerances(metrics: Iterable[str], margins: Mapping[str, float], kind: str) -> dict[str, float]:
    """Change of each metric that a comparison still tolerates, as a share: the test's own margin, or the default."""
    return {metric: margins.get(metric, margins_for(find(metric), kind).tolerated) for metric in metrics}


def tolerated_distance(metric: str, margins: Mapping[str, float]) -> float:
    """The tolerated change of a metric, as a distance on the metric's scale."""
    return scale_of(find(metric)).width(margins[metric])


def comparable_sessions_on(sessions: Sequence[StoredSession], host: str) -> int:
    """Number of sessions for a comparison on a host: all sessions, or one per host for a new host (`sessions_by_host`).
    """
    hosts = {session.host for session in sessions}
    return len(sessions) if host in hosts else len(hosts)


def session_time(session_id: str) -> str:
    """The part of a session's id that sorts by time.

    >>> session_time("20261121T112233Z-ab12cd")
    '20261121T112233Z'
    """
    return session_id.partition("-")[0]


def newest_sessions(sessions: Iterable[StoredSession]) -> tuple[StoredSession, ...]:
    """Oldest first, at most ten: the oldest that is not the anchor drops out."""
    remaining = sorted(sessions, key=lambda session: session_time(session.id))
    while len(remaining) > MOST_SESSIONS:
        remaining.remove(next(session for session in remaining if not session.anchor))
    return tuple(remaining)


def merge_runs(stored: StoredSession, session: StoredSession, stale: Collection[str] = ()) -> StoredSession:
    """Merge the runs of two results of one session. A run that is already stored is not added again.

    Runs are compared by the metrics that this version knows, because its run files contain no others.

    Args:
        stale: metrics whose formula has changed since the stored values were computed; the comparison ignores them.
    """
    names = sorted(stored.metrics.keys() | session.metrics.keys())
    comparable_metrics = [name for name in names if is_metric(name) and name not in stale]
    stored_rows, again = set(_rows(stored, comparable_metrics)), _rows(session, comparable_metrics)
    new = [row for row, same in zip(_rows(session, names), again, strict=True) if same not in stored_rows]
    rows = [*_rows(stored, names), *new]
    return replace(
        session,
        accepted=session.accepted or stored.accepted,
        anchor=session.anchor or stored.anchor,
        runs=tuple(run for run, _ in rows),
        metrics={name: tuple(values[i] for _, values in rows) for i, name in enumerate(names)},
    )


def gradual_drift(
    sessions: Sequence[StoredSession], primaries: Iterable[str], margins: Mapping[str, float]
) -> list[LevelShift]:
    """Primary metrics whose mean over the sessions to store differs from the anchor by more than the margin."""
    anchor = next(session for session in sessions if session.anchor)
    shifts = []
    for metric in primaries:
        moves = offsets(sessions, anchor, metric)
        if moves and abs(fmean(moves)) > tolerated_distance(metric, margins):
            text = (
                f"{metric} would creep: {change(metric, fmean(moves))} over {len(moves)} sessions since the anchor "
                f"{anchor.id}, tolerated are {_margin(metric, margins, fmean(moves))}"
            )
            shifts.append(LevelShift(metric, fmean(moves), text))
    return shifts


def far_from_anchor(
    session: StoredSession, anchor: StoredSession, primaries: Iterable[str], margins: Mapping[str, float]
) -> list[LevelShift]:
    """Primary metrics of a session that differ from the anchor by more than the tolerated margin.

    This check is for sessions without a decided comparison, and for sessions that are older than the anchor.
    """
    shifts = []
    for metric in primaries:
        move = offset(session, anchor, metric)
        if move is not None and abs(move) > tolerated_distance(metric, margins):
            text = (
                f"{metric} lies {change(metric, move)} from the anchor {anchor.id}, tolerated are "
                f"{_margin(metric, margins, move)}"
            )
            shifts.append(LevelShift(metric, move, text))
    return shifts


def outlier_shifts(
    session: StoredSession, others: Sequence[StoredSession], primaries: Iterable[str], margins: Mapping[str, float]
) -> list[LevelShift]:
    """Primary metrics in which a session differs from the others by more than four of their sd and the margin.

    Median and median absolute deviation (Leys et al., 2013): a few bad sessions among the others must not hide one.
    """
    shifts = []
    for metric in primaries:
        moves = offsets(others, session, metric)
        if not moves:
            continue
        middle = median(moves)
        sd = MAD_TO_SD * median(abs(move - middle) for move in moves) if len(moves) > 1 else 0.0
        if abs(middle) > max(OUTLIER_SDS * sd, tolerated_distance(metric, margins)):
            text = (
                f"{metric} is an outlier: {change(metric, -middle)} from the {len(moves)} stored session(s), whose sd "
                f"is {sd:.1%}; tolerated are {_margin(metric, margins, -middle)}"
            )
            shifts.append(LevelShift(metric, -middle, text))
    return shifts


def sessions_at_level(
    session: StoredSession, others: Sequence[StoredSession], primaries: Sequence[str], margins: Mapping[str, float]
) -> tuple[StoredSession, ...]:
    """The other sessions within the margins around a session whose level was accepted, without an anchor mark.

    Sessions at the old level are dropped. Otherwise the mean would lie between the two levels, and the next session at
    the accepted level would fail.
    """

    def is_near(other: StoredSession, metric: str) -> bool:
        move = offset(other, session, metric)
        return move is None or abs(move) <= tolerated_distance(metric, margins)

    return tuple(
        replace(session, anchor=False) for session in others if all(is_near(session, metric) for metric in primaries)
    )


def _margin(metric: str, margins: Mapping[str, float], move: float) -> str:
    """What is tolerated in the direction of a move: up to +15.0 % is down to -13.0 %, as 1.15 is to 1 ÷ 1.15."""
    return change(metric, copysign(tolerated_distance(metric, margins), move))


def _rows(
    session: StoredSession, names: Sequence[str]
) -> list[tuple[tuple[int, int], tuple[float | None, ...]]]:
    columns = [session.values(name) for name in names]
    return [(run, tuple(column[i] for column in columns)) for i, run in enumerate(session.runs)]
