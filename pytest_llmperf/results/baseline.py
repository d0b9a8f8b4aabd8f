"""What a baseline file holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SCHEMA = 1
#: An inconclusive comparison with fewer sessions does not keep a baseline from growing: the comparison with the anchor
#: session decides instead. By simulation (scripts/simulate_verdicts.py growth) a baseline then creeps by less than half
#: of the tolerated change.
YOUNG_BELOW = 5
#: Learnt margins stay below this share: a comparison that tolerates more says nothing.
LARGEST_TOLERATED = 2.0


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the runs of an update come from.

    Args:
        session: id of the pytest session, e.g. "20261121T112233Z-ab12cd".
        date: UTC, ISO 8601, e.g. "2026-11-21".
        commit: of the working tree; None outside git, or with a `git_error`.
        dirty: whether the working tree differs from that commit, or may differ.
        host: digest of the host's name.
        git_error: why git did not tell the commit; None without such a failure.
    """

    session: str
    date: str
    commit: str | None
    dirty: bool
    host: str
    git_error: str | None = None


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A pytest session in a baseline.

    Args:
        id, date, host: as in `Provenance`.
        commit: as in `Provenance`, with "-dirty" if the working tree differed.
        accepted: the reason of a person who accepted the session although a rule refused it.
        anchor: whether slow drift is measured from this session; a measurement has one anchor.
        runs: seed and server start of each run.
        metrics: metric → value in each run; None for a missing value.
        differs: fields whose value in this session is not the value of the fingerprint: of the build, of conditions in
            `compare_across`, or not recorded yet. None if absent.
    """

    id: str
    date: str
    commit: str | None
    host: str
    accepted: str | None
    anchor: bool
    runs: tuple[tuple[int, int], ...]
    metrics: Mapping[str, tuple[float | None, ...]]
    differs: Mapping[str, str | None] = field(default_factory=dict)

    def values(self, metric: str) -> tuple[float | None, ...]:
        """A metric's value in each run."""
        return self.metrics.get(metric, (None,) * len(self.runs))


@dataclass(frozen=True, slots=True)
class StoredMeasurement:
    """One named measurement of a test.

    Args:
        fingerprint: conditions and build of the newest session.
        sessions: oldest first, at least one.
        primaries: the metrics that a comparison judges.
        formulas: metric → id of the formula behind its values.
        tolerated: metric → tolerated margin that the noise of the sessions requires; only margins wider than the
            default.
        workload: the workload of the newest session as text; None in older files and for a long text.
    """

    fingerprint: Mapping[str, str]
    sessions: tuple[StoredSession, ...]
    primaries: tuple[str, ...]
    formulas: Mapping[str, str]
    tolerated: Mapping[str, float] = field(default_factory=dict)
    workload: str | None = None

    @property
    def anchor(self) -> StoredSession:
        return next(session for session in self.sessions if session.anchor)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that any session has, sorted."""
        return tuple(sorted({name for session in self.sessions for name in session.metrics}))


@dataclass(frozen=True, slots=True)
class Baseline:
    """The baseline of one test on one hardware kind.

    Args:
        test: its id without the kind's parameter, e.g. "suites/test_x.py::test_y[engine0]".
        measurements: by name; "" is a test's only one.
    """

    test: str
    measurements: Mapping[str, StoredMeasurement]


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored baseline.

    Args:
        kind: its folder: "h200", "emulated-h200".
        path: of its file, relative to the folder of all baselines.
        baseline: what it holds.
    """

    kind: str
    path: str
    baseline: Baseline


#: Gives the baseline of a test on a hardware kind; None if nothing is stored. Raises BaselineError for a bad file.
ReadBaseline = Callable[[str, str], Baseline | None]
