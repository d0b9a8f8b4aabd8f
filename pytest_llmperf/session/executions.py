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


def pooled(perf: Perf) -> list[Perf]:
    """The earlier executions whose runs count."""
    return [one for one in perf.earlier if one.ended not in NO_EVIDENCE]


def continue_earlier(series: Series, perf: Perf) -> None:
    """Let a new series of `perf` go on from the same one of earlier executions."""
    place = sum(other.key == series.key for other in perf.series[:perf.series.index(series)])
    before = pooled(perf)
    seeds = [run.seed for one in before for each in one.series if each.own for run in each.own.runs]
    series.follow(
        [same for one in before if (same := _series_at(one, series.key, place)) is not None],
        execution=len(perf.earlier) + 1,
        first_seed=max(seeds, default=-1) + 1,
    )


def failed_before(perf: Perf) -> set[str]:
    """Subjects that the last pooled execution found to FAIL."""
    return {result.subject for one in pooled(perf)[-1:] for result in one.results if result.verdict is Verdict.FAIL}


def history(perf: Perf) -> str:
    """"execution 1: FAIL, 3 of its 3 runs count; execution 2: PASS"."""
    return "; ".join([*_told(perf), f"execution {len(perf.earlier) + 1}: {perf.ended or 'not ended'}"])


def left_out(earlier: Perf, perf: Perf) -> dict[str, object]:
    """An earlier execution as the run file has it: how it ended, and those of its measurements that do not count."""
    number = len(earlier.earlier) + 1
    apart = [one.own for one in earlier.series if one.own is not None and not _counted(one, perf)]
    return {"execution": number, "ended": earlier.ended, "error": earlier.error, "results": earlier.results,
            "measurements": apart}


def _told(perf: Perf) -> Iterator[str]:
    for number, one in enumerate(perf.earlier, start=1):
        runs = [len(series.own.runs) for series in one.series if series.own is not None]
        counted = [len(series.own.runs) for series in one.series if series.own is not None and _counted(series, perf)]
        yield f"execution {number}: {one.ended or 'not ended'}, {sum(counted)} of its {sum(runs)} runs count"


def _counted(series: Series, perf: Perf) -> bool:
    """Whether its runs are among those of a later execution."""
    numbers = {id(run) for run in series.own.runs} if series.own is not None else set()
    return any(id(run) in numbers for each in perf.measurements for run in each.runs)


def _series_at(perf: Perf, key: object, place: int) -> Series | None:
    same = [series for series in perf.series if series.key == key]
    return same[place] if place < len(same) else None
