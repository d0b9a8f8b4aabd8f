"""Did the load generator keep up? If it did not, the run measured the load generator instead of the server."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from operator import attrgetter

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.metrics import RunMetrics
from pytest_llmperf.model.exchange import LoadReport
from pytest_llmperf.results.causes.runs import (
    ArrivalsStampedLate,
    ChunksCoalesced,
    ClocksUncertain,
    LoadGeneratorFault,
    LoadProcessSuspended,
    RequestsSentLate,
    SlotsEmpty,
)
from pytest_llmperf.results.check import Fault
from pytest_llmperf.results.measurement import Run

#: A run with fewer than 100 requests has its longest pause as p99. Pauses below this share of the slots' time change
#: throughput and the number of requests in flight by less than 1 %.
EMPTY_SHARE_LIMIT = 0.01
GAP_METRICS = ("itl", "largest_stall")


def load_generator_problems(
    run: Run, metrics: RunMetrics, named: Collection[str], settings: Settings
) -> Iterator[Fault]:
    """Where the load generator distorted a run.

    Args:
        run: the run.
        metrics: of the run.
        named: metrics that the test judges itself.
        settings: the limits.
    """
    late = _lateness(run, metrics, named, settings)
    if late is not None:
        yield _with_load(late, run.load)
    coalesced = metrics.value("coalesced_share")
    asks_for_gaps = any(name.startswith(GAP_METRICS) for name in named) and "coalesced_share" not in named
    if asks_for_gaps and coalesced is not None and coalesced > settings.coalesced_limit:
        yield _with_load(ChunksCoalesced(share=coalesced, limit=settings.coalesced_limit), run.load)
    if run.clock_gap_ms > settings.clock_gap_limit_ms:
        yield LoadProcessSuspended(run.clock_gap_ms, settings.clock_gap_limit_ms)


def _lateness(
    run: Run, metrics: RunMetrics, named: Collection[str], settings: Settings
) -> LoadGeneratorFault | None:
    """In what way the load generator was late, the worst way first; None if it was in time."""
    delay_ms, limit_ms = metrics.value("send_delay_p99"), settings.send_delay_p99_limit_ms
    judged = not {"send_delay_p99", "send_delay_max"}.isdisjoint(named)
    if not judged and delay_ms is not None and delay_ms > limit_ms:
        return RequestsSentLate(measured_ms=delay_ms, limit_ms=limit_ms)
    if run.load is None:
        return None
    empty_ms = (run.load.turnaround_p99_ns or 0) / 1e6
    if empty_ms > limit_ms and (share := _empty_share(run, run.load)) > EMPTY_SHARE_LIMIT:
        return SlotsEmpty(measured_ms=empty_ms, limit_ms=limit_ms, share=share, share_limit=EMPTY_SHARE_LIMIT)
    error_ms, error_limit_ms = run.load.stamp_error_p99_ns / 1e6, settings.stamp_error_p99_limit_ms
    if error_ms > error_limit_ms and (worst := max(run.load.hosts, key=attrgetter("clock_error_ns"), default=None)):
        return ClocksUncertain(measured_ms=error_ms, limit_ms=error_limit_ms,
                               clock_error_ms=worst.clock_error_ns / 1e6, load_host=worst.name)
    if error_ms > error_limit_ms:
        return ArrivalsStampedLate(measured_ms=error_ms, limit_ms=error_limit_ms,
                                   kernel_stamped=run.load.kernel_stamped or 0.0)
    return None


def _empty_share(run: Run, load: LoadReport) -> float:
    """Share of the slots' time between an answer and the next request; 0 in an open loop."""
    taken_ns = sum(record.ended_ns - record.sent_ns for record in run.records if record.sent_ns is not None)
    return load.turnaround_total_ns / max(1, load.turnaround_total_ns + taken_ns)


def _with_load(fault: LoadGeneratorFault, load: LoadReport | None) -> LoadGeneratorFault:
    """The fault with the state of the load processes behind it."""
    if load is None:
        return fault
    delay_ns = load.read_delay_p99_ns
    return replace(fault, load_processes=load.processes, load_cpus=len(load.cpus), own_cpus=load.own_cpus,
                   busy=load.busy, read_delay_ms=None if delay_ns is None else delay_ns / 1e6)
