"""A transport whose load runs in a process of its own, undisturbed by tests, parsing and garbage collection."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from pytest_llmperf.errors import LoadError
from pytest_llmperf.load.handover import PROGRESS, pack_plan
from pytest_llmperf.load.recording import Recording, RecordingTail, read_recording
from pytest_llmperf.load.schedule import problem_of
from pytest_llmperf.load.so_far import SoFar
from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.plan import LoadPlan

# The worker finds modules where we do, as multiprocessing has it: the package may be on sys.path in any way.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[1].split(':'); "
    "from pytest_llmperf.load.worker import main; sys.exit(main(sys.argv[2]))"
)
_POLL_MS = 50
_CANCEL_GRACE_S = 2.0
_SILENCE_S = 60.0


class ProcessTransport:
    """Implements `Transport` with a child that runs `load.worker`. Proxies of the environment are not used.

    Args:
        folder: where recordings are written; a temporary folder where None. A recording is removed after a
            replay that worked, and kept (and named in the error) after one that did not.
    """

    def __init__(self, *, folder: Path | None = None) -> None:
        self._folder = folder

    def replay(
        self,
        plan: LoadPlan,
        *,
        cancel: threading.Event,
        progress: Callable[[Progress], None] | None = None,
    ) -> Replay:
        """See `Transport.replay`."""
        if (problem := problem_of(plan.requests)) is not None:
            raise LoadError(f"this plan cannot be replayed: {problem}")
        folder = Path(tempfile.mkdtemp(prefix="llmperf-load-", dir=self._folder))
        try:
            status = _run_worker(plan, folder, cancel, progress)
        except BaseException:
            shutil.rmtree(folder)
            raise
        recording = read_recording(folder / "recording")
        replay = _replay_of(recording, plan)
        if replay is None or status != 0:
            raise LoadError(_obituary(status, recording, plan, folder))
        shutil.rmtree(folder)
        return replay


def _run_worker(
    plan: LoadPlan, folder: Path, cancel: threading.Event, progress: Callable[[Progress], None] | None
) -> int:
    """Start the worker, hand it the plan, follow it to its end; its exit status."""
    command = [sys.executable, "-c", _BOOT, ":".join(sys.path), str(folder / "recording")]
    with (folder / "stderr").open("wb") as errors:
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0, start_new_session=True
        )
    with worker:  # waits, after closing stdin: that alone ends a worker that can still run
        control, reports = _pipe(worker.stdin), _pipe(worker.stdout)
        try:
            with suppress(BrokenPipeError):  # it died already: its exit status says so
                _write_all(control, pack_plan(plan))
            _follow(control, reports, cancel, None if progress is None else _watching(folder / "recording", progress))
        except BaseException:
            worker.kill()
            raise
        finally:
            control.close()
            _end(worker)
    return worker.returncode


def _follow(
    control: IO[bytes], reports: IO[bytes], cancel: threading.Event, report: Callable[[bytes], None] | None
) -> None:
    """Pass progress on and a cancellation down, until the worker closes its end or falls silent."""
    quiet_until_s = time.monotonic() + _SILENCE_S
    cancelled = False
    readable = select.poll()
    readable.register(reports, select.POLLIN)
    while True:
        if cancel.is_set() and not cancelled:
            cancelled = True
            quiet_until_s = time.monotonic() + _CANCEL_GRACE_S
            with suppress(BrokenPipeError):
                control.write(b"c")
        if readable.poll(_POLL_MS):
            data = os.read(reports.fileno(), PROGRESS.size * 64)
            if not data:
                return
            if not cancelled:
                quiet_until_s = time.monotonic() + _SILENCE_S
            if report is not None:
                report(data[-PROGRESS.size :])
        elif time.monotonic() > quiet_until_s:
            return


def _watching(recording: Path, progress: Callable[[Progress], None]) -> Callable[[bytes], None]:
    """Adds what the recording holds so far to what the worker reports: its own loop counts and computes nothing."""
    tail, so_far = RecordingTail(recording), SoFar()

    def report(packed: bytes) -> None:
        for exchange in tail.exchanges():
            so_far.add(exchange)
        sent, done, failed, elapsed_ns = PROGRESS.unpack(packed)
        progress(Progress(sent, done, failed, elapsed_ns, so_far.ttft_ns, so_far.itl_ns))

    return report


def _end(worker: subprocess.Popen[bytes]) -> None:
    try:
        worker.wait(_CANCEL_GRACE_S)
    except subprocess.TimeoutExpired:
        worker.kill()


def _replay_of(recording: Recording, plan: LoadPlan) -> Replay | None:
    """The whole replay; None where any part of it is missing."""
    if recording.started_ns is None or recording.end is None or len(recording.exchanges) != len(plan.requests):
        return None
    ended_ns, clock_gap_ns, cpu_ns = recording.end
    return Replay(
        started_ns=recording.started_ns,
        ended_ns=max((e.ended_ns for e in recording.exchanges.values()), default=ended_ns),
        exchanges=tuple(recording.exchanges[request.index] for request in plan.requests),
        loop_lag_ns=tuple(recording.loop_lag_ns),
        clock_gap_ns=clock_gap_ns,
        cpu_ns=cpu_ns,
    )


def _obituary(status: int, recording: Recording, plan: LoadPlan, folder: Path) -> str:
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
    said = (folder / "stderr").read_text("utf-8", "replace").strip().splitlines()
    last = f": {said[-1]}" if said else ""
    return (
        f"the load process {how} after {len(recording.exchanges)} of {len(plan.requests)} requests{last}\n"
        f"what it recorded is in {folder}"
    )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise LoadError("the load process has no pipe")
    return stream


def _write_all(stream: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]
