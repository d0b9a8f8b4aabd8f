"""One plan for several load processes, each request in exactly one part, and one replay of their recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import overload

from pytest_llmperf.load.arrivals import Histogram
from pytest_llmperf.load.cores import Cores
from pytest_llmperf.load.host_clock import HostClock
from pytest_llmperf.load.recording import End, Exchanges, Recording
from pytest_llmperf.model.exchange import Exchange, HostReport, LoadReport, Replay
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest


class _InOrder(Sequence[Exchange]):
    """Exchanges in the order of a plan's requests, each read from its recording when it is asked for."""

    def __init__(self, recorded: Sequence[Exchanges], plan: LoadPlan) -> None:
        self._of = {index: exchanges for exchanges in recorded for index in exchanges}
        self._indices = [request.index for request in plan.requests]

    @overload
    def __getitem__(self, position: int) -> Exchange: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Exchange]: ...
    def __getitem__(self, position: int | slice) -> Exchange | Sequence[Exchange]:
        if isinstance(position, slice):
            return [self._of[index][index] for index in self._indices[position]]
        index = self._indices[position]
        return self._of[index][index]

    def __len__(self) -> int:
        return len(self._indices)


def in_our_time(recording: Recording, clock: HostClock) -> Recording:
    """The whole recording of another host, with all times on our clock."""
    if recording.started_ns is not None:
        recording.started_ns = clock.our_ns(recording.started_ns)
    if recording.end is not None:
        recording.end = replace(recording.end, ended_ns=clock.our_ns(recording.end.ended_ns))
    recording.exchanges.convert(clock.our_ns)
    return recording


def replay_of(
    recordings: Sequence[Recording], plan: LoadPlan, cores: Cores, hosts: Sequence[HostReport] = ()
) -> Replay:
    """The replay of a plan from recordings that are whole, one for each process, all in our time."""
    ends = [recording.end for recording in recordings if recording.end is not None]
    ended_ns = [at_ns for recording in recordings if (at_ns := recording.exchanges.ended_ns) is not None]
    return Replay(
        started_ns=min(recording.started_ns for recording in recordings if recording.started_ns is not None),
        ended_ns=max(ended_ns, default=max(end.ended_ns for end in ends)),
        exchanges=_InOrder([recording.exchanges for recording in recordings], plan),
        loop_lag_ns=tuple(lag for recording in recordings for lag in recording.loop_lag_ns),
        clock_gap_ns=max(end.clock_gap_ns for end in ends),
        cpu_ns=sum(end.cpu_ns for end in ends),
        load=_report(ends, cores, hosts),
    )


def _report(ends: Sequence[End], cores: Cores, hosts: Sequence[HostReport]) -> LoadReport:
    delays, errors, turnarounds = Histogram(), Histogram(), Histogram()
    for end in ends:
        delays.merge(end.read_delays)
        errors.merge(end.stamp_errors)
        turnarounds.merge(end.turnarounds)
    kernel, unstamped = delays.total, errors.total
    return LoadReport(
        processes=len(ends),
        cpus=cores.load,
        own_cpus=cores.reserved,
        kernel_stamped=kernel / (kernel + unstamped) if kernel + unstamped else None,
        stamp_error_p99_ns=_p99_of_all(errors, kernel) + max((host.clock_error_ns for host in hosts), default=0),
        read_delay_p99_ns=delays.quantile_ns(0.99),
        turnaround_p99_ns=turnarounds.quantile_ns(0.99),
        turnaround_total_ns=sum(end.turnaround_ns for end in ends),
        busy=max(end.cpu_ns / max(1, end.elapsed_ns) for end in ends),
        peak_memory_bytes=sum(end.memory_bytes for end in ends),
        hosts=tuple(hosts),
    )


def _p99_of_all(errors: Histogram, exact: int) -> int:
    """The 99th percentile of the stamps' errors, where `exact` more stamps have none."""
    all_reads = errors.total + exact
    if errors.total <= 0.01 * all_reads:
        return 0
    return errors.quantile_ns((0.99 * all_reads - exact) / errors.total) or 0


def shards(plan: LoadPlan, processes: int) -> tuple[LoadPlan, ...]:
    """Split a plan into at most `processes` parts, at most as many as the plan has conversations or slots.

    A conversation stays together. In a closed loop every part has its share of the slots, and as many conversations for
    each of them: a slot whose part has run out of requests stays empty at the end.
    """
    conversations: dict[int, list[PlannedRequest]] = {}
    root: dict[int, int] = {}
    for request in plan.requests:
        root[request.index] = request.index if request.after is None else root[request.after]
        conversations.setdefault(root[request.index], []).append(request)
    parts = min(processes, len(conversations), plan.concurrency or processes)
    if parts <= 1:
        return (plan,)
    limits = replace(plan.limits, held_bytes=plan.limits.held_bytes // parts,
                     replay_bytes=plan.limits.replay_bytes // parts)
    dealt: list[list[PlannedRequest]] = [[] for _ in range(parts)]
    slots = plan.concurrency or parts
    for position, turns in enumerate(conversations.values()):
        dealt[position % slots % parts] += turns
    return tuple(
        replace(
            plan,
            requests=tuple(sorted(requests, key=lambda request: request.index)),
            limits=limits,
            concurrency=None if plan.concurrency is None else _share(plan.concurrency, position, parts),
        )
        for position, requests in enumerate(dealt)
    )


def _share(slots: int, position: int, parts: int) -> int:
    return slots // parts + (position < slots % parts)
