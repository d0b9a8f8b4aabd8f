"""The processes of a server: the engine, and an LMCache server that ends with the engine."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from pytest_llmperf.engines.lmcache.server import EmulatedLMCache, LMCacheServer
from pytest_llmperf.errors import Evidence, ServerDied, SpecError
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.process.supervisor import Supervised

if TYPE_CHECKING:
    from pytest_llmperf.load.virtual import VirtualEngine

#: The sockets of a dying server close before its end is known, and a server whose engine process has died answers with
#: errors for some seconds.
DEATH_FOLLOWS_S = 3.0


class Unit:
    """The processes of one server, which start and end together.

    Args:
        spec: what was asked for.
        process: the supervised process, or an emulated engine in virtual time; None for an endpoint.
        lmcache: the LMCache server of this unit; None: there is none.

    Attributes:
        launched_ns: when its process was started; None for a server that ran before the session.
        starting_s: seconds from launch to the first generated token.
        hung: whether the server was found to run without answering.
        stopped: whether this session has stopped it.
    """

    def __init__(
        self, spec: EngineSpec, process: Supervised | VirtualEngine | None = None,
        lmcache: LMCacheServer | EmulatedLMCache | None = None,
    ) -> None:
        self.spec = spec
        self.process = process
        self.lmcache = lmcache
        self.launched_ns: int | None = None
        self.starting_s: float | None = None
        self.hung = False
        self.stopped = False

    def __repr__(self) -> str:
        return "not ours" if self.process is None else repr(self.process)

    @property
    def hangs(self) -> bool:
        """Whether a part of it was found to run without answering: nobody should measure on it any more."""
        return self.hung or (self.lmcache is not None and self.lmcache.hangs)

    @property
    def evidence(self) -> Evidence | None:
        """Command, ending and log of the process; None for an endpoint."""
        return None if self.process is None else self.process.evidence()

    def check_alive(self) -> None:
        """Raise ServerDied if the process has ended by itself, SpecError if it was stopped to make room for another."""
        if self.stopped:
            raise SpecError(
                f"{self.spec} was stopped when this test started another engine: one runs at a time. "
                "Measure it before, or hand the spec itself to perf.measure, which starts it again."
            )
        if self.process is not None and (ending := self.process.ending()) is not None:
            raise ServerDied(f"The {self.spec.engine} server died: {ending}.", self.process.evidence())
        if self.lmcache is not None:
            self.lmcache.check_alive()

    def pids(self) -> tuple[int, ...]:
        """The living processes; none of an endpoint, or in virtual time."""
        units = [self.process, None if self.lmcache is None else self.lmcache.process]
        return tuple(pid for unit in units if unit is not None for pid in unit.pids())

    def wait_death(self, timeout_s: float) -> bool:
        """Wait until a process has ended, or for `timeout_s`; whether one has."""
        if self.process is not None and self.process.wait_exit(timeout_s) is not None:
            return True
        beside = None if self.lmcache is None else self.lmcache.process
        return beside is not None and beside.ending() is not None

    def check_dying(self) -> None:
        """As `check_alive`, after a sign of its death: waits `DEATH_FOLLOWS_S` for the end of a process."""
        self.wait_death(DEATH_FOLLOWS_S)
        self.check_alive()

    def stop(self, grace_s: float) -> None:
        """End the processes and wait until every descendant is gone. May be called again.

        Raises:
            StopFailed: something of it survived.
        """
        self.stopped = True
        with ExitStack() as steps:  # all of them, from the last to the first
            steps.callback(self._stop_lmcache, grace_s)
            if self.process is not None:
                steps.callback(self.process.stop, grace_s)

    def _stop_lmcache(self, grace_s: float) -> None:
        if self.lmcache is not None:
            self.lmcache.stop(grace_s)
            self.lmcache = None

    def detach_lmcache(self) -> LMCacheServer | None:
        """Detach the LMCache server, which then survives the stop of the engine; the caller must stop it.

        Returns:
            None without LMCache, if LMCache has died or hangs, or if LMCache is emulated and ends with its engine.
        """
        lmcache = self.lmcache
        if lmcache is None or lmcache.process is None or lmcache.hangs or lmcache.process.ending() is not None:
            return None
        self.lmcache = None
        return lmcache
