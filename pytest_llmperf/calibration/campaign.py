"""Suite run after suite run on the emulator, each with noise of its own, into a journal."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from math import expm1, log, log1p
from operator import itemgetter
from pathlib import Path

from pytest_llmperf.baseline.paths import bare_test
from pytest_llmperf.calibration.emulated_session import EmulatedSession
from pytest_llmperf.calibration.experiments import Experiment, Slowdown
from pytest_llmperf.calibration.journal import RowJournal
from pytest_llmperf.calibration.row import CalibrationRow, row_of
from pytest_llmperf.calibration.suite_test import SuiteTest, outcome_of
from pytest_llmperf.calibration.workers import results_of
from pytest_llmperf.config.emulation import Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import UsageError
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession
from pytest_llmperf.results.conditions import EMULATED, kind_of
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.stats.decision import LOOKS

#: Suite runs begin here, so that their noise is none of a stored session's; the last sessions of other rules, and
#: drawn baselines, come from the same noise far beyond.
FIRST = 1_000
FIRST_LAST = 900_000
LAST_SESSIONS = 20
SECANTS = 3
NOT_COMPARED = (Verdict.NO_BASELINE, Verdict.INCOMPARABLE)

Last = dict[str, Measurement]


@dataclass(frozen=True, slots=True)
class Campaign:
    """What all experiments share.

    Args:
        settings, root: of the project.
        kind: hardware kind that is emulated.
        tests: of the suites.
        jobs: processes that share the suite runs.
        lasts: noise → sessions in which nothing is planted, once they were needed.
    """

    settings: Settings
    root: Path
    kind: str
    tests: Sequence[SuiteTest]
    jobs: int = 1
    lasts: dict[str, list[Last]] = field(default_factory=dict)

    def run(self, experiment: Experiment, journal: RowJournal, notify: Callable[[str], None]) -> None:
        """Do those suite runs of an experiment that the journal does not have.

        Raises:
            UsageError: no test watches what is planted.
        """
        numbers = range(FIRST, FIRST + experiment.suite_runs)
        missing = [number for number in numbers if (experiment.name, number) not in journal.rows]
        if not missing:
            return
        tests = [test for test in self.tests if experiment.watched_by in test.name]
        if not tests:
            raise UsageError(f"No test whose id has {experiment.watched_by!r} is there to watch {experiment.name}.")
        if experiment.slowdown is not None:
            experiment = with_slowdown(experiment, experiment.slowdown, partial(self._tpot, tests[0]))
        lasts = self._last_sessions(experiment.noise, tests)
        work = partial(self._work, experiment, tests, lasts)
        with closing(results_of(work, missing, self.jobs)) as rows:
            for done, row in enumerate(rows, 1):
                _refuse_what_nothing_compares(experiment, row)
                journal.add(row)
                if done % 50 == 0 or done == len(missing):
                    notify(f"{experiment.name}: {done} of {len(missing)} suite runs")

    def _work(
        self, experiment: Experiment, tests: Sequence[SuiteTest], lasts: Sequence[Last], numbers: Sequence[int]
    ) -> Iterator[CalibrationRow]:
        emulation = Emulation(self.kind, faults=experiment.faults, noise=experiment.noise)
        with closing(EmulatedSession(self.settings, self.root, emulation)) as session:
            yield from self._rows(experiment, session, tests, numbers, lasts)

    def _rows(
        self,
        experiment: Experiment,
        session: EmulatedSession,
        tests: Sequence[SuiteTest],
        numbers: Sequence[int],
        lasts: Sequence[Last],
    ) -> Iterator[CalibrationRow]:
        drawn = dict(session.drawn_baselines.drawn)
        kind = f"{EMULATED}{self.kind}"
        suite_primaries = session.baselines.terms(kind, (), {}).suite_primaries
        for number in numbers:
            if experiment.drawn:
                session.drawn_baselines.draw(draw_baseline(drawn, lasts, random.Random(number)))
            session.begin_suite_run(number)
            outcomes = [outcome_of(test, session, self.kind).only_compared() for test in tests]
            stored = {test.name: session.baselines.find(test.name, kind, "") for test in tests}
            last = lasts[number % len(lasts)]
            yield row_of(experiment.name, number, outcomes, last=last, stored=stored, suite_primaries=suite_primaries)

    def _tpot(self, test: SuiteTest, step_time: float) -> float:
        """Mean TPOT of a test without noise, every step that much slower."""
        planted = (f"step_time={step_time:.6%}",) if step_time else ()
        emulation = Emulation(self.kind, faults=planted, noise="")
        with closing(EmulatedSession(self.settings, self.root, emulation)) as session:
            value = outcome_of(test, session, self.kind).measurements[0].value("tpot_mean")
        if value is None:
            raise UsageError(f"{test.name} has no mean TPOT to slow down.")
        return value

    def _last_sessions(self, noise: str, tests: Sequence[SuiteTest]) -> list[Last]:
        """Sessions in which nothing is planted: what other rules compare with, and drawn baselines are made of.

        Those of all tests serve every further experiment with that noise.
        """
        if noise in self.lasts:
            return self.lasts[noise]
        numbers = range(FIRST_LAST, FIRST_LAST + LAST_SESSIONS)
        with closing(results_of(partial(self._quiet_sessions, noise, tests), numbers, self.jobs)) as numbered:
            sessions = [last for _, last in sorted(numbered, key=itemgetter(0))]
        if len(tests) == len(self.tests):
            self.lasts[noise] = sessions
        return sessions

    def _quiet_sessions(
        self, noise: str, tests: Sequence[SuiteTest], numbers: Sequence[int]
    ) -> Iterator[tuple[int, Last]]:
        """Sessions in which nothing is planted, each with its number. Only the tests with a baseline run."""
        with closing(EmulatedSession(self.settings, self.root, Emulation(self.kind, noise=noise))) as session:
            compared_tests = [test for test in tests if session.baselines.of_test(test.name, f"{EMULATED}{self.kind}")]
            for number in numbers:
                session.begin_suite_run(number)
                outcomes = [outcome_of(test, session, self.kind) for test in compared_tests]
                yield number, {o.test: m for o in outcomes for m in o.measurements if m.baseline is not None}


def _refuse_what_nothing_compares(experiment: Experiment, row: CalibrationRow) -> None:
    """A comparison that cannot alarm must not count as one that was quiet.

    Raises:
        UsageError: with nothing planted, a baseline is missing or is one of something else.
    """
    planted = experiment.faults or experiment.slowdown
    incomparable = {verdict.value for verdict in NOT_COMPARED} & row.verdicts.keys()
    if incomparable and not planted:
        raise UsageError(f"{experiment.name}: {' and '.join(sorted(incomparable))} in suite run {row.number}: such a "
                         "comparison can never alarm. Renew the baselines first: "
                         "pytest … --emulate KIND --update-baselines")


def with_slowdown(experiment: Experiment, wanted: Slowdown, tpot: Callable[[float], float]) -> Experiment:
    """The experiment with a step time that changes TPOT by just so much, and with noise to match.

    Args:
        wanted: the change and the noise of TPOT.
        tpot: step time's change → mean TPOT without noise.
    """
    healthy, target = tpot(0.0), log1p(wanted.tpot)
    step_time = wanted.tpot
    for _ in range(SECANTS):
        step_time = expm1(log1p(step_time) * target / log(tpot(step_time) / healthy))
    gain = target / log1p(step_time)
    noise = f"session={wanted.session_sd / gain:.6%},run={wanted.run_sd / gain:.6%},step=1%,ar=0.6"
    return replace(experiment, noise=noise, faults=(f"step_time={step_time:.6%}",))


def draw_baseline(
    drawn_sessions: dict[str, Baseline], lasts: Sequence[Last], rng: random.Random
) -> dict[str, Baseline]:
    """Baselines with randomly drawn sessions, the same number of sessions as stored."""
    measured = {bare_test(test, kind_of(m.conditions)): test for last in lasts for test, m in last.items()}

    def redrawn(baseline: Baseline) -> Baseline:
        test, stored = measured.get(baseline.test), baseline.measurements.get("")
        if test is None or stored is None:
            return baseline
        valid = [last[test] for last in lasts if test in last]  # a session whose runs were an ERROR is never stored
        chosen = rng.sample(valid, min(len(stored.sessions), len(valid)))
        return replace(baseline, measurements={"": _measurements_of(stored, chosen)})

    return {path: redrawn(baseline) for path, baseline in drawn_sessions.items()}


def _measurements_of(stored: StoredMeasurement, measurements: Sequence[Measurement]) -> StoredMeasurement:
    sessions = tuple(_as_stored(session, fresh) for session, fresh in zip(stored.sessions, measurements, strict=False))
    return replace(stored, sessions=sessions)


def _as_stored(session: StoredSession, measurement: Measurement) -> StoredSession:
    runs, metrics = measurement.runs[: LOOKS[0]], measurement.metrics[: LOOKS[0]]
    return replace(
        session,
        runs=tuple((run.seed, run.start_id) for run in runs),
        metrics={name: tuple(metric.values.get(name) for metric in metrics) for name in session.metrics},
    )
