"""Finds the build that made a test slower: paired comparisons with the first build, chosen by the posterior."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from time import perf_counter

from pytest_llmperf.calibration.aa_sessions import is_emulated, run_session
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.experiments.builds import BuildFailed, Candidates
from pytest_llmperf.judging.change import change_of
from pytest_llmperf.judging.reference_comparison import paired_readings, start_sd_of
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.engine import REFERENCE
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.process.scratch import lock, write_whole
from pytest_llmperf.results.check import REFERENCE_COMPARISON
from pytest_llmperf.results.conditions import server_kind
from pytest_llmperf.results.levels import change_for_the_worse
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.results.reader import read_run, stored_runs
from pytest_llmperf.stats.bisection_posterior import ChangePosterior, Comparison

STATE = "comparisons.jsonl"
#: Comparisons of both ends until the change is proven, and of any other build until it is skipped.
MOST_OF_ENDS, MOST_OF_BUILD = 3, 4
#: Sessions of a build that did not measure, after which it is skipped.
MOST_PROBLEMS = 2
#: Standard errors by which several comparisons of the ends prove a change that none of them proves alone.
PROVEN_ERRORS = 4.0
#: Two-sided normal quantile of the 95 % interval of the size.
Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Compared:
    """One comparison of a build with the first build, as the state file keeps it.

    Args:
        build: name of the build.
        seconds: duration with the build and the servers' starts.
        differences: metric → difference of each pair on the metric's scale; above 0 for worse.
        verdicts: metric → verdict.
        starts: server starts of each side.
        kind: hardware kind of the server.
        reference: name of the first build.
        problem: why nothing was measured; "" for a comparison.
        final: whether the build cannot be made, so that a repetition is useless.
    """

    build: str
    seconds: float
    differences: Mapping[str, Sequence[float]] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    starts: int = 1
    kind: str = ""
    reference: str = ""
    problem: str = ""
    final: bool = False


def measured_tests(options: Sequence[str], folder: Path) -> Sequence[TestResult]:
    """Run a session of pytest here, and read its tests.

    Raises:
        UsageError: pytest measured nothing.
    """
    run_session(options, folder, Path.cwd())
    tests = [test for run in stored_runs(folder) for test in read_run(run)]
    measured = [test for test in tests if test.measurements]
    if not measured:
        raise UsageError("; ".join(f"{test.test}: {test.reason}" for test in tests))
    return measured


@dataclass(slots=True)
class Bisection:
    """A search among candidates, which continues from the state file.

    Args:
        test: one test, as pytest takes it.
        candidates: the builds.
        arguments: further options of pytest.
        folder: of this search: state file, run folders and builds.
        notify: takes a line of progress.
        session: runs a session of pytest with options, and gives its tests.
    """

    test: str
    candidates: Candidates
    arguments: Sequence[str]
    folder: Path
    notify: Callable[[str], None]
    session: Callable[[Sequence[str], Path], Sequence[TestResult]]
    done: list[Compared] = field(default_factory=list)

    def run(self) -> Finding:
        """Verify the ends, then search.

        Raises:
            UsageError: an end cannot be measured, the test compares nothing with a reference, or another process makes
                the same search.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        held = lock(self.folder / "lock")
        if held is None:
            raise UsageError(f"{self.folder}: another process makes this search. Wait for its end.")
        with os.fdopen(held):
            return self._found()

    def _found(self) -> Finding:
        self._read()
        metric = self._verified()
        while metric is not None and (build := self._posterior(metric).next_build(self._given_up())) is not None:
            self._compare(build, metric)
        return Finding(self, metric, None if metric is None else self._posterior(metric))

    def _read(self) -> None:
        path = self.folder / STATE
        lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
        stored = {number: compared for number, line in enumerate(lines, start=1) if (compared := _stored(line))}
        if damaged := [number for number in range(1, len(lines) + 1) if number not in stored]:
            self.notify(f"{path}: damaged lines are left out: {', '.join(map(str, damaged))}. Their comparisons are "
                        "made again.")
        write_whole(path, "".join(_line(each) for each in stored.values()).encode())  # also a line without its end
        # A moving range, such as main~5..main, has other builds now.
        self.done = [each for each in stored.values() if each.reference == self.candidates.names[0]
                     and each.build in self.candidates.names]
        if self.done:
            self.notify(f"{len(self.done)} comparisons of an earlier call count. To begin anew, delete {self.folder}")

    def _verified(self) -> str | None:
        """The metric that the last build makes worse, by the most standard errors; None if the ends do not differ.

        Raises:
            UsageError: one of the ends cannot be measured.
        """
        last = len(self.candidates.names) - 1
        while True:
            ends = self._of(last)
            if self._has_failed(ends):
                (self.folder / STATE).unlink()  # the same command tries anew when the ends are mended
                raise UsageError(f"The ends {self.candidates.names[0]} and {self.candidates.names[last]} cannot be "
                                 f"compared: {ends[-1].problem.rstrip('.')}. Name ends that start and measure.")
            measured = [each for each in ends if not each.problem]
            errors = {name: self._posterior(name).last_in_errors for each in measured for name in each.differences}
            worse = [name for name, number in errors.items() if any(
                each.verdicts[name] == Verdict.FAIL.value for each in measured) or (
                len(measured) > 1 and number > PROVEN_ERRORS)]
            if worse:
                return max(worse, key=errors.__getitem__)
            if len(measured) >= MOST_OF_ENDS or any(Verdict.INCONCLUSIVE.value not in each.verdicts.values()
                                                    for each in measured):
                return None
            self._compare(last, None)

    def _posterior(self, metric: str) -> ChangePosterior:
        names = self.candidates.names
        comparisons = [Comparison(names.index(each.build), tuple(each.differences[metric]), each.starts)
                       for each in self.done if metric in each.differences]
        ends = [each.effect for each in comparisons if each.build == len(names) - 1]
        kind = next(each.kind for each in self.done if each.kind)
        return ChangePosterior(len(names), comparisons, max(map(abs, ends)), start_sd_of(find(metric), kind).value,
                               self._unusable())

    def _of(self, build: int) -> list[Compared]:
        return [each for each in self.done if each.build == self.candidates.names[build]]

    def _unusable(self) -> list[int]:
        """Builds that were never compared and never will be."""
        return [build for build in range(1, len(self.candidates.names)) if self._has_failed(self._of(build))]

    @staticmethod
    def _has_failed(sessions: Sequence[Compared]) -> bool:
        problems = [each for each in sessions if each.problem]
        enough = len(problems) >= MOST_PROBLEMS or any(each.final for each in problems)
        return enough and len(problems) == len(sessions)

    def _given_up(self) -> list[int]:
        return [build for build in range(1, len(self.candidates.names)) if len(self._of(build)) >= MOST_OF_BUILD]

    def _compare(self, build: int, metric: str | None) -> None:
        """Compare a build with the first build in one session, and store the comparison.

        Args:
            metric: what the search judges; None for the ends, which are compared until a verdict.
        """
        began_s = perf_counter()
        name = self.candidates.names[build]
        place = self.folder / "sessions" / f"{len(self.done) + 1:03d}"
        shutil.rmtree(place, ignore_errors=True)  # of an interrupted comparison
        looks = [] if metric is None else ["--llmperf-extension-limit=0"]
        if is_emulated(self.arguments):  # each session has another noise seed
            looks.append(f"--emulate-seed={len(self.done) + 1}")
        try:
            options = self.candidates.options(build, self.notify)
            tests = self.session([self.test, *options, *looks, *self.arguments], place)
            compared = _compared(tests, name, metric, perf_counter() - began_s)
        except (BuildFailed, BaselineError, UsageError) as error:
            final = isinstance(error, BuildFailed)
            compared = Compared(name, perf_counter() - began_s, problem=f"{error}".strip(), final=final)
        compared = replace(compared, reference=self.candidates.names[0])
        self.done.append(compared)
        with (self.folder / STATE).open("a", encoding="utf-8") as file:
            file.write(_line(compared))
        self.notify(f"comparison {len(self.done)}: {self.candidates.described(build)}: {_effects_text(compared)}, "
                    f"{compared.seconds:.0f} s")


def _line(compared: Compared) -> str:
    return json.dumps(asdict(compared)) + "\n"


def _stored(line: str) -> Compared | None:
    """The comparison in a line of the state file; None for a damaged line."""
    try:
        return Compared(**json.loads(line))
    except (TypeError, ValueError):
        return None


def _effects_text(compared: Compared) -> str:
    if compared.problem:
        return f"nothing was measured: {compared.problem.splitlines()[-1].rstrip('.')}"
    return ", ".join(f"{name} {change_for_the_worse(name, fmean(values))} ({len(values)} pairs)"
                     for name, values in compared.differences.items())


def _percent(probability: float) -> str:
    """A probability; a posterior never reaches 100 %."""
    return f"{100 * min(probability, 0.999):.3g} %"


def _compared(tests: Sequence[TestResult], name: str, metric: str | None, seconds: float) -> Compared:
    """What a session compared. A metric with an infinite value has no differences.

    Args:
        metric: must have differences; None if any metric will do.

    Raises:
        UsageError: there are several tests or none, the test has no comparison with the reference, the runs are
            invalid, or failed requests make the metric infinite.
    """
    if len(tests) != 1:
        raise UsageError(f"{len(tests)} tests were measured: {', '.join(test.test for test in tests)}. Name one test.")
    (test,) = tests
    checks = {check.metric: check for check in test.checks if check.subject.startswith(REFERENCE_COMPARISON)}
    pairs = [pair for pair in pairwise(test.measurements) if _has_reference(pair[1]) and not _has_reference(pair[0])]
    differences = {}
    for each in checks if pairs else ():
        with suppress(ValueError):
            differences[each] = [new - old for new, old in paired_readings(find(each), *pairs[0])]
    if test.ending.verdict == Verdict.ERROR.value or not differences or metric not in (None, *differences):
        reason = test.reason if checks or test.ending.verdict == Verdict.ERROR.value else ""
        why = reason or "no metric was compared with the reference build. Write perf.compare_with_baseline(run)"
        raise UsageError(f"{test.test}: {why}")
    candidate, _ = pairs[0]
    return Compared(name, seconds, differences, {each: check.verdict.value for each, check in checks.items()},
                    len({run.start_id for run in candidate.runs}), server_kind(candidate.conditions))


def _has_reference(measurement: Measurement) -> bool:
    return measurement.conditions.get("installation") == REFERENCE


@dataclass(frozen=True, slots=True)
class Finding:
    """The end of a search.

    Args:
        search: the search with its comparisons.
        metric: the metric that changed; None if the ends do not differ.
        posterior: of the places; None if the ends do not differ.
    """

    search: Bisection
    metric: str | None
    posterior: ChangePosterior | None

    @property
    def found(self) -> bool:
        """Whether one build is named."""
        return self.posterior is not None and self.posterior.next_build() is None and len(self.posterior.culprits) == 1

    def lines(self) -> list[str]:
        """The culprit, its size, what the search took, and what could not be compared."""
        search, names = self.search, self.search.candidates.names
        measured = [each for each in search.done if not each.problem]
        pairs = sum(len(next(iter(each.differences.values()))) for each in measured)
        minutes = sum(each.seconds for each in search.done) / 60
        lines = [*self._culprit_lines(), f"range: {names[0]} … {names[-1]}, {len(names)} builds; {len(search.done)} "
                 f"comparisons, {pairs} pairs, {minutes:.1f} min; run folders: {search.folder / 'sessions'}"]
        skipped = {each.build: each.problem for each in search.done if each.problem}
        return [*lines, *(f"skipped: {name}: {problem}" for name, problem in skipped.items()
                          if search._has_failed(search._of(names.index(name))))]

    def _culprit_lines(self) -> list[str]:
        names, described = self.search.candidates.names, self.search.candidates.described
        if self.posterior is None or self.metric is None:
            ends = self.search._of(len(names) - 1)
            return [f"no culprit: {names[-1]} is not proven to be worse than {names[0]}: {_effects_text(ends[-1])}. "
                    "Name ends between which the test became slower."]
        posterior, (effect, se) = self.posterior, self.posterior.size()
        low, high = sorted(change_of(find(self.metric), effect + sign * Z95 * se) for sign in (-1, 1))
        listed, size = " or ".join(map(described, posterior.culprits)), change_for_the_worse(self.metric, effect)
        word = "culprit" if self.found else "most probable" if len(posterior.culprits) == 1 else "culprit is one of"
        lines = [f"{word}: {listed} ({_percent(posterior.certainty)} probability)",
                 f"{self.metric} {size} (95 %: {100 * low:+.1f} … {100 * high:+.1f} {size.split()[-1]})"]
        if posterior.two_changes > 0.5:
            second = max(set(range(1, len(names))) - set(posterior.culprits), key=posterior.by_build.__getitem__)
            lines.append(f"a second change is probable ({_percent(posterior.two_changes)}), most likely at "
                         f"{described(second)} ({_percent(posterior.by_build[second])})")
        return lines
