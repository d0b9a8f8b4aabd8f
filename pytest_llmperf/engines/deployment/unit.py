"""The processes of a deployment: replicas and router, watched and stopped together, ended and restarted under load."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from pytest_llmperf.clock import Clock
from pytest_llmperf.engines.process.unit import Unit
from pytest_llmperf.errors import EngineError, ServerDied
from pytest_llmperf.model.deployment import Deployment
from pytest_llmperf.model.event import Event, PastEvent
from pytest_llmperf.process.background_thread import in_background
from pytest_llmperf.process.supervisor import Supervised


class DeploymentUnit(Unit):
    """The processes of a deployment, which start and end together. If one process ends, the deployment is unusable.

    Args:
        spec: what was asked for.
        router: the supervised router.
        parts: name of a server → its processes.

    Attributes:
        ended: replicas that the test has ended, and that have not started again.
    """

    def __init__(self, spec: Deployment, router: Supervised, parts: Mapping[str, Unit]) -> None:
        super().__init__(spec, router)
        self.router = router
        self.parts = parts
        self.ended: set[str] = set()

    def __repr__(self) -> str:
        return f"{self.router!r}, {', '.join(f'{part_text(name, 0)}: {unit!r}' for name, unit in self.parts.items())}"

    @property
    def hangs(self) -> bool:
        return self.hung or any(unit.hangs for unit in self.parts.values())

    def check_alive(self) -> None:
        """Raise ServerDied with the name of a part that has ended without an event."""
        if not self.stopped:
            check_parts(self.parts, self.ended)
            if (ending := self.router.ending()) is not None:
                raise ServerDied(f"The router of {self.spec} died: {ending}. Read its log for the reason.",
                                 self.router.evidence())
        super().check_alive()

    def pids(self) -> tuple[int, ...]:
        return (*super().pids(), *(pid for unit in self.parts.values() for pid in unit.pids()))

    def wait_death(self, timeout_s: float) -> bool:
        return super().wait_death(timeout_s) or any(
            unit.wait_death(0) for name, unit in self.parts.items() if name not in self.ended)

    def end(self, name: str, grace_s: float) -> None:
        """End one replica, as the test asks. The other parts go on, and the replica's port stays reserved.

        Raises:
            StopFailed: a process of the replica survived.
        """
        process = self.parts[name].process
        assert isinstance(process, Supervised), f"replica {name} is not supervised"
        self.ended.add(name)
        process.stop(grace_s, keep=True)

    def started_again(self, name: str, process: Supervised) -> None:
        """Note the new process of a replica that has ended. The port of the old process stays reserved for it."""
        old = self.parts[name].process
        assert isinstance(old, Supervised), f"replica {name} is not supervised"
        process.on_gone(old.stop)
        self.parts[name].process = process
        self.ended.discard(name)

    def stop_router(self, grace_s: float) -> None:
        """End the router alone. The replicas then belong to another deployment.

        Raises:
            StopFailed: something of the router survived.
        """
        self.router.stop(grace_s)
        self.stopped = True

    def stop(self, grace_s: float) -> None:
        """End all parts at the same time, the router among them. May be called again.

        Raises:
            StopFailed: something of a part survived.
        """
        self.stopped = True
        failures: list[EngineError] = []

        def stop(unit: Unit | Supervised, _done: threading.Event) -> None:
            try:
                unit.stop(grace_s)
            except EngineError as error:
                failures.append(error)

        everything: list[Unit | Supervised] = [self.router, *self.parts.values()]
        with ExitStack() as stops:
            for part in everything:
                stops.enter_context(in_background(partial(stop, part), "llmperf-stop"))
        if failures:
            raise failures[0]


def part_text(name: str, servers: int) -> str:
    """A server of a deployment in messages: "Replica 2 of 4", "Server decode-1"."""
    return f"Replica {name}" + (f" of {servers}" if servers else "") if name.isdigit() else f"Server {name}"


def check_parts(parts: Mapping[str, Unit], ended: Collection[str] = ()) -> None:
    """Raise ServerDied with the name of a server that has ended without an event."""
    for name, unit in parts.items():
        if name not in ended and unit.process is not None and (ending := unit.process.ending()) is not None:
            raise ServerDied(f"{part_text(name, len(parts))} ({unit.spec}) died: {ending}.", unit.process.evidence())


class ReplicaDisturber:
    """Carries out events in background threads. An event waits until earlier events of the same replica have ended.

    Args:
        unit: the processes of the deployment.
        start_again: starts a replica by its name, and returns when the replica has generated a token.
        clock: stamps the events.
        grace_s: seconds that a stopped replica has to end.
    """

    def __init__(
        self, unit: DeploymentUnit, start_again: Callable[[str], None], clock: Clock, grace_s: float
    ) -> None:
        self._unit = unit
        self._start_again = start_again
        self._clock = clock
        self._grace_s = grace_s
        self._due: list[tuple[int, Event]] = []
        self._threads: dict[str, threading.Thread] = {}
        self._past: list[PastEvent] = []
        self._failures: list[EngineError] = []

    def arm(self, events: Sequence[Event], requests: int) -> None:
        """Note the events of the next run, which has so many requests."""
        self._due = [(event.due(requests), event) for event in events]
        self._threads, self._past, self._failures = {}, [], []

    def sent(self, requests: int) -> None:
        """Begin the events that are due after so many requests."""
        while self._due and self._due[0][0] <= requests:
            event = self._due.pop(0)[1]
            earlier = self._threads.get(event.part)
            thread = threading.Thread(target=self._carry_out, args=(event, earlier), daemon=True, name="llmperf-event")
            self._threads[event.part] = thread
            thread.start()

    def past(self) -> tuple[PastEvent, ...]:
        """The events of the run, after all of them have ended.

        Raises:
            EngineError: a replica did not start or end, or an event never began.
        """
        for thread in self._threads.values():
            thread.join()
        if self._failures:
            raise self._failures[0]
        if self._due:
            raise EngineError(f"{self._due[0][1]} never began: the last request was sent less than a second after the "
                              "event was due. Name an earlier at_requests, or send more requests.")
        return tuple(self._past)

    def mend(self) -> None:
        """Start every replica that an earlier run left dead.

        Raises:
            EngineError: a replica did not start.
        """
        for name in sorted(self._unit.ended):
            self._start_again(name)

    def _carry_out(self, event: Event, earlier: threading.Thread | None) -> None:
        if earlier is not None:
            earlier.join()
        began_ns = self._clock.now_ns()
        try:
            if event.action == "restart":
                self._start_again(event.part)
            else:
                self._unit.end(event.part, self._grace_s if event.action == "stop" else 0)
        except EngineError as error:
            self._failures.append(error)
        self._past.append(PastEvent(began_ns, self._clock.now_ns()))
