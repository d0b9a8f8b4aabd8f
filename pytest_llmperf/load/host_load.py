"""What a load host does: it runs load processes as this machine would, and hands out what they record.

A host needs no folder that is shared with the driver of the replay. If the driver dies, calls stop, and after
`SILENCE_LIMIT_S` without a call the host ends its load processes and its own process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load.cores import Cores, cores_for, restore_priority
from pytest_llmperf.load.host_clock import ClockPort
from pytest_llmperf.load.load_processes import LoadProcess, LoadProcesses
from pytest_llmperf.load.pipe_protocol import SIZE, unpack_plan
from pytest_llmperf.load.transport import Progress
from pytest_llmperf.process.places import scratch_folder
from pytest_llmperf.process.scratch import Scratch, sweep

SILENCE_LIMIT_S = 20.0
MOST_BYTES = 2**20  # of a recording in one answer


@dataclass(frozen=True, slots=True)
class ProcessState:
    """State of a load process, read on its host.

    Args:
        ready: whether the process waits for the start of the schedule, or has started.
        hung, status, error_line: how it ended, as `LoadProcess` has it.
        last: its last progress report.
        data: the next bytes of its recording.
        complete: whether the process has ended and `data` are the last bytes.
    """

    ready: bool
    hung: bool
    status: int | None
    error_line: str
    last: Progress
    data: bytes
    complete: bool


class HostLoad:
    """The load processes of a host for successive replays. Methods may be called from several threads.

    Args:
        silence_limit_s: a longer time without a call during a replay ends the host.
        end_host: ends the process that runs this object.
        clock: the clock of the stamps.
    """

    def __init__(
        self,
        silence_limit_s: float = SILENCE_LIMIT_S,
        end_host: Callable[[], None] = lambda: os._exit(1),
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._silence_limit_s = silence_limit_s
        self._end_host = end_host
        self._clock = clock
        self._lock = threading.Lock()
        self._load: LoadProcesses | None = None
        self._scratch: Scratch | None = None
        self._clock_port: ClockPort | None = None
        self._works = False
        self._over = threading.Event()
        self._called_s = time.monotonic()

    def now_ns(self) -> int:
        """The time on the clock of the stamps."""
        self._called_s = time.monotonic()
        return self._clock()

    def prepare(self, address: str) -> tuple[int, bytes]:
        """Answer questions for the time on an address of this host, until the host ends; the port and its token."""
        restore_priority()
        with self._lock:
            self._clock_port = ClockPort(address, self._clock)
            return self._clock_port.port, self._clock_port.token

    def begin(self, plans: Sequence[bytes], load_cpus: str) -> Cores:
        """Start a load process for each plan; the CPUs on which they run.

        Raises:
            ConfigError: this host lacks the CPUs that the setting names.
        """
        cores = cores_for(load_cpus, len(plans))
        with self._lock:
            folder = scratch_folder()
            sweep(folder.iterdir())  # what a killed replay has left on this host
            self._scratch = Scratch(folder, "load-")
            parts = [unpack_plan(plan[SIZE.size :]) for plan in plans]
            self._load = LoadProcesses(parts, self._scratch.path, cores, starts_alone=False)
            self._load.send_plans()
            self._works = True
            self._over = threading.Event()
        self._called_s = time.monotonic()
        threading.Thread(target=self._watch_silence, args=(self._over,), name="llmperf-silence", daemon=True).start()
        return cores

    def start(self, started_ns: int) -> None:
        """Time zero of the schedule is then, by the clock of this host."""
        with self._lock:
            self._running.start(started_ns)

    def cancel(self) -> None:
        """Have all load processes give up."""
        with self._lock:
            self._running.cancel()

    def states(self, positions: Sequence[int]) -> list[ProcessState]:
        """The state of each load process, with its recording from the given position on."""
        self._called_s = time.monotonic()
        with self._lock:
            load = self._running
            if self._works and not load.wait(0):
                load.end()
                self._works = False
            return [self._state(worker, position)
                    for worker, position in zip(load.workers, positions, strict=True)]

    def end(self) -> None:
        """End the load processes of this replay and remove what they recorded. Further calls do nothing."""
        self._over.set()
        with self._lock:
            if self._load is not None:
                self._load.kill()
            if self._scratch is not None:
                self._scratch.remove()
            self._load = self._scratch = None

    @property
    def _running(self) -> LoadProcesses:
        if self._load is None:
            raise LoadError("this load host runs no load process")
        return self._load

    def _state(self, worker: LoadProcess, position: int) -> ProcessState:
        ended = not self._works
        data, size = _read(worker.recording, position)
        return ProcessState(
            ready=worker.ready,
            hung=worker.hung,
            status=worker.status if ended else None,
            error_line=worker.error_line if ended else "",
            last=worker.last,
            data=data,
            complete=ended and position + len(data) == size,
        )

    def _watch_silence(self, over: threading.Event) -> None:
        while not over.wait(self._silence_limit_s / 20):
            if time.monotonic() - self._called_s > self._silence_limit_s:
                self.end()
                self._end_host()


def _read(recording: Path, position: int) -> tuple[bytes, int]:
    """The next bytes of a recording, and the size of the recording."""
    if not recording.exists():
        return b"", 0
    with recording.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), MOST_BYTES, position), size
