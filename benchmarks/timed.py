"""The server of known timing: compiled where it is missing, started on a CPU of its own, asked for its own error."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any, Self

SOURCE = Path(__file__).parent / "timed_server" / "timed_server.c"
BUILT = Path(__file__).parents[1] / ".bench" / "timed_server"
TTFT_MS, ITL_MS = 50.0, 10.0


def build() -> Path:
    """The program, compiled with the system's C compiler where it is older than its source."""
    if not BUILT.exists() or BUILT.stat().st_mtime < SOURCE.stat().st_mtime:
        BUILT.parent.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", str(BUILT), str(SOURCE)], check=True)
    return BUILT


class TimedServer:
    """Runs while the block does. The last usable CPU is its own; `clients` are the others."""

    def __init__(self, ttft_ms: float = TTFT_MS, itl_ms: float = ITL_MS) -> None:
        self.cpus = sorted(os.sched_getaffinity(0))
        self.clients = self.cpus[:-1] or self.cpus
        self.ttft_ms, self.itl_ms = ttft_ms, itl_ms
        self._command = [
            str(build()), "--ttft-us", str(round(ttft_ms * 1000)), "--itl-us", str(round(itl_ms * 1000)),
            "--cpu", str(self.cpus[-1]),
        ]  # fmt: skip

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().split()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=10)

    def reset(self) -> None:
        """Forget what was sent so far."""
        self._get("/reset")

    def stats(self) -> dict[str, Any]:
        """Timing errors of the server since the last reset, in milliseconds."""
        return json.loads(self._get("/stats"))

    def send_errors_ns(self) -> dict[str, list[int]]:
        """Id of each answer since the last reset → how long after its due time each token was sent."""
        send_errors: defaultdict[str, list[int]] = defaultdict(list)
        for line in self._get("/log").decode().splitlines()[1:]:
            request, _, due_ns, sent_ns = line.split(",")
            send_errors[f"c{request}"].append(int(sent_ns) - int(due_ns))
        return send_errors

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read()
