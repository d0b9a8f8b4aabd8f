"""The parent's handles of a replay's load processes, from their start to their end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load.cores import Cores
from pytest_llmperf.load.pipe_protocol import CANCEL, PROGRESS, READY, START, pack_plan
from pytest_llmperf.load.recording import Recording
from pytest_llmperf.load.sharding import replay_of
from pytest_llmperf.load.transport import Progress, RecordingProcess
from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.process.kernel import kill_child

# The worker finds modules where we do, as multiprocessing has it: the package may be on sys.path in any way.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[1].split(':'); "
    "from pytest_llmperf.load.worker import main; sys.exit(main(sys.argv[2], [int(c) for c in sys.argv[3:]]))"
)
_START_DELAY_NS = 100_000_000  # time zero lies so far ahead: every process hears of it before
_CANCEL_GRACE_S = 2.0
_SILENCE_LIMIT_S = 60.0


class LoadProcess(RecordingProcess):
    """One load process of this machine."""

    def __init__(self, plan: LoadPlan, folder: Path, cpus: Collection[int]) -> None:
        super().__init__(plan, folder / "recording")
        self._folder = folder
        self.ended = False
        folder.mkdir()
        command = [sys.executable, "-c", _BOOT, ":".join(sys.path), str(self.recording), *map(str, cpus)]
        with (folder / "stderr").open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
                start_new_session=True,
            )
        self._control = cast("IO[bytes]", self._process.stdin)
        self.reports = cast("IO[bytes]", self._process.stdout)
        os.set_blocking(self._control.fileno(), False)

    @property
    def failed(self) -> bool:
        """Whether the load process has ended with a non-zero exit status."""
        return self.ended and bool(self._process.returncode)  # None: not known

    def send_plan(self) -> None:
        """Send the plan to the load process. The death of the process shows later, in the exit status."""
        self._send(pack_plan(self.plan))

    def start(self, started_ns: int) -> None:
        self._send(START.pack(b"s", started_ns))

    def cancel(self) -> None:
        self._send(CANCEL)

    def take_report(self) -> None:
        """Read the newest progress report of the load process."""
        data = os.read(self.reports.fileno(), PROGRESS.size * 64)
        if not data:
            self.ended = True
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CANCEL_GRACE_S)  # only its end closes the pipe: its exit status follows at once
            return
        self.ready = self.ready or data[: PROGRESS.size] == READY
        if data[-PROGRESS.size :] != READY:
            sent, done, failed, elapsed_ns, reads = PROGRESS.unpack_from(data, len(data) - PROGRESS.size)
            self.last = Progress(sent, done, failed, elapsed_ns, reads=reads)

    def end(self) -> None:
        """Close the control pipe, which ends a responsive load process, and wait for the exit of the process."""
        self._control.close()
        try:
            self._process.wait(_CANCEL_GRACE_S)
        except subprocess.TimeoutExpired:
            self.hung = True
            self.kill()
        self.reports.close()
        self.status = self._process.returncode
        error_lines = (self._folder / "stderr").read_text("utf-8", "replace").strip().splitlines()
        self.error_line = error_lines[-1] if error_lines else ""

    def kill(self) -> None:
        kill_child(self._process)

    def _send(self, data: bytes) -> None:
        """Write to the control pipe.

        Raises:
            LoadError: the load process reads nothing for `_SILENCE_LIMIT_S`.
        """
        rest, writable = memoryview(data), select.poll()
        writable.register(self._control, select.POLLOUT)
        with suppress(BrokenPipeError):
            while rest:
                try:
                    rest = rest[os.write(self._control.fileno(), rest) :]
                except BlockingIOError:
                    if not writable.poll(round(_SILENCE_LIMIT_S * 1e3)):
                        raise LoadError(f"A load process has read nothing of its plan for {_SILENCE_LIMIT_S:g} s. Is a "
                                        "file system blocked, or this machine? Run the test again.") from None


class LoadProcesses:
    """The load processes of this machine: they start at the same time, and end all.

    Args:
        plans: the part of each process.
        folder: for their recordings.
        cores: on which they run.
        starts_alone: whether the schedule starts as soon as all processes are ready; else `start` starts it.
    """

    def __init__(self, plans: Sequence[LoadPlan], folder: Path, cores: Cores, *, starts_alone: bool = True) -> None:
        self.workers: list[LoadProcess] = []
        self._cores = cores
        self._starts_alone = starts_alone
        self._cancelled = False
        self._quiet_until_s = 0.0
        self._readable = select.poll()
        cpus = cores.load if cores.reserved else ()
        try:
            for number, plan in enumerate(plans):
                self.workers.append(LoadProcess(plan, folder / str(number), _cpus_of(number, len(plans), cpus)))
        except BaseException:
            self.kill()
            raise

    def send_plans(self) -> None:
        """Give every process its part of the plan."""
        for worker in self.workers:
            worker.send_plan()
            self._readable.register(worker.reports, select.POLLIN)
        self._quiet_until_s = time.monotonic() + _SILENCE_LIMIT_S

    def start(self, started_ns: int) -> None:
        """Time zero of the schedule is then."""
        for worker in self.workers:
            worker.start(started_ns)

    def cancel(self) -> None:
        """Have all give up; calls after the first do nothing."""
        if not self._cancelled:
            self._cancelled = True
            self._quiet_until_s = time.monotonic() + _CANCEL_GRACE_S
            for worker in self.workers:
                worker.cancel()

    def wait(self, timeout_ms: int) -> bool:
        """Take reports for that long at most; whether some process works on and is not suspiciously silent."""
        ready = self._readable.poll(timeout_ms)
        all_ready = all(worker.ready for worker in self.workers)
        for worker in self.workers:
            if any(fd == worker.reports.fileno() for fd, _ in ready):
                worker.take_report()
                if worker.ended:
                    self._readable.unregister(worker.reports)
                elif not self._cancelled:
                    self._quiet_until_s = time.monotonic() + _SILENCE_LIMIT_S
        if any(worker.failed for worker in self.workers):
            self.cancel()  # what the others still find out could not be used
        elif self._starts_alone and not all_ready and all(worker.ready for worker in self.workers):
            self.start(time.monotonic_ns() + _START_DELAY_NS)
        return any(not worker.ended for worker in self.workers) and time.monotonic() <= self._quiet_until_s

    def replay(self, recordings: Sequence[Recording], plan: LoadPlan) -> Replay:
        """The replay of the plan from whole recordings, one for each of `workers`."""
        return replay_of(recordings, plan, self._cores)

    def end(self) -> None:
        """Wait for all."""
        for worker in self.workers:
            worker.end()

    def kill(self) -> None:
        """End all at once."""
        for worker in self.workers:
            worker.kill()
            worker.end()


@contextmanager
def local_load(plans: Sequence[LoadPlan], folder: Path, cores: Cores) -> Iterator[LoadProcesses]:
    """Load processes of this machine while a block runs; killed where the block fails."""
    load_processes = LoadProcesses(plans, folder, cores)
    try:
        load_processes.send_plans()
        yield load_processes
        load_processes.end()
    except BaseException:
        load_processes.kill()
        raise


def _cpus_of(number: int, processes: int, cpus: Sequence[int]) -> Sequence[int]:
    """A CPU of its own for the load process if there are enough CPUs, else all CPUs."""
    return (cpus[number],) if len(cpus) >= processes else cpus
