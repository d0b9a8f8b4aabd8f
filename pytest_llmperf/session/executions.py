"""A test that is executed again within a session: what earlier executions leave to it.

A re-run is no new test. Its runs join those of the executions before, measured on an equal engine, workload and
conditions, and the verdict is of all of them. An execution that ended in an ERROR is no evidence: its runs stay in the
run file, and count nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_llmperf.model.verdict import Verdict

if TYPE_CHECKING:
    from pytest_llmperf.session.perf import Perf
    from pytest_llmperf.session.series import Series

NO_EVIDENCE = (None, "ERROR", "USAGE")  # None: it did not reach its end


def pooled_executions(perf: Perf) -> list[Perf]:
    """The earlier executions whose runs count."""
    return [execution for execution in perf.earlier if execution.ended not in NO_EVIDENCE]


def continue_earlier(series: Series, perf: Perf) -> None:
    """Let a new series of `perf` go on from the same one of earlier executions."""
    place = sum(member.key == series.key for member in perf.series[:perf.series.index(series)])
    executions = pooled_executions(perf)
    seeds = [
        run.seed for execution in executions for member in execution.series if member.own for run in member.own.runs
    ]
    series.follow(
        [same for execution in executions if (same := _series_at(execution, series.key, place)) is not None],
        execution=len(perf.earlier) + 1,
        first_seed=max(seeds, default=-1) + 1,
    )


def failed_subjects(perf: Perf) -> set[str]:
    """Subjects that the last pooled execution found to FAIL."""
    return {
        result.subject
        for pooled_execution in pooled_executions(perf)[-1:]
        for result in pooled_execution.results
        if result.verdict is Verdict.FAIL
    }


def history(perf: Perf) -> str:
    """"execution 1: FAIL, 3 of its 3 runs count; execution 2: PASS"."""
    return "; ".join([*_execution_texts(perf), f"execution {len(perf.earlier) + 1}: {perf.ended or 'not ended'}"])


def excluded_execution(earlier: Perf, perf: Perf) -> dict[str, object]:
    """An earlier execution as the run file has it: how it ended, and those of its measurements that do not count."""
    number = len(earlier.earlier) + 1
    apart = [member.own for member in earlier.series if member.own is not None and not _has_pooled_runs(member, perf)]
    return {"execution": number, "ended": earlier.ended, "error": earlier.error, "results": earlier.results,
            "measurements": apart}


def _execution_texts(perf: Perf) -> Iterator[str]:
    for number, one in enumerate(perf.earlier, start=1):
        runs = [len(series.own.runs) for series in one.series if series.own is not None]
        counted = [
            len(series.own.runs) for series in one.series if series.own is not None and _has_pooled_runs(series, perf)
        ]
        yield f"execution {number}: {one.ended or 'not ended'}, {sum(counted)} of its {sum(runs)} runs count"


def _has_pooled_runs(series: Series, perf: Perf) -> bool:
    """Whether its runs are among those of a later execution."""
    numbers = {id(run) for run in series.own.runs} if series.own is not None else set()
    return any(id(run) in numbers for measurement in perf.measurements for run in measurement.runs)


def _series_at(perf: Perf, key: object, place: int) -> Series | None:
    same = [series for series in perf.series if series.key == key]
    return same[place] if place < len(same) else None
