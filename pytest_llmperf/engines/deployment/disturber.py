"""Ends and restarts replicas of a running deployment under load."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pytest_llmperf.clock import Clock
from pytest_llmperf.engines.deployment.unit import DeploymentUnit
from pytest_llmperf.errors import EngineError
from pytest_llmperf.model.event import Event, PastEvent


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
