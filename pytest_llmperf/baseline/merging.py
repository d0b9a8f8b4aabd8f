"""One measurement and what is stored of it: what would be stored then, and what speaks against it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pytest_llmperf.baseline.fingerprint import alike, differences, fingerprint_of, formulas_of, unrecorded
from pytest_llmperf.baseline.fresh import FreshMeasurement
from pytest_llmperf.baseline.model import Provenance, StoredMeasurement, StoredSession
from pytest_llmperf.baseline.obstacles import Obstacle
from pytest_llmperf.baseline.paths import EMULATED, kind_of
from pytest_llmperf.baseline.rules import Shift, at_level_of, capped, creeping, outlying, pooled, strayed, tolerances
from pytest_llmperf.baseline.text import rounded
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.units import Direction


@dataclass(frozen=True, slots=True)
class Terms:
    """What an update goes by.

    Args:
        provenance: of today's runs.
        accept: a person's reason to take what would be refused.
        across: conditions that may differ.
    """

    provenance: Provenance
    accept: str | None = None
    across: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Merger:
    """A measurement beside what is stored of it.

    Args:
        fresh: of this session.
        stored: None where there is nothing yet.
        doubts: what speaks against the fresh runs by themselves.
        improved: metrics that a check has proven to be better.
        left_open: whether a comparison with few sessions was INCONCLUSIVE, which is no doubt by itself.
        terms: what the update goes by.
    """

    fresh: FreshMeasurement
    stored: StoredMeasurement | None
    doubts: Sequence[Obstacle]
    improved: Collection[str]
    left_open: bool
    terms: Terms

    @property
    def obstacles(self) -> list[Obstacle]:
        """What a person would have to accept."""
        if changed := self._changed:
            return [*self.doubts, Obstacle(f"other conditions: {changed}", level=True)]
        return [*self.doubts, *(Obstacle(shift.text, level=True) for shift in self._shifts if not self._proven(shift))]

    @property
    def mixed(self) -> str | None:
        """Why this session's runs cannot be pooled; None where they can."""
        if self._changed and self._same is not None:
            return f"this session stored runs under other conditions before: {self._changed}"
        return None

    def result(self) -> StoredMeasurement:
        """What is stored when every obstacle is accepted."""
        obstacles = self.obstacles
        begins = self.stored is None or bool(self._changed)
        moved = any(obstacle.level for obstacle in obstacles) or any(map(self._proven, self._shifts))
        level = begins or (moved and not self._on_new_host)
        accepted = self.terms.accept if obstacles else None
        session = self._session
        session = replace(session, accepted=accepted or session.accepted, anchor=level or session.anchor)
        if begins:
            sessions: tuple[StoredSession, ...] = (session,)
        elif level:
            near = at_level_of(session, self._others, self.fresh.primaries, self._margins)
            sessions = capped((*near, session))
        else:
            sessions = self._with(session)
        sessions = _filled(sessions)
        formulas = self._formulas(sessions[0].metrics)
        return StoredMeasurement(fingerprint_of(self.fresh.conditions), sessions, self.fresh.primaries, formulas)

    @property
    def _on_new_host(self) -> bool:
        """Then a shift is that host's own, and widens what is known of hosts; it is no new level of them all."""
        return all(one.host != self._session.host for one in self._others)

    @property
    def _margins(self) -> dict[str, float]:
        kind = kind_of(self.fresh.conditions).removeprefix(EMULATED)
        return tolerances(self.fresh.primaries, self.fresh.margins, kind)

    @property
    def _changed(self) -> str:
        if self.stored is None:
            return ""
        found = differences(self.stored, self.fresh.conditions, self.fresh.primaries, self.terms.across)
        return "; ".join(map(str, found))

    @property
    def _same(self) -> StoredSession | None:
        """What is stored of this very session: the first try of a re-run."""
        sessions = self.stored.sessions if self.stored is not None else ()
        return next((session for session in sessions if session.id == self.terms.provenance.session), None)

    @property
    def _session(self) -> StoredSession:
        fresh = fresh_session(self.fresh, self.terms.provenance)
        return fresh if self._same is None else pooled(self._same, fresh)

    @property
    def _others(self) -> list[StoredSession]:
        """The other sessions, without values of formulas that have changed, and with conditions that have."""
        if self.stored is None:
            return []
        formulas = formulas_of(self._session.metrics)
        stale = {name for name, formula in formulas.items() if self.stored.formulas.get(name, formula) != formula}
        before, now = self.stored.fingerprint, self.fresh.conditions
        free = {*self.terms.across, *unrecorded(before, now)}
        moved = {name: before.get(name) for name in free if before.get(name) != now.get(name)}
        return [
            replace(
                session,
                metrics={name: values for name, values in session.metrics.items() if name not in stale},
                differs={name: value for name, value in {**moved, **session.differs}.items() if value != now.get(name)},
            )
            for session in self.stored.sessions
            if session.id != self.terms.provenance.session
        ]

    def _with(self, session: StoredSession) -> tuple[StoredSession, ...]:
        """The sessions with this one in its place, or as the newest."""
        ids = [] if self.stored is None else [one.id for one in self.stored.sessions]
        sessions = self._others
        sessions.insert(ids.index(session.id) if session.id in ids else len(sessions), session)
        return capped(sessions)

    @property
    def _shifts(self) -> list[Shift]:
        if self.stored is None or self._changed:
            return []
        primaries, margins, session = self.fresh.primaries, self._margins, self._session
        comparable = [one for one in self._with(session) if one.id == session.id or alike(one, self.terms.across)]
        others = [one for one in self._others if alike(one, self.terms.across)]
        far = outlying(session, others, primaries, margins)
        known = {shift.metric for shift in far}
        crept: list[Shift] = []
        if any(one.anchor for one in comparable):
            away = strayed(session, self.stored.anchor, primaries, margins) if self.left_open else []
            crept = [*creeping(comparable, primaries, margins), *away]
        return [*far, *(shift for shift in crept if shift.metric not in known)]

    def _proven(self, shift: Shift) -> bool:
        """A move to the better that a check has proven needs nobody's word."""
        direction = find(shift.metric).direction
        better = (direction is Direction.LOWER and shift.distance < 0) or (
            direction is Direction.HIGHER and shift.distance > 0
        )
        return better and shift.metric in self.improved

    def _formulas(self, names: Collection[str]) -> dict[str, str]:
        """Those of today, and of metrics that only older sessions have."""
        before = self.stored.formulas if self.stored is not None else {}
        today = formulas_of(self._session.metrics)
        return {name: today.get(name) or before[name] for name in names}


def _filled(sessions: Sequence[StoredSession]) -> tuple[StoredSession, ...]:
    """Every session with every metric that any of them has a value of."""
    names = sorted({
        name for session in sessions for name, values in session.metrics.items() if any(v is not None for v in values)
    })
    return tuple(replace(one, metrics={name: one.values(name) for name in names}) for one in sessions)


def fresh_session(fresh: FreshMeasurement, provenance: Provenance) -> StoredSession:
    """A measurement as it would be stored, values rounded."""
    names = sorted({name for run in fresh.runs for name in run.metrics})
    columns = {name: [run.metrics.get(name) for run in fresh.runs] for name in names}
    return StoredSession(
        id=provenance.session,
        date=provenance.date,
        commit=f"{provenance.commit}-dirty" if provenance.commit and provenance.dirty else provenance.commit,
        host=provenance.host,
        accepted=None,
        anchor=False,
        runs=tuple((run.seed, run.start) for run in fresh.runs),
        metrics={
            name: tuple(None if value is None else rounded(value) for value in column)
            for name, column in columns.items()
        },
    )
