"""Refuses events that cannot happen in a measurement, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.deployment import Deployment, PrefillDecode
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.event import Event
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.workload import Workload

CALL = "perf.measure(…, events=[…])"


def check_events(events: object, spec: EngineSpec, workload: Workload, session: PerfSession) -> tuple[Event, ...]:
    """The events in the order of time.

    Raises:
        SpecError: an event is invalid for these servers or this workload.
    """
    if isinstance(events, Event) or not isinstance(events, Sequence) or not all(
            isinstance(event, Event) for event in events):
        raise SpecError(f"perf.measure(…, events={events!r}): write a list of events: "
                        "events=[kill(replica=0, at_requests=0.25), restart(replica=0, at_requests=0.5)].")
    if not events:
        return ()
    if spec.is_endpoint:
        raise SpecError(f"{CALL}: {spec} runs already, and this session ends only servers that it started. Measure "
                        "replicas(…) that the test starts.")
    if not isinstance(spec, Deployment):
        raise SpecError(f"{CALL}: {spec} is one server, and without it nothing would answer. Measure replicas behind a "
                        "router: replicas(spec, 2, router=vllm_router()).")
    if isinstance(spec, PrefillDecode):
        raise SpecError(f"{CALL}: the servers of {spec} cannot be ended during a run yet. Measure replicas behind a "
                        "router: replicas(spec, 2, router=vllm_router()).")
    if session.hardware.emulated and not isinstance(session.clock, VirtualClock):
        raise SpecError(f"{CALL}: the emulator in real time is one process, of which no part can end. Leave "
                        "--emulate-clock real out.")
    count = len(workload.requests(0))
    ordered = sorted(events, key=lambda event: event.due(count))
    _check_order(ordered, spec, workload, count)
    return tuple(ordered)


def _check_order(events: Sequence[Event], spec: Deployment, workload: Workload, count: int) -> None:
    dead: set[int] = set()
    moments: dict[tuple[int, int], Event] = {}
    for event in events:
        if event.pool:
            raise SpecError(f"{event}: {spec} has no pools. Name the replica alone: {replace(event, pool='')}.")
        if event.replica >= spec.servers:
            raise SpecError(f"{event}: {spec} has {spec.servers} replicas, 0 to {spec.servers - 1}. Name one of them.")
        if not 0 < event.due(count) < count:
            raise SpecError(f"{event}: {workload} has {count} requests, so the event would come "
                            f"{'after the last' if event.due(count) else 'before the first'} of them. Choose another "
                            "at_requests, or send more requests.")
        moment = (event.replica, event.due(count))
        if moment in moments:
            raise SpecError(f"{moments[moment]} and {event} change one replica at the same moment, after "
                            f"{event.due(count)} of {count} requests. Give one of them another at_requests.")
        moments[moment] = event
        if (event.action == "restart") != (event.replica in dead):
            state = "still runs then" if event.action == "restart" else "has ended before"
            repair = "Kill it earlier" if event.action == "restart" else "Restart it in between"
            raise SpecError(f"{event}: replica {event.replica} {state}. {repair}, or leave the event out.")
        dead ^= {event.replica}
