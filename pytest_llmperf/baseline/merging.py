"""One measurement and what is stored of it: what would be stored then, and what speaks against it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmperf.baseline.obstacles import Obstacle
from pytest_llmperf.baseline.rules import (
    LevelShift,
    far_from_anchor,
    gradual_drift,
    merge_runs,
    newest_sessions,
    outlier_shifts,
    session_time,
    sessions_at_level,
    tolerances,
)
from pytest_llmperf.baseline.text import rounded
from pytest_llmperf.metrics.failed_as_infinite import values_with_failures
from pytest_llmperf.metrics.registry import find, is_metric
from pytest_llmperf.metrics.units import Direction
from pytest_llmperf.results.baseline import Provenance, StoredMeasurement, StoredSession
from pytest_llmperf.results.conditions import (
    DEFAULT_RULES,
    EMULATED,
    FieldRules,
    asked_flags,
    differences,
    fingerprint_of,
    formulas_of,
    is_comparable,
    kind_of,
    server_kind,
    unrecorded_conditions,
)
from pytest_llmperf.results.measurement import Measurement


@dataclass(frozen=True, slots=True)
class UpdateTerms:
    """What an update goes by.

    Args:
        provenance: of today's runs.
        accept: a person's reason to take what would be refused.
        rules: which fields may differ.
    """

    provenance: Provenance
    accept: str | None = None
    rules: FieldRules = DEFAULT_RULES


@dataclass(frozen=True, slots=True)
class Merger:
    """A measurement beside what is stored of it.

    Args:
        fresh: of this session.
        stored: None where there is nothing yet.
        acceptable_obstacles: what speaks against the fresh runs by themselves.
        improved: metrics that a check has proven to be better.
        undecided: whether a comparison with few sessions was INCONCLUSIVE, which is no doubt by itself.
        terms: what the update goes by.
    """

    fresh: Measurement
    stored: StoredMeasurement | None
    acceptable_obstacles: Sequence[Obstacle]
    improved: Collection[str]
    undecided: bool
    terms: UpdateTerms

    @property
    def obstacles(self) -> list[Obstacle]:
        """What a person would have to accept."""
        if changed := self._changed_conditions:
            return [*self.acceptable_obstacles, Obstacle(f"other conditions: {changed}", level=True)]
        return [
            *self.acceptable_obstacles,
            *(Obstacle(shift.text, level=True) for shift in self._shifts if not self._proven(shift)),
        ]

    @property
    def unknown(self) -> list[str]:
        """Metrics of its runs that this version does not have, and so does not store."""
        return sorted(name for name in _names(self.fresh) if not is_metric(name))

    @property
    def outdated(self) -> bool:
        """Whether what is stored is newer, and leaves this session no place."""
        return not any(one.id == self._session.id for one in self._sessions_with(self._session))

    @property
    def repeats(self) -> str | None:
        """Id of a session that virtual time has repeated to the digit: its seed of noise was the same. None: none."""
        if not kind_of(self.fresh.conditions).startswith(EMULATED):
            return None
        (now,) = _filled((self._session,))
        same = (
            other_session
            for other_session in self._other_sessions
            if (other_session.runs, other_session.metrics) == (now.runs, now.metrics)
        )
        return next((one.id for one in same), None)

    @property
    def barred(self) -> str | None:
        """Why no reason lets this session in; None where one may."""
        if self._changed_conditions and self._stored_part_of_session is not None:
            return f"this session stored runs under other conditions before: {self._changed_conditions}"
        if not self._has_newer_stored or self._stored_part_of_session is not None:
            return None
        if self._changed_conditions:
            return f"older than what is stored, under other conditions: {self._changed_conditions}"
        if self._shifts and (self._before_anchor or not self._on_new_host):
            return f"older than what is stored, at another level: {'; '.join(shift.text for shift in self._shifts)}"
        return None

    def result(self) -> StoredMeasurement:
        """What is stored when every obstacle is accepted."""
        obstacles = self.obstacles
        begins = self.stored is None or bool(self._changed_conditions)
        moved = any(obstacle.level for obstacle in obstacles) or any(map(self._proven, self._shifts))
        level = begins or (moved and not self._has_newer_stored and not self._on_new_host)
        accepted = self.terms.accept if obstacles else None
        session = self._session
        session = replace(session, accepted=accepted or session.accepted, anchor=level or session.anchor)
        if begins:
            sessions: tuple[StoredSession, ...] = (session,)
        elif level:
            near = sessions_at_level(session, self._other_sessions, self._known_primaries, self._margins)
            sessions = newest_sessions((*near, session))
        else:
            sessions = self._sessions_with(session)
        sessions = _filled(sessions)
        formulas = self._formulas(sessions[0].metrics)
        return StoredMeasurement(self._fingerprint, sessions, self._primaries, formulas)

    @property
    def _has_newer_stored(self) -> bool:
        """Whether something newer is stored, which then speaks for conditions, primaries and formulas."""
        sessions = self.stored.sessions if self.stored is not None else ()
        return any(session_time(session.id) > session_time(self.terms.provenance.session) for session in sessions)

    @property
    def _before_anchor(self) -> bool:
        return self.stored is not None and session_time(self.terms.provenance.session) < session_time(
            self.stored.anchor.id
        )

    @property
    def _fingerprint(self) -> dict[str, str]:
        """Conditions of the newest session, and what only an older one recorded."""
        now = fingerprint_of(self.fresh.conditions)
        if self.stored is None or not self._has_newer_stored:
            return now
        stored_conditions = self.stored.fingerprint
        return {**stored_conditions, **{name: now[name] for name in unrecorded_conditions(stored_conditions, now)}}

    @property
    def _primaries(self) -> tuple[str, ...]:
        return self.stored.primaries if self.stored is not None and self._has_newer_stored else self.fresh.primaries

    @property
    def _known_primaries(self) -> list[str]:
        """Primaries that this version has."""
        return list(filter(is_metric, self._primaries))

    @property
    def _on_new_host(self) -> bool:
        """Then a shift is that host's own, and widens what is known of hosts; it is no new level of them all."""
        return all(other_session.host != self._session.host for other_session in self._other_sessions)

    @property
    def _margins(self) -> dict[str, float]:
        kind = server_kind(self.fresh.conditions).removeprefix(EMULATED)
        tolerated = {metric: margins.tolerated for metric, margins in self.fresh.margins.items()}
        return tolerances(self._known_primaries, tolerated, kind)

    @property
    def _changed_conditions(self) -> str:
        if self.stored is None:
            return ""
        differing = differences(self.stored, self.fresh.conditions, self._known_primaries, self.terms.rules)
        may_differ = self._conditions_that_may_differ
        return "; ".join(str(difference) for difference in differing if difference.field not in may_differ)

    @property
    def _conditions_that_may_differ(self) -> set[str]:
        """Fields that may differ: the build and what the settings name, what one side did not record, and what already
        differs in the stored part of this session."""
        if self.stored is None:
            return set()
        stored_conditions, now = self.stored.fingerprint, self.fresh.conditions
        stored_differences = self._stored_part_of_session.differs if self._stored_part_of_session is not None else {}
        equal_conditions = {name for name, value in stored_differences.items() if value == now.get(name)}
        names = stored_conditions.keys() | now.keys() | stored_differences.keys()
        return {
            *(name for name in names if self.terms.rules.may_differ(name, self._asked_flags)),
            *unrecorded_conditions(stored_conditions, now),
            *(unrecorded_conditions(now, stored_conditions) if self._has_newer_stored else ()),
            *equal_conditions,
        }

    @property
    def _asked_flags(self) -> set[str]:
        stored_conditions = {} if self.stored is None else self.stored.fingerprint
        return asked_flags(stored_conditions, self.fresh.conditions)

    @property
    def _stored_part_of_session(self) -> StoredSession | None:
        """What is stored of this very session: the first try of a re-run."""
        sessions = self.stored.sessions if self.stored is not None else ()
        return next((session for session in sessions if session.id == self.terms.provenance.session), None)

    @property
    def _session(self) -> StoredSession:
        fresh = fresh_session(self.fresh, self.terms.provenance)
        metrics = _without(fresh.metrics, self._metrics_of_old_formulas if self._has_newer_stored else ())
        fresh = replace(
            fresh, metrics=metrics, differs=self._differing(self.fresh.conditions, self._conditions_that_may_differ)
        )
        return (
            fresh
            if self._stored_part_of_session is None
            else merge_runs(self._stored_part_of_session, fresh, self._metrics_of_old_formulas)
        )

    @property
    def _other_sessions(self) -> list[StoredSession]:
        """The other sessions, without values of formulas that have changed, and with conditions that have."""
        if self.stored is None:
            return []
        stored_conditions, stale = (
            self.stored.fingerprint,
            () if self._has_newer_stored else self._metrics_of_old_formulas,
        )
        return [
            replace(
                session,
                metrics=_without(session.metrics, stale),
                differs=self._differing(
                    {**stored_conditions, **session.differs}, {*self._conditions_that_may_differ, *session.differs}
                ),
            )
            for session in self.stored.sessions
            if session.id != self.terms.provenance.session
        ]

    @property
    def _formulas_now(self) -> dict[str, str]:
        """Formulas of this session's metrics."""
        return formulas_of(filter(is_metric, _names(self.fresh)))

    @property
    def _metrics_of_old_formulas(self) -> set[str]:
        """Metrics whose stored values are of another formula."""
        stored_formulas = self.stored.formulas if self.stored is not None else {}
        return {name for name, formula in self._formulas_now.items() if stored_formulas.get(name, formula) != formula}

    def _differing(self, conditions: Mapping[str, str | None], names: Collection[str]) -> dict[str, str | None]:
        """Those of the named conditions that are not the newest session's."""
        now = self._fingerprint
        return {name: conditions.get(name) for name in names if conditions.get(name) != now.get(name)}

    def _sessions_with(self, session: StoredSession) -> tuple[StoredSession, ...]:
        """The sessions with this one in its place, or where its time puts it."""
        ids = [] if self.stored is None else [session.id for session in self.stored.sessions]
        sessions = self._other_sessions
        sessions.insert(ids.index(session.id) if session.id in ids else len(sessions), session)
        return newest_sessions(sessions)

    @property
    def _shifts(self) -> list[LevelShift]:
        if self.stored is None or self._changed_conditions:
            return []
        primaries, margins, session = self._known_primaries, self._margins, self._session
        rules, flags = self.terms.rules, self._asked_flags
        comparable = [
            one for one in self._sessions_with(session) if one.id == session.id or is_comparable(one, rules, flags)
        ]
        others = [
            other_session for other_session in self._other_sessions if is_comparable(other_session, rules, flags)
        ]
        far = outlier_shifts(session, others, primaries, margins)
        outlier_metrics = {shift.metric for shift in far}
        crept: list[LevelShift] = []
        if any(one.anchor for one in comparable):
            unproven = self.undecided or self._before_anchor
            away = far_from_anchor(session, self.stored.anchor, primaries, margins) if unproven else []
            crept = [*gradual_drift(comparable, primaries, margins), *away]
        return [*far, *(shift for shift in crept if shift.metric not in outlier_metrics)]

    def _proven(self, shift: LevelShift) -> bool:
        """A move to the better that a check has proven needs nobody's word."""
        direction = find(shift.metric).direction
        better = (direction is Direction.LOWER and shift.distance < 0) or (
            direction is Direction.HIGHER and shift.distance > 0
        )
        return better and shift.metric in self.improved

    def _formulas(self, names: Collection[str]) -> dict[str, str]:
        """Those of the newest session, and of metrics that only older ones have."""
        stored_formulas = self.stored.formulas if self.stored is not None else {}
        formulas = (
            {**self._formulas_now, **stored_formulas}
            if self._has_newer_stored
            else {**stored_formulas, **self._formulas_now}
        )
        return {name: formulas[name] for name in names}


def _names(fresh: Measurement) -> set[str]:
    return {name for metrics in fresh.metrics for name in values_with_failures(metrics)}


def _without(
    metrics: Mapping[str, tuple[float | None, ...]], names: Collection[str]
) -> dict[str, tuple[float | None, ...]]:
    return {name: values for name, values in metrics.items() if name not in names}


def _filled(sessions: Sequence[StoredSession]) -> tuple[StoredSession, ...]:
    """Every session with every metric that any of them has a value of."""
    names = sorted({
        name for session in sessions for name, values in session.metrics.items() if any(v is not None for v in values)
    })
    return tuple(replace(session, metrics={name: session.values(name) for name in names}) for session in sessions)


def fresh_session(fresh: Measurement, provenance: Provenance) -> StoredSession:
    """A measurement as it would be stored, values rounded; without metrics that this version does not have."""
    names = sorted(filter(is_metric, _names(fresh)))
    values = [values_with_failures(metrics) for metrics in fresh.metrics]
    columns = {name: [of_run.get(name) for of_run in values] for name in names}
    return StoredSession(
        id=provenance.session,
        date=provenance.date,
        commit=f"{provenance.commit}-dirty" if provenance.commit and provenance.dirty else provenance.commit,
        host=provenance.host,
        accepted=None,
        anchor=False,
        runs=tuple((run.seed, run.start_id) for run in fresh.runs),
        metrics={
            name: tuple(None if value is None else rounded(value) for value in column)
            for name, column in columns.items()
        },
    )
