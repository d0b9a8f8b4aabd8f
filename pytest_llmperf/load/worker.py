"""The load process: `python -m pytest_llmperf.load.worker RECORDING`.

stdin brings the plan and stays open: any further byte cancels the replay, its end (the parent died) too.
stdout reports progress, stderr says why it failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import socket
import sys
from pathlib import Path

from pytest_llmperf.load.handover import SIZE, unpack_plan
from pytest_llmperf.load.recording import RecordingWriter
from pytest_llmperf.load.replayer import Replayer
from pytest_llmperf.model.plan import LoadPlan

_CONTROL_FD = 0
_PROGRESS_FD = 1
_PRIORITY = -10


def main(recording: str) -> int:
    """Replay the plan from stdin into `recording`; the exit status."""
    plan = unpack_plan(_read_exactly(SIZE.unpack(_read_exactly(SIZE.size))[0]))
    _raise_file_limit()
    _come_first()
    try:
        address = _resolve(plan.host, plan.port)
    except OSError as problem:
        sys.stderr.write(f"cannot resolve {plan.host!r}: {problem}\n")
        return 1
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_replay(plan, address, RecordingWriter(Path(recording))))
    return 0


async def _replay(plan: LoadPlan, address: str, writer: RecordingWriter) -> None:
    loop = asyncio.get_running_loop()
    replayer = Replayer(plan, address, writer, _report)

    def on_control() -> None:
        if not os.read(_CONTROL_FD, 64):
            loop.remove_reader(_CONTROL_FD)
        replayer.cancel()

    os.set_blocking(_CONTROL_FD, False)
    os.set_blocking(_PROGRESS_FD, False)
    loop.add_reader(_CONTROL_FD, on_control)
    # A collection would stop the loop for milliseconds; what a replay leaves behind goes with the process.
    gc.collect()
    gc.freeze()
    gc.disable()
    await replayer.run()


def _report(progress: bytes) -> None:
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # nobody reads just now: the next one will do
        os.write(_PROGRESS_FD, progress)


def _loop_factory() -> type[asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.SelectorEventLoop
    return uvloop.Loop


def _resolve(host: str, port: int) -> str:
    """One IP address for all connections, IPv4 first: servers that we start listen on 127.0.0.1, not on ::1."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return str(addresses[0][4][0])


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _come_first() -> None:
    """A server on the same cores must not keep the one who measures it waiting, where we may say so (root)."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)


def _read_exactly(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.read(_CONTROL_FD, min(size - len(data), 1 << 20))
        if not part:
            sys.exit("the plan ended early")
        data += part
    return bytes(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
