"""A/A on the user's own machine: the same tests, session after session.

Counts their false alarms, and says which change a comparison can detect in their spread.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import UsageError
from pytest_llmperf.metrics.registry import Metric, find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.process.kernel import close_pipes, end_child
from pytest_llmperf.results.conditions import EMULATED, kind_of, server_kind
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.results.reader import read_test
from pytest_llmperf.results.sentences import estimate_text, reason_text
from pytest_llmperf.results.session_spread import readings
from pytest_llmperf.stats.decision import LOOKS, SUITE_ALPHA, spent_share
from pytest_llmperf.stats.interval import share_interval
from pytest_llmperf.stats.noise_estimate import NoiseEstimate, estimate_noise, runs_needed, smallest_detectable
from pytest_llmperf.stats.priors import (
    Kind,
    Prior,
    SuiteSpread,
    deciding_sessions,
    margins_for,
    prior_for,
    scale_of,
    session_levels,
)
from pytest_llmperf.stats.priors import kind_of as kind_of_metric
from pytest_llmperf.stats.shift import SeededRun

EFFECTS = (0.05, 0.10)
ALARMS = (Verdict.FAIL, Verdict.ERROR)
STOP_LIMIT_S = 60.0  # of an interrupted session, whose servers have their time to end
Sessions = dict[tuple[str, str], list[Measurement]]


@dataclass(frozen=True, slots=True)
class CalibratedMetric:
    """One metric of one measurement; changes are shares, positive for worse.

    Args:
        test, metric: whose it is.
        noise: its noise.
        detectable: runs → smallest change that fails in nine of ten cases; infinite if nothing can fail.
        needed: change → runs that show it; None: out of reach.
        tolerated: by the test.
        deciding_sessions: stored sessions from which any proven regression fails, if fewer ran here; else None.
    """

    test: str
    metric: str
    noise: NoiseEstimate
    detectable: Mapping[int, float]
    needed: Mapping[float, int | None]
    tolerated: float
    deciding_sessions: int | None = None

    @property
    def margin_undetectable(self) -> bool:
        """Whether a change as large as is tolerated goes unseen with all runs that a comparison may take."""
        return min(self.detectable.values()) > self.tolerated

    @property
    def advice(self) -> str:
        """How to detect smaller changes. Too few sessions let only gross changes fail, whatever the margin."""
        if self.deciding_sessions is not None:
            return f"Store at least {self.deciding_sessions} sessions: fewer let only larger changes fail."
        return f'Widen its margin (margins={{"{self.metric}": …}}), store more sessions, or quieten the machine.'


def run_sessions(
    arguments: Sequence[str], count: int, runs_dir: Path, root: Path, notify: Callable[[str], None]
) -> list[Path]:
    """Run `count` pytest sessions in sequence; each session starts its own servers.

    Args:
        arguments: arguments for pytest. Each emulated session gets a different noise seed.
        runs_dir: folder for the run folders, one per session.

    Returns:
        The folder of each session.

    Raises:
        UsageError: pytest could not run the tests.
    """
    folders = []
    for number in range(1, count + 1):
        folder = runs_dir / f"session-{number:02d}"
        seed = ["--emulate-seed", str(number)] if is_emulated(arguments) else []
        notify(f"session {number} of {count}: {run_session([*arguments, *seed], folder, root)}")
        folders.append(folder)
    return folders


def is_emulated(arguments: Sequence[str]) -> bool:
    """Whether the arguments of a pytest session select the emulator."""
    return any(argument.partition("=")[0] == "--emulate" for argument in arguments)


def run_session(arguments: Sequence[str], folder: Path, root: Path) -> str:
    """Run one pytest session, and return its last line.

    Args:
        arguments: arguments for pytest.
        folder: folder for the run folder.

    Raises:
        UsageError: pytest could not run the tests.
    """
    command = [sys.executable, "-m", "pytest", "-q", f"--llmperf-runs={folder}", *arguments]
    code, output, errors = _run_to_end(command, root)
    if not any(folder.glob("*/tests/*.json")):
        if code == 0:
            raise UsageError(f"no test measured anything with the fixture perf: pytest {shlex.join(arguments)}. Name "
                             "tests that measure.")
        raise UsageError(f"pytest measured nothing (exit code {code}). Correct what it reports: "
                         f"{output[-800:]}{errors[-800:]}")
    return output.strip().splitlines()[-1]


def _run_to_end(command: Sequence[str], root: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a session. An interrupt becomes one SIGTERM, at which pytest stops servers."""
    session = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)
    try:
        output, errors = session.communicate()
    except BaseException:
        session.terminate()
        end_child(session, STOP_LIMIT_S)
        close_pipes(session)
        raise
    return session.returncode, output.decode(errors="replace"), errors.decode(errors="replace")


def tests_of(folder: Path) -> list[TestResult]:
    """The tests of one session."""
    return [read_test(path) for path in sorted(folder.glob("*/tests/*.json"))]


def alarms(tests: Sequence[TestResult]) -> list[str]:
    """Each FAIL and ERROR of a session: false alarms if nothing changed between sessions."""
    checks = [f"{test.test}: {check.subject}: {check.verdict.value}: {check.metric} {estimate_text(check)}: "
              f"{reason_text(check)}" for test in tests for check in test.checks if check.verdict in ALARMS]
    return checks + [f"{test.test}: ERROR: {test.error}" for test in tests if test.error is not None]


def alarm_text(sessions: Sequence[Sequence[TestResult]]) -> str:
    """How many sessions have a false alarm, with Clopper–Pearson's limits, and each alarm."""
    by_session = [alarms(tests) for tests in sessions]
    count = sum(map(bool, by_session))
    limits = share_interval(count, len(sessions), 0.975)
    return "\n".join([f"{count} of {len(sessions)} sessions have a FAIL or an ERROR, which are false alarms if nothing "
                      f"changed: {count / len(sessions):.1%} (95 %: {limits.low:.1%}–{limits.high:.1%}).",
                      *(f"session {number}: {alarm}" for number, session in enumerate(by_session, 1)
                        for alarm in session)])


def compared_measurements(sessions: Sequence[Sequence[TestResult]]) -> Sessions:
    """(test, name) → its compared measurements, one per session in which it was valid and complete."""
    compared: Sessions = {}
    for test in (test for tests in sessions for test in tests):
        if test.complete and test.error is None and all(check.verdict is not Verdict.ERROR for check in test.checks):
            for measurement in test.compared:
                compared.setdefault((test.test, measurement.baseline or ""), []).append(measurement)
    return compared


def calibrate_metrics(sessions: Sessions, store: Store) -> tuple[list[CalibratedMetric], list[str]]:
    """The calibrated metrics, and the reasons why other metrics could not be calibrated.

    Args:
        store: the project's baselines. All baseline comparisons of a hardware kind share one error probability.

    Raises:
        UsageError: no measurement has a baseline comparison, or no metric could be calibrated.
    """
    if not sessions:
        raise UsageError("No valid measurement here is compared with a baseline, and only compared measurements are "
                         "calibrated. Write perf.compare_with_baseline(run).")
    counts = {kind: _comparison_count(kind, sessions, store) for kind in map(_kind, sessions.values())}
    learnt, unknown = [], []
    suites = {kind: _suite(sessions, kind) for kind in counts}
    for (test, name), runs in sessions.items():
        for metric in runs[0].primaries:
            try:
                learnt.append(_calibrate_metric(f"{test} {name}".strip(), metric, runs, counts[_kind(runs)],
                                                suites[_kind(runs)]))
            except ValueError as error:
                unknown.append(f"{test}: {metric}: {error}")
    if not learnt:
        raise UsageError(f"{unknown[0]}. Let more sessions run: --sessions 5.")
    return learnt, unknown


def _kind(measurements: Sequence[Measurement]) -> str:
    return kind_of(measurements[0].conditions)


def _comparison_count(kind: str, sessions: Sessions, store: Store) -> int:
    """Number of baseline comparisons with a common error probability, which each hardware kind has of its own."""
    here = sum(len(session[0].primaries) for session in sessions.values() if _kind(session) == kind)
    stored = [
        measurement.primaries for each in store.read_all(kind).values() for measurement in each.measurements.values()
    ]
    return max(here, sum(map(len, stored)), 1)


def _suite(sessions: Sessions, kind: str) -> SuiteSpread:
    """The spread that comparisons know once all these sessions are stored."""
    def levels() -> Iterator[tuple[Kind, Prior, list[float]]]:
        for measurements in sessions.values():
            for metric in map(find, measurements[0].primaries if _kind(measurements) == kind else ()):
                with suppress(ValueError):
                    yield (kind_of_metric(metric), prior_for(metric, _hardware(measurements)),
                           session_levels(_runs(measurements, metric)))

    return SuiteSpread.of(levels())


def _hardware(measurements: Sequence[Measurement]) -> str:
    return server_kind(measurements[0].conditions).removeprefix(EMULATED)


def _runs(measurements: Sequence[Measurement], metric: Metric) -> list[list[SeededRun]]:
    return [readings([run.seed for run in each.runs], each.values_with_failures(metric.name), metric)
            for each in measurements]


def _calibrate_metric(
    test: str, name: str, measurements: Sequence[Measurement], suite_primaries: int, suite: SuiteSpread
) -> CalibratedMetric:
    alpha, deciding = SUITE_ALPHA / suite_primaries, deciding_sessions(suite_primaries)
    metric, kind = find(name), _hardware(measurements)
    scale = scale_of(metric)
    shares = measurements[0].margins.get(name) or margins_for(metric, kind)
    prior, margins = suite.learnt(prior_for(metric, kind), kind_of_metric(metric)), shares.on(scale)
    runs = _runs(measurements, metric)
    noise = estimate_noise(runs)
    seeds = min(len({seed for seed, _ in run}) for run in runs)
    sizes = {"sessions": len(measurements), "seeds": seeds}

    def change(distance: float) -> float:
        return abs(scale.change(distance)) if distance < float("inf") else distance

    return CalibratedMetric(
        test=test,
        metric=name,
        noise=noise,
        detectable={
            look: change(
                smallest_detectable(
                    noise, prior, margins, alpha * spent_share(look), runs=look, **sizes
                )
            )
            for look in LOOKS
        },
        needed={
            effect: runs_needed(noise, prior, margins, alpha, scale.width(effect), **sizes)
            for effect in EFFECTS
        },
        tolerated=shares.tolerated,
        deciding_sessions=deciding if len(measurements) < deciding else None,
    )


def table(calibrated: Sequence[CalibratedMetric], problems: Sequence[str], sessions: int) -> str:
    """A Markdown table of the calibrated metrics for people."""
    head = ["test", "metric", "sd of runs", "sd of sessions", *(f"seen with {look} runs" for look in LOOKS),
            *(f"runs for {effect:.0%}" for effect in EFFECTS), "tolerated"]
    rows = [[entry.test, entry.metric, f"{entry.noise.run_sd:.2%} ({entry.noise.run_df} df)",
             f"{entry.noise.session_sd:.2%} ({entry.noise.session_df} df)",
             *(_change_text(entry.detectable[look]) for look in LOOKS),
             *(str(entry.needed[effect] or "out of reach") for effect in EFFECTS), f"{entry.tolerated:.1%}"]
            for entry in calibrated]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    warnings = [f"WARNING: {entry.test}: {entry.metric} tolerates {entry.tolerated:.1%}, and a change of less than "
                f"{_change_text(min(entry.detectable.values()))} goes unseen here. {entry.advice}"
                for entry in calibrated if entry.margin_undetectable]
    return "\n".join([
        *lines,
        f"\n{sessions} sessions. Seen: fails in nine of ten cases, if as many sessions are stored as ran here.",
        *warnings,
        *(f"Not calibrated: {problem}." for problem in problems),
    ])


def _change_text(change: float) -> str:
    return f"{change:.1%}" if change < float("inf") else "nothing"
