"""The processes of a deployment: replicas and router, watched together and stopped together."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial

from pytest_llmperf.engines.process.unit import Unit
from pytest_llmperf.errors import EngineError, ServerDied
from pytest_llmperf.model.deployment import Deployment
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
