"""The history of a metric: its level in each session of one host, and the change points of that series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_llmperf.stats.change_points import ChangePoint


@dataclass(frozen=True, slots=True)
class Session:
    """One session of a series.

    Args:
        id: of the pytest session; it begins with the time.
        date: UTC, ISO 8601.
        commit: of the project; "" if unknown.
        runs: value of each run, in the metric's unit; None for a missing value.
        seeds: of each run.
        build: fields of the build under test → value.
        canary: how fast the host was at fixed work: name → value; empty without a measurement.
        link: page or folder of the session, absolute; "" for a session that only a baseline stores.
        note: that it is the anchor of a baseline, and why a person accepted it; "" without either.
    """

    id: str
    date: str
    commit: str
    runs: tuple[float | None, ...]
    seeds: tuple[int, ...]
    build: Mapping[str, str] = field(default_factory=dict)
    canary: Mapping[str, float] = field(default_factory=dict)
    link: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, order=True)
class SeriesName:
    """What all sessions of a series have in common.

    Args:
        test: its id without the kind's parameter.
        measurement: name within the test; "" for its only measurement.
        metric: name of the metric.
        kind: hardware kind, as in the name of a folder of baselines.
        host: digest of the host's name.
        conditions: digest of model, workload and requested flags.
    """

    test: str
    measurement: str
    metric: str
    kind: str
    host: str
    conditions: str


@dataclass(frozen=True, slots=True)
class FoundChange:
    """A change of a metric's level, with the probable cause.

    Args:
        point: the session and the size of the change.
        session: the first session with the new level.
        cause: what changed in the build or on the host, as a sentence part.
    """

    point: ChangePoint
    session: Session
    cause: str


@dataclass(frozen=True, slots=True)
class Series:
    """One series with its change points.

    Args:
        name: what the sessions have in common.
        sessions: oldest first.
        levels: of each session on the metric's scale; larger is worse.
        changes: oldest first.
        sd: of one session at a constant level, as a share; None with too few sessions.
        needed: number of sessions after which a change of +3 % is found in nine of ten cases. None means that 16
            sessions do not suffice, or that the series has too few sessions to tell.
    """

    name: SeriesName
    sessions: Sequence[Session]
    levels: Sequence[float]
    changes: Sequence[FoundChange] = ()
    sd: float | None = None
    needed: int | None = None
