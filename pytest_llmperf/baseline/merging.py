"""Merge a fresh measurement into its stored baseline, and list the reasons against the merge."""

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
from pytest_llmperf.metrics.energy import STORED_ON_REQUEST
from pytest_llmperf.metrics.failed_as_infinite import values_with_failures
from pytest_llmperf.metrics.registry import find, is_metric
from pytest_llmperf.metrics.units import Direction
from pytest_llmperf.results.baseline import Provenance, StoredMeasurement, StoredSession
from pytest_llmperf.results.conditions import (
    DEFAULT_RULES,
    EMULATED,
    FieldRules,
    differences,
    fingerprint_of,
    formulas_of,
    is_comparable,
    kind_of,
    requested_flags,
    server_kind,
    stored_workload,
    unrecorded_conditions,
)
from pytest_llmperf.results.measurement import Measurement


@dataclass(frozen=True, slots=True)
class UpdateTerms:
    """Settings of an update: whose runs, which fields may differ, and whether changes are accepted.

    Args:
        provenance: session, date, commit and host of the new runs.
        accept: reason for which a person accepts all obstacles; None if nobody accepts them.
        rules: which fields may differ.
    """

    provenance: Provenance
    accept: str | None = None
    rules: FieldRules = DEFAULT_RULES


@dataclass(frozen=True, slots=True)
class Merge:
    """The effect of an update on one stored measurement.

    Args:
        result: the measurement to store; valid only if there is no obstacle or a person accepts all obstacles.
        obstacles: reasons against the update that a person may accept.
        barred: reason that refuses the update even if a person accepts; None if there is no such reason.
        outdated: whether all stored sessions are newer and leave no place for this session.
        repeats: id of a stored session with the same values to the digit, because the emulator's noise had the same
            seed; None if no session has the same values.
        unknown: metrics of the runs that this version does not know, and so does not store.
    """

    result: StoredMeasurement
    obstacles: tuple[Obstacle, ...]
    barred: str | None
    outdated: bool
    repeats: str | None
    unknown: list[str]


class _Aligned:
    """This session and the stored sessions, under common conditions, primaries and formulas.

    Attributes:
        session: this session, with the runs that its earlier executions have stored.
        others: the other stored sessions, without values of changed formulas.
        sessions: the sessions to store if the level has not moved, oldest first.
        anchor: the stored session from which a gradual drift is measured.
        fingerprint, primaries, formulas: of the newest session, with what only other sessions recorded.
        known_primaries: primary metrics that this version knows.
        margins: tolerated change of each primary metric.
        changed_conditions: conditions that differ and may not, as text; "" if there are none.
        requested_flags: flags that either side asked for.
        has_newer: whether a stored session is newer than this session.
        before_anchor: whether this session is older than the anchor.
        is_rerun: whether an earlier execution of this session is stored.
    """

    def __init__(self, fresh: Measurement, stored: StoredMeasurement, terms: UpdateTerms) -> None:
        now, session_id = fresh.conditions, terms.provenance.session
        self.has_newer = any(session_time(session.id) > session_time(session_id) for session in stored.sessions)
        stored_part = next((session for session in stored.sessions if session.id == session_id), None)
        self.is_rerun = stored_part is not None
        self.anchor = stored.anchor
        self.before_anchor = session_time(session_id) < session_time(stored.anchor.id)
        self.fingerprint = _newest_fingerprint(now, stored, has_newer=self.has_newer)
        self.primaries = stored.primaries if self.has_newer else fresh.primaries
        self.known_primaries = list(filter(is_metric, self.primaries))
        self.margins = _tolerances(fresh, self.known_primaries)
        self.requested_flags = requested_flags(stored.fingerprint, now)
        may_differ = _fields_that_may_differ(now, stored, stored_part, terms.rules, self.requested_flags,
                                             has_newer=self.has_newer)
        changed = [each for each in differences(stored, now, self.known_primaries, terms.rules, fresh.workload)
                   if each.field not in may_differ]
        self.changed_conditions = "; ".join(map(str, changed))
        formulas = formulas_of(filter(is_metric, _names(fresh)), now)
        stale = {name for name, formula in formulas.items() if stored.formulas.get(name, formula) != formula}
        self.formulas = {**formulas, **stored.formulas} if self.has_newer else {**stored.formulas, **formulas}
        session = _without(fresh_session(fresh, terms.provenance), stale if self.has_newer else ())
        session = replace(session, differs=_differing(now, may_differ, self.fingerprint))
        self.session = session if stored_part is None else merge_runs(stored_part, session, stale)
        self.others = tuple(
            replace(
                _without(other, () if self.has_newer else stale),
                differs=_differing({**stored.fingerprint, **other.differs}, {*may_differ, *other.differs},
                                   self.fingerprint),
            )
            for other in stored.sessions if other.id != session_id
        )
        self.sessions = _in_stored_order(self.session, self.others, stored)

    @property
    def is_on_new_host(self) -> bool:
        """Whether no other session is of this host. A shift may then be the host's own, and is no new level."""
        return all(other.host != self.session.host for other in self.others)


def merge_measurement(
    fresh: Measurement, stored: StoredMeasurement | None, acceptable_obstacles: Sequence[Obstacle],
    improved: Collection[str], terms: UpdateTerms, *, undecided: bool,
) -> Merge:
    """Merge a measurement of this session into the stored measurement.

    Args:
        fresh: the measurement of this session.
        stored: None if nothing is stored yet.
        acceptable_obstacles: obstacles that follow from the new runs alone, without the stored sessions.
        improved: metrics that a check has proven to be better.
        terms: the terms of the update.
        undecided: whether the comparison with the baseline was INCONCLUSIVE because few sessions are stored. Then the
            update is not refused for the verdict.
    """
    unknown = sorted(name for name in _names(fresh) if not is_metric(name))
    if stored is None:
        result = _first_stored(fresh, terms, accepted=bool(acceptable_obstacles))
        return Merge(result, tuple(acceptable_obstacles), None, outdated=False, repeats=None, unknown=unknown)
    aligned = _Aligned(fresh, stored, terms)
    shifts = [] if aligned.changed_conditions else _level_shifts(aligned, terms.rules, undecided=undecided)
    unproven_shifts = [shift for shift in shifts if not _is_improvement(shift, improved)]
    new_obstacles = [Obstacle(shift.text, level=True) for shift in unproven_shifts]
    if changed := aligned.changed_conditions:
        new_obstacles = [Obstacle(f"other conditions: {changed}", level=True)]
    obstacles = (*acceptable_obstacles, *new_obstacles)
    has_moved = any(obstacle.level for obstacle in obstacles) or len(unproven_shifts) < len(shifts)
    of_fresh = aligned.fingerprint.get("workload") == fresh.conditions.get("workload")
    workload = stored_workload(fresh.workload, fresh.conditions) if of_fresh else stored.workload
    return Merge(
        result=replace(_merged(aligned, terms.accept if obstacles else None, has_moved=has_moved),
                       tolerated=stored.tolerated, workload=workload),
        obstacles=obstacles,
        barred=_barred(aligned, shifts),
        outdated=not any(session.id == aligned.session.id for session in aligned.sessions),
        repeats=_repeated_session(aligned) if kind_of(fresh.conditions).startswith(EMULATED) else None,
        unknown=unknown,
    )


def _first_stored(fresh: Measurement, terms: UpdateTerms, *, accepted: bool) -> StoredMeasurement:
    session = replace(fresh_session(fresh, terms.provenance), accepted=terms.accept if accepted else None, anchor=True)
    sessions = _filled((session,))
    formulas = formulas_of(sessions[0].metrics, fresh.conditions)
    return StoredMeasurement(fingerprint_of(fresh.conditions), sessions, fresh.primaries, formulas,
                             workload=stored_workload(fresh.workload, fresh.conditions))


def _fields_that_may_differ(
    now: Mapping[str, str], stored: StoredMeasurement, stored_part: StoredSession | None, rules: FieldRules,
    flags: Collection[str], *, has_newer: bool,
) -> set[str]:
    """Fields that may differ: the build and what the settings name, what one side did not record, and what already
    differs in the stored part of this session."""
    stored_differences = {} if stored_part is None else stored_part.differs
    return {
        *(name for name in {*stored.fingerprint, *now, *stored_differences} if rules.may_differ(name, flags)),
        *unrecorded_conditions(stored.fingerprint, now),
        *(unrecorded_conditions(now, stored.fingerprint) if has_newer else ()),
        *(name for name, value in stored_differences.items() if value == now.get(name)),
    }


def _differing(
    conditions: Mapping[str, str | None], names: Collection[str], fingerprint: Mapping[str, str]
) -> dict[str, str | None]:
    """The named conditions that differ from the newest session's."""
    return {name: conditions.get(name) for name in names if conditions.get(name) != fingerprint.get(name)}


def _without(session: StoredSession, names: Collection[str]) -> StoredSession:
    """The session without the values of these metrics."""
    return replace(session, metrics={name: values for name, values in session.metrics.items() if name not in names})


def _newest_fingerprint(
    conditions: Mapping[str, str], stored: StoredMeasurement, *, has_newer: bool
) -> dict[str, str]:
    """Conditions of the newest session, and conditions that only an older session recorded."""
    now = fingerprint_of(conditions)
    if not has_newer:
        return now
    return {**stored.fingerprint, **{name: now[name] for name in unrecorded_conditions(stored.fingerprint, now)}}


def _tolerances(fresh: Measurement, primaries: Sequence[str]) -> dict[str, float]:
    kind = server_kind(fresh.conditions).removeprefix(EMULATED)
    return tolerances(primaries, {metric: margins.tolerated for metric, margins in fresh.margins.items()}, kind)


def _in_stored_order(
    session: StoredSession, others: Sequence[StoredSession], stored: StoredMeasurement
) -> tuple[StoredSession, ...]:
    """The newest sessions. A stored session keeps its place; a new session is placed by its time."""
    ids = [each.id for each in stored.sessions]
    place = ids.index(session.id) if session.id in ids else len(others)
    return newest_sessions((*others[:place], session, *others[place:]))


def _level_shifts(aligned: _Aligned, rules: FieldRules, *, undecided: bool) -> list[LevelShift]:
    """Primary metrics whose level this session moves too far: at once, or gradually since the anchor."""
    session, primaries, margins = aligned.session, aligned.known_primaries, aligned.margins
    others = [other for other in aligned.others if is_comparable(other, rules, aligned.requested_flags)]
    outliers = outlier_shifts(session, others, primaries, margins)
    comparable = [
        each for each in aligned.sessions
        if each.id == session.id or is_comparable(each, rules, aligned.requested_flags)
    ]
    gradual: list[LevelShift] = []
    if any(each.anchor for each in comparable):
        gradual = gradual_drift(comparable, primaries, margins)
        if undecided or aligned.before_anchor:
            gradual = [*gradual, *far_from_anchor(session, aligned.anchor, primaries, margins)]
    outlier_metrics = {shift.metric for shift in outliers}
    return [*outliers, *(shift for shift in gradual if shift.metric not in outlier_metrics)]


def _is_improvement(shift: LevelShift, improved: Collection[str]) -> bool:
    """Whether a check has proven that the metric is better, so that nobody must accept the shift."""
    direction = find(shift.metric).direction
    better = (direction is Direction.LOWER and shift.distance < 0) or (
        direction is Direction.HIGHER and shift.distance > 0
    )
    return better and shift.metric in improved


def _barred(aligned: _Aligned, shifts: Sequence[LevelShift]) -> str | None:
    changed = aligned.changed_conditions
    if changed and aligned.is_rerun:
        return f"this session stored runs under other conditions before: {changed}"
    if not aligned.has_newer or aligned.is_rerun:
        return None
    if changed:
        return f"older than the stored sessions, under different conditions: {changed}"
    if shifts and (aligned.before_anchor or not aligned.is_on_new_host):
        return f"older than the stored sessions, at a different level: {'; '.join(shift.text for shift in shifts)}"
    return None


def _repeated_session(aligned: _Aligned) -> str | None:
    """Id of another session with the same runs and values."""
    (now,) = _filled((aligned.session,))
    return next((other.id for other in aligned.others if (other.runs, other.metrics) == (now.runs, now.metrics)), None)


def _merged(aligned: _Aligned, accept: str | None, *, has_moved: bool) -> StoredMeasurement:
    """The stored measurement with this session.

    Under changed conditions the result contains only this session. A moved level makes this session the anchor and
    keeps the sessions at its level.
    """
    begins = bool(aligned.changed_conditions)
    is_anchor = begins or (has_moved and not aligned.has_newer and not aligned.is_on_new_host)
    session = replace(
        aligned.session, accepted=accept or aligned.session.accepted, anchor=is_anchor or aligned.session.anchor
    )
    sessions = tuple(session if each.id == session.id else each for each in aligned.sessions)
    if begins:
        sessions = (session,)
    elif is_anchor:
        at_level = sessions_at_level(session, aligned.others, aligned.known_primaries, aligned.margins)
        sessions = newest_sessions((*at_level, session))
    sessions = _filled(sessions)
    formulas = {name: aligned.formulas[name] for name in sessions[0].metrics}
    return StoredMeasurement(aligned.fingerprint, sessions, aligned.primaries, formulas)


def _names(fresh: Measurement) -> set[str]:
    names = {name for metrics in fresh.metrics for name in values_with_failures(metrics)}
    return names - (set(STORED_ON_REQUEST) - set(fresh.primaries))


def _filled(sessions: Sequence[StoredSession]) -> tuple[StoredSession, ...]:
    """The sessions, each with the metrics of all sessions: a metric that a session lacks is None in its runs."""
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
