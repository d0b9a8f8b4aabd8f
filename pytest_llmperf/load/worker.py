"""A load process: `main` with the path of its recording.

stdin brings the plan, then the time zero of the schedule, and stays open: any other byte cancels the replay. The end
of stdin, which shows the parent's death, cancels too. stdout reports progress, stderr says why it failed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
from collections.abc import Collection
from pathlib import Path

from pytest_llmperf.load.connection_setup import route_of
from pytest_llmperf.load.cores import raise_priority
from pytest_llmperf.load.pipe_protocol import SIZE, START, unpack_plan
from pytest_llmperf.load.recording import RecordingWriter
from pytest_llmperf.load.replayer import PlanReplayer

_CONTROL_FD = 0
_PROGRESS_FD = 1


def main(recording: str, cpus: Collection[int] = ()) -> int:
    """Replay the plan from stdin into `recording`, on these CPUs (none: on any); the exit status."""
    plan = unpack_plan(_read_exactly(SIZE.unpack(_read_exactly(SIZE.size))[0]))
    _raise_file_limit()
    raise_priority(cpus)
    try:
        route = route_of(plan)
    except OSError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    replayer = PlanReplayer(plan, route, RecordingWriter(Path(recording)), _report)
    _follow_commands(replayer)
    # A collection would stop the loop for milliseconds; what a replay leaves behind goes with the process.
    gc.collect()
    gc.freeze()
    gc.disable()
    replayer.run()
    return 0


def _follow_commands(replayer: PlanReplayer) -> None:
    """Start and cancel as the parent says."""

    def on_control() -> None:
        message = os.read(_CONTROL_FD, START.size)
        if not message:
            replayer.reactor.forget(_CONTROL_FD)
        if len(message) == START.size and message[:1] == b"s":
            replayer.start(START.unpack(message)[1])
        else:
            replayer.cancel()

    os.set_blocking(_CONTROL_FD, False)
    os.set_blocking(_PROGRESS_FD, False)
    replayer.reactor.watch(_CONTROL_FD, on_control)


def _report(progress: bytes) -> None:
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # nobody reads just now: the next one will do
        os.write(_PROGRESS_FD, progress)


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read_exactly(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.read(_CONTROL_FD, min(size - len(data), 1 << 20))
        if not part:
            sys.exit("the plan ended early")
        data += part
    return bytes(data)
