"""Repeated executions of a test within a session, and the runs that they share.

A re-run continues the same test. Its runs are pooled with the runs of earlier executions on an equal engine, workload
and conditions, and the verdict rests on all of these runs. The runs of an execution that ended in an ERROR stay in the
run file and do not count.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.errors import UsageError
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import Note
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult, verdict_of_test
from pytest_llmperf.results.check_json import check_json
from pytest_llmperf.results.ended_test import ExecutionEnding
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.profile import Profile
from pytest_llmperf.session.arguments import check_duration, check_requests, spec_of
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.resumption import finished_sides, looks_elsewhere, stored_executions, stored_rates
from pytest_llmperf.session.series import Series

AnySeries = TypeVar("AnySeries", bound=Series)
NO_EVIDENCE = (None, "ERROR", "USAGE")  # None: it did not reach its end


def begin_execution(
    session: PerfSession, test: str, kind: str, *, compares: bool = False, inputs: Mapping[str, str] | None = None
) -> Execution:
    """Begin an execution of a test, after the executions of that test that this session has seen.

    Args:
        session: of the process.
        test: its id.
        kind: hardware kind that the test runs as.
        compares, inputs: as in `Execution`.
    """
    executions = session.executions(test)
    earlier = tuple(execution for execution in executions if isinstance(execution, Execution))
    execution = Execution(session, test, kind, earlier, compares=compares, inputs=inputs)
    executions.append(execution)
    return execution


class Execution:
    """One execution of a test, with measurements, check results, and the verdict or error.

    Args:
        session: session of the process.
        test: test id.
        kind: hardware kind of the test.
        earlier: earlier executions of the same test in this session.
        compares: whether the test compares with a stored baseline, which is of a server alone.
        inputs: digests of what the verdict depends on, see `TestResult`.
    """

    def __init__(self, session: PerfSession, test: str, kind: str, earlier: tuple[Execution, ...] = (), *,
                 compares: bool = False, inputs: Mapping[str, str] | None = None) -> None:
        self.session = session
        self.compares = compares
        self.inputs = inputs or {}
        self.test = test
        self.kind = kind
        self.earlier = earlier
        self.ending = ExecutionEnding()
        self._results: list[CheckResult] = []
        self.series: list[Series] = []
        #: Rates of a resumed search, until the search takes them over.
        self.stored = stored_rates(session.resumed.get(test), session.host)
        #: Sides of an interrupted claim, until the claim takes them over.
        self.sides = finished_sides(session.resumed.get(test), session.host)
        self.looks_elsewhere = looks_elsewhere(self.stored, session.host)
        #: Executions before this session.
        self.resumed = stored_executions(session.resumed.get(test))
        self.number = len(self.resumed.ends) + len(earlier) + 1
        self.claims: list[tuple[str, Series, Series]] = []
        self.beside: dict[EngineSpec, tuple[EngineSpec, ...]] = {}  # spec → specs whose servers live with its server
        self.alone: dict[EngineSpec, str] = {}  # spec → why its server runs alone, though the test announced others
        self.profiles: list[Profile] = []
        self.run_file: Path | None = None  # once something was measured
        self._begun = False

    @property
    def results(self) -> tuple[CheckResult, ...]:
        """Results of the checks so far. Results are only ever added, so no test can take a FAIL back."""
        return tuple(self._results)

    def add_results(self, results: list[CheckResult], place: int | None = None) -> list[CheckResult]:
        """Add results, at the end or before those that were added from `place` on, and return them."""
        place = len(self._results) if place is None else place
        self._results[place:place] = results
        return results

    @property
    def measurements(self) -> list[Measurement]:
        """The test's measurements so far, including a measurement that is still running, then those of a resumed search
        that the search has not reached again."""
        return [*(series.finished for series in self.measured_series), *self.stored]

    @property
    def measured_series(self) -> list[Series]:
        """The series behind `measurements`, in the same order."""
        return [series for series in self.series if series.measurement is not None]

    def profile_of(self, number: int) -> Profile | None:
        """The trace of a measurement, by its number from 1; None without a trace."""
        return next((profile for profile in self.profiles if profile.measurement == number), None)

    def series_of(self, measurement: Measurement, call: str) -> Series:
        """The series whose newest measurement this is.

        Raises:
            UsageError: this test has not measured it, or has extended or compared it since.
        """
        for series in self.series:
            if series.measurement is measurement:
                return series
        raise UsageError(
            f"{call}: this run was not measured by this test, or was extended or compared since. Pass the last "
            "return value of perf.measure(…) or perf.extend(…)."
        )

    def reason_to_run_alone(self, memory_metrics: Collection[str] = (), *, may_preempt: bool = False) -> str:
        """Why no server of this test may run beside another; "" if it may."""
        if memory_metrics:
            return f"the claim is about {', '.join(sorted(memory_metrics))}, and a server beside it takes memory"
        if may_preempt:
            return "preemptions are allowed, and a server beside it takes memory"
        if self.compares:
            return "the test compares with a stored baseline, which is of a server alone"
        return ""

    def note_alone(self, count: int, reason: str) -> None:
        """Say why servers do not run at the same time, unless the settings say so."""
        if self.session.settings.resident_servers != "none":
            self.session.notify(Note(f"{count} servers do not run at the same time: {reason}."))

    def begin(self, series: AnySeries) -> AnySeries:
        """Begin a series: it continues the same series of earlier executions.

        Raises:
            SpecError: there is no such model, or the engine would refuse a request of the workload.
        """
        check_requests(spec_of(series.engine), series.workload, self.session.pool.model_of(series.engine))
        if not isinstance(self.session.clock, VirtualClock):
            check_duration(series.workload, self.session.settings.measure_timeout_s)
        self.series.append(series)
        continue_earlier(series, self)
        self._open_run_file()
        return series

    def _open_run_file(self) -> None:
        if not self._begun:
            self._begun = True
            self.session.folder.begin()
            self.write()

    def end(self, word: str | None, **changes: Any) -> ExecutionEnding:  # noqa: ANN401 - fields of `ExecutionEnding`
        """Note how the test ended. A test that only checks what another test has measured gets a run file, too."""
        told = ending_of(self.results, self.measurements)
        self.ending = replace(
            self.ending, word=word, checks=told.checks, conditions=told.conditions,
            earlier=tuple(earlier.ending.word or "not ended" for earlier in self.earlier), **changes,
        )
        if self.results:
            self._open_run_file()
        self.ending = replace(self.ending, run_file=str(self.run_file or ""))
        return self.ending

    def close(self) -> None:
        """Write the measurements to the run folder, and release the request records from memory."""
        if self._begun:
            self.write()
        self.session.release_records()

    def write(self) -> None:
        """Write or replace the test's file in the run folder."""
        from pytest_llmperf.results.writer import write_test

        self.run_file = write_test(
            self.session.run_dir,
            self.test,
            self.measurements,
            self.results,
            complete=self.ending.complete,
            error=self.ending.error,
            claims=[_claim(*claim, self.measurements) for claim in self.claims],
            earlier=[excluded_execution(earlier, self) for earlier in self.earlier],
            stored=self.resumed.documents,
            inputs=self.inputs,
            profiles=self.profiles,
            worker=self.session.worker_of(self.test),
        )


def ending_of(results: Sequence[CheckResult], measurements: Sequence[Measurement]) -> ExecutionEnding:
    """The end of a complete test that its checks decided."""
    return ExecutionEnding(
        verdict_of_test(results).value,
        complete=True,
        checks=tuple(json.dumps(check_json(result)) for result in results),
        conditions=tuple(json.dumps(dict(each.conditions), sort_keys=True) for each in measurements),
    )


def pooled_executions(execution: Execution) -> list[Execution]:
    """The earlier executions whose runs count."""
    return [earlier for earlier in execution.earlier if earlier.ending.word not in NO_EVIDENCE]


def continue_earlier(series: Series, execution: Execution) -> None:
    """Let a new series of `execution` go on from the same one of earlier executions."""
    place = sum(member.key == series.key for member in execution.series[:execution.series.index(series)])
    executions = pooled_executions(execution)
    seeds = [
        run.seed for earlier in executions for member in earlier.series if member.current for run in member.current.runs
    ]
    series.follow(
        [same for earlier in executions if (same := _series_at(earlier, series.key, place)) is not None],
        number=execution.number,
        first_seed=max(max(seeds, default=-1) + 1, execution.resumed.first_seed),
        earlier_looks=sum(end not in NO_EVIDENCE for end in execution.resumed.ends) + execution.looks_elsewhere,
    )


def failed_subjects(execution: Execution) -> set[str]:
    """Subjects that the last pooled execution found to FAIL."""
    return {
        result.subject
        for pooled_execution in pooled_executions(execution)[-1:]
        for result in pooled_execution.results
        if result.verdict is Verdict.FAIL
    }


def history(execution: Execution) -> str:
    """"execution 1: FAIL, 3 of its 3 runs count; execution 2: PASS"."""
    this = f"execution {execution.number}: {execution.ending.word or 'not ended'}"
    return "; ".join([*_execution_texts(execution), this])


def excluded_execution(earlier: Execution, execution: Execution) -> dict[str, object]:
    """An earlier execution for the run file: the ending, and the measurements whose runs are not pooled."""
    apart = [
        member.current
        for member in earlier.series
        if member.current is not None and not _has_pooled_runs(member, execution)
    ]
    return {"execution": earlier.number, "ended": earlier.ending.word, "error": earlier.ending.error,
            "results": earlier.results, "measurements": apart}


def _execution_texts(execution: Execution) -> Iterator[str]:
    for number, end in enumerate(execution.resumed.ends, start=1):
        yield f"execution {number}: {end or 'not ended'}, in an earlier command, none of its runs count"
    for earlier in execution.earlier:
        runs = [len(series.current.runs) for series in earlier.series if series.current is not None]
        counted = [
            len(series.current.runs)
            for series in earlier.series if series.current is not None and _has_pooled_runs(series, execution)
        ]
        ended = earlier.ending.word or "not ended"
        yield f"execution {earlier.number}: {ended}, {sum(counted)} of its {sum(runs)} runs count"


def _has_pooled_runs(series: Series, execution: Execution) -> bool:
    """Whether its runs are among those of a later execution."""
    numbers = {id(run) for run in series.current.runs} if series.current is not None else set()
    return any(id(run) in numbers for measurement in execution.measurements for run in measurement.runs)


def _series_at(execution: Execution, key: object, place: int) -> Series | None:
    same = [series for series in execution.series if series.key == key]
    return same[place] if place < len(same) else None


def _claim(text: str, side_a: Series, side_b: Series, measurements: list[Measurement]) -> dict[str, object]:
    """A claim as the run file has it: its sides, and the order of their server starts in each execution."""
    sides = [side.measurement for side in (side_a, side_b)]
    blocks = {(run.execution, run.block, side.side) for side in sides if side for run in side.runs if run.block}
    orders: dict[int, str] = {}
    for execution, _, name in sorted(blocks):
        orders[execution] = orders.get(execution, "") + name.upper()
    index_by_id = {id(measurement): index for index, measurement in enumerate(measurements)}
    return {
        "claim": text,
        "a": index_by_id.get(id(sides[0])),
        "b": index_by_id.get(id(sides[1])),
        "order": {str(execution): order for execution, order in orders.items()},
    }
