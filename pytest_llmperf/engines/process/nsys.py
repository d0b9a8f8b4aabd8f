"""Nsight Systems: a server that was launched under `nsys`, and a capture that begins and ends by command."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.errors import EngineError

COMMAND_TIMEOUT_S = 120.0  # the end of a capture writes its report
SUFFIX = ".nsys-rep"
HOST_FOLDER = "host-linux-x64"
RAW = ".qdstrm"  # what nsys writes without its importer, with exit code 0


@dataclass(frozen=True, slots=True)
class NsightSystems:
    """An installed `nsys` and the name of one session.

    Args:
        program: path of `nsys`.
        session: name of the session, unique on this machine.
    """

    program: str
    session: str

    @property
    def launch_words(self) -> tuple[str, ...]:
        """Words before the command of a server. Nothing is recorded until `start`."""
        return (self.program, "launch", f"--session-new={self.session}", "--trace=cuda,nvtx,osrt", "--wait=all")

    def start(self, file: Path) -> None:
        """Begin a capture into a new file, whose name ends in `.nsys-rep`.

        Raises:
            EngineError: nsys failed.
        """
        self._run("start", f"--session={self.session}", f"--output={file.with_suffix('')}", "--sample=none",
                  "--cpuctxsw=none", "--force-overwrite=true")

    def stop(self, file: Path) -> None:
        """End the capture. The file is complete when this returns.

        Args:
            file: of `start`.

        Raises:
            EngineError: nsys failed, or wrote no report.
        """
        output = self._run("stop", f"--session={self.session}")
        if file.is_file():
            return
        if file.with_suffix(RAW).is_file():
            raise EngineError(f"nsys wrote {file.stem}{RAW} and no report, because its importer is missing. Install "
                              f"the folder {HOST_FOLDER} of Nsight Systems beside the folder of {self.program}.")
        raise EngineError(f"nsys stop wrote no {file.name}: {output[:300]}")

    def _run(self, verb: str, *options: str) -> str:
        """What nsys printed, in one line."""
        try:
            ended = subprocess.run([self.program, verb, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, timeout=COMMAND_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"nsys {verb} failed: {error}.") from error
        text = " ".join(ended.stdout.decode(errors="replace").split())
        if ended.returncode:
            raise EngineError(f"nsys {verb} ended with exit code {ended.returncode}: {text[:300]}")
        return text


def installed_nsys() -> NsightSystems | None:
    """The `nsys` on PATH with a session of its own; None if there is none."""
    program = shutil.which("nsys")
    return None if program is None else NsightSystems(program, f"llmperf-{os.urandom(6).hex()}")
