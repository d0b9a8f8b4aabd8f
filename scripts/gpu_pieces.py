#!/usr/bin/env python3
"""Run pieces of the suites side by side on the GPUs of a host that is lent for minutes.

    python scripts/gpu_pieces.py --seconds 560 --piece 4:240:four_gpus_prefill --piece 1:375:evicted_prefixes \\
        -- -m h200 suites/ --llmperf-engine vllm=/tmp/llmperf/engine --llmperf-extension-limit 0

A piece is GPUS:SECONDS:EXPRESSION. The piece runs the tests that pytest -k EXPRESSION selects, on GPUS neighbouring
GPUs. It does not start if less than SECONDS remain, in whole seconds rounded up. Pieces start in the given order, each
as soon as its GPUs are free; a small piece may overtake a piece that waits for more GPUs. Each piece is a pytest
session with its own GPUs (CUDA_VISIBLE_DEVICES), cores and TMPDIR, so it also has its own lock. Its output and JUnit
file go to --out.

After --seconds the script interrupts the running pieces. They keep their measurements and stop their servers, which
takes seconds, at most a minute. Exit codes: 0 if all pieces passed, 11 if the worst verdict is INCONCLUSIVE, 130 if the
script itself was interrupted, else 1.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

END_S = 60.0  # for all interrupted sessions to stop their servers and write
POLL_S = 0.2
GREEN, OPEN, INTERRUPTED = 0, 11, 130


@dataclass(frozen=True)
class Piece:
    """What one session runs.

    Args:
        gpus: so many neighbours.
        needs_s: with less time left it is not begun.
        expression: for pytest -k.
    """

    gpus: int
    needs_s: float
    expression: str

    @property
    def name(self) -> str:
        return re.sub(r"\W+", "_", self.expression).strip("_")


@dataclass
class Session:
    """A piece that runs."""

    piece: Piece
    gpus: tuple[int, ...]
    process: subprocess.Popen[bytes]
    begun_s: float = field(default_factory=time.monotonic)


def piece(text: str) -> Piece:
    """GPUS:SECONDS:EXPRESSION.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    gpus, _, rest = text.partition(":")
    seconds, _, expression = rest.partition(":")
    if not (gpus.isdecimal() and int(gpus) and re.fullmatch(r"\d+(\.\d+)?", seconds) and expression.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not GPUS:SECONDS:EXPRESSION, e.g. 2:390:two_gpus_decode")
    return Piece(int(gpus), float(seconds), expression.strip())


def neighbours(free: set[int], count: int) -> tuple[int, ...] | None:
    """The first so many free GPUs in a row; None: there are none."""
    for first in sorted(free):
        row = tuple(range(first, first + count))
        if free.issuperset(row):
            return row
    return None


def cores_of(gpus: Sequence[int], of: int, cores: Sequence[int]) -> set[int]:
    """The part of the cores that belongs to these of so many GPUs; all of them where cores are fewer than GPUs."""
    each = len(cores) // of
    return {cores[gpu * each + n] for gpu in gpus for n in range(each)} or set(cores)


class Host:
    """The GPUs, the sessions on them, and the clock.

    Args:
        gpus: usable GPUs, with the names of CUDA_VISIBLE_DEVICES.
        seconds: time after which running sessions are interrupted.
        out: folder for outputs and JUnit files.
        arguments: arguments of pytest.
    """

    def __init__(self, gpus: Sequence[str], seconds: float, out: Path, arguments: Sequence[str]) -> None:
        self.codes: list[int] = []
        self._gpus, self._out, self._arguments = gpus, out, arguments
        self._free = set(range(len(gpus)))
        self._cores = sorted(os.sched_getaffinity(0))
        self._running: list[Session] = []
        self._began_s = time.monotonic()
        self._end_s = self._began_s + seconds

    @property
    def left_s(self) -> float:
        return self._end_s - time.monotonic()

    def run(self, pieces: Sequence[Piece]) -> None:
        """Until all are over, or the time is; `codes` has the exit codes of those that were begun."""
        waiting = list(enumerate(pieces, 1))
        try:
            while (waiting or self._running) and self.left_s > 0:
                for session in [session for session in self._running if session.process.poll() is not None]:
                    self._ended(session)
                waiting = [(number, piece) for number, piece in waiting if not self._settled(number, piece)]
                time.sleep(POLL_S)
        finally:
            self._interrupt()

    def _settled(self, number: int, piece: Piece) -> bool:
        """Begins it, or gives it up; False: it waits for GPUs."""
        left_s = ceil(self.left_s)  # a piece that needs the whole time is looked at some ms after the beginning
        if left_s < piece.needs_s:
            left = f"{left_s} s are left of the {piece.needs_s:.0f} that it needs"
            self._say(f"{piece.expression}: not begun, {left}")
            return True
        gpus = neighbours(self._free, piece.gpus)
        if gpus is None:
            return False
        self._free.difference_update(gpus)
        self._running.append(Session(piece, gpus, self._started(f"{number:02}-{piece.name}", piece, gpus)))
        self._say(f"{piece.expression}: begun on GPU {', '.join(self._gpus[gpu] for gpu in gpus)}")
        return True

    def _started(self, name: str, piece: Piece, gpus: tuple[int, ...]) -> subprocess.Popen[bytes]:
        place = (self._out / "tmp" / str(gpus[0])).absolute()
        place.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pytest", *self._arguments, "-k", piece.expression, "-rs"]
        command.append(f"--junitxml={self._out / name}.xml")
        visible = ",".join(self._gpus[gpu] for gpu in gpus)
        env = os.environ | {"CUDA_VISIBLE_DEVICES": visible, "TMPDIR": str(place)}
        with (self._out / f"{name}.log").open("wb") as log:
            # Ctrl-C reaches us alone: a second interrupt would cut its clean-up short.
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        os.sched_setaffinity(process.pid, cores_of(gpus, len(self._gpus), self._cores))
        return process

    def _ended(self, session: Session) -> None:
        self._free.update(session.gpus)
        self._running.remove(session)
        self.codes.append(session.process.returncode)
        took_s = time.monotonic() - session.begun_s
        self._say(f"{session.piece.expression}: exit code {session.process.returncode} after {took_s:.0f} s")

    def _interrupt(self) -> None:
        for session in self._running:
            session.process.send_signal(signal.SIGINT)
        until_s = time.monotonic() + END_S
        for session in list(self._running):
            try:
                session.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                session.process.kill()  # its watchdog stops its servers
                session.process.wait()
            self._ended(session)

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began_s:.0f} s] {text}", flush=True)


def gpus_here() -> list[str]:
    """What CUDA_VISIBLE_DEVICES names; without it, as many as NVML finds."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    import pynvml

    pynvml.nvmlInit()
    return [str(gpu) for gpu in range(pynvml.nvmlDeviceGetCount())]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, required=True, help="until what still runs is interrupted")
    parser.add_argument("--piece", type=piece, action="append", required=True, metavar="GPUS:SECONDS:EXPRESSION")
    parser.add_argument("--out", type=Path, default=Path(".llmperf/pieces"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("arguments", nargs="+", help="pytest's, after --")
    options = parser.parse_args(argv)
    gpus = gpus_here()
    too_large = [name.expression for name in options.piece if name.gpus > len(gpus)]
    if too_large:
        parser.error(f"there are {len(gpus)} GPUs here, too few for {', '.join(too_large)}")
    options.out.mkdir(parents=True, exist_ok=True)
    # A job that is cancelled leaves nothing running; and what a shell starts in the background ignores interrupts, as
    # would all that we start.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    host = Host(gpus, options.seconds, options.out, options.arguments)
    try:
        host.run(options.piece)
    except KeyboardInterrupt:
        return INTERRUPTED
    if len(host.codes) < len(options.piece) or not set(host.codes) <= {GREEN, OPEN}:
        return 1
    return max(host.codes)


if __name__ == "__main__":
    sys.exit(main())
