"""Finds other processes on the GPUs of a server. In a container that hides process ids the result is unknown."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_llmperf.model.telemetry import ForeignProcess
from pytest_llmperf.process.tree import read_stat
from pytest_llmperf.telemetry.gpu_reading import Occupant, busy_since, occupants
from pytest_llmperf.telemetry.nvml import GpuNvml

# A context without work, as an idle monitor or display has one, holds less and uses no SM: no competitor.
IDLE_BYTES = 256 * 2**20


class ForeignProcesses:
    """Processes on watched GPUs that are none of ours.

    The driver's process ids are this machine's only where our own server is among them: it holds memory, so it must be.

    Args:
        nvml: the driver's library.
        ours: the process ids that are ours now.
        free_bytes: no more than this was free enough for the start of our server.
    """

    def __init__(self, nvml: GpuNvml, ours: Callable[[], Collection[int]], free_bytes: int) -> None:
        self._nvml = nvml
        self._ask_ours = ours
        self._idle_bytes = max(IDLE_BYTES, free_bytes)
        self._ours: set[int] = set()
        self._seen: dict[tuple[int, int], ForeignProcess] = {}
        self._own_seen = False
        self._since_us: dict[int, int] = {}

    @property
    def pids_visible(self) -> bool | None:
        """See `GpuTrace`."""
        if self._own_seen:
            return True
        return False if self._seen else None

    def begin(self, index: int, handle: object) -> None:
        """Ignore the use of the GPU before the run."""
        self._since_us[index] = busy_since(self._nvml, handle, 0)[1]

    def look(self, index: int, handle: object) -> None:
        """List the processes of one GPU, and who used it since the last look."""
        busy, self._since_us[index] = busy_since(self._nvml, handle, self._since_us.get(index, 0))
        for occupant in [*occupants(self._nvml, handle), *busy]:
            if occupant.pid not in self._ours:
                self._ours |= {os.getpid(), *self._ask_ours()}
            if occupant.pid in self._ours:
                self._own_seen = True
            else:
                self._note(index, occupant)

    def processes(self) -> tuple[ForeignProcess, ...]:
        """Those that held memory worth the name or used SMs; none where process ids are hidden."""
        if not self._own_seen:
            return ()
        return tuple(process for process in self._seen.values() if self._competes(process))

    def _competes(self, process: ForeignProcess) -> bool:
        return bool(process.sm_pct) or (process.memory_bytes or 0) > self._idle_bytes

    def _note(self, index: int, occupant: Occupant) -> None:
        key = (index, occupant.pid)
        occupant_before = self._seen.get(key) or _foreign_process(index, occupant.pid)
        self._seen[key] = ForeignProcess(
            index, occupant.pid, _larger_of(occupant_before.memory_bytes, occupant.memory_bytes),
            _larger_of(occupant_before.sm_pct, occupant.sm_pct), occupant_before.name, occupant_before.user,
        )


def _foreign_process(index: int, pid: int) -> ForeignProcess:
    return ForeignProcess(index, pid, name=name_of(pid), user=user_of(pid))


def name_of(pid: int) -> str | None:
    """Of a process that runs here."""
    stat = read_stat(pid)
    return None if stat is None else stat.name


def user_of(pid: int) -> str | None:
    """Who runs it; the number where that has no name."""
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    try:
        import pwd  # not on Windows, where the emulator runs

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


def _larger_of(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else max(first, second)
