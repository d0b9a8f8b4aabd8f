"""The processes of a container, listed by its runtime: the client that starts a container is not their parent."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from pytest_llmperf.clock import Clock, seconds

LIST_TIMEOUT_S = 5.0
VALID_S = 2.0  # a container's processes are asked for with each sample of a GPU that shows an unknown process


class ContainerProcesses:
    """Process ids of a container on the host.

    Args:
        argv: prints the ids, such as `docker top NAME -eo pid`; empty: there is no container, or it cannot be asked.
        env: environment of the command.
        clock: measures the age of an answer.
    """

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], clock: Clock) -> None:
        self._argv = argv
        self._env = dict(env)
        self._clock = clock
        self._pids: tuple[int, ...] = ()
        self._asked_ns: int | None = None

    def pids(self) -> tuple[int, ...]:
        """The process ids, at most 2 s old; none if the container has ended or the command fails."""
        if not self._argv:
            return ()
        now_ns = self._clock.now_ns()
        if self._asked_ns is None or now_ns - self._asked_ns >= seconds(VALID_S):
            self._pids = self._listed()
            self._asked_ns = self._clock.now_ns()
        return self._pids

    def _listed(self) -> tuple[int, ...]:
        try:
            completed = subprocess.run(self._argv, env=self._env, capture_output=True, text=True, check=False,
                                       timeout=LIST_TIMEOUT_S, stdin=subprocess.DEVNULL, errors="replace")
        except (OSError, subprocess.TimeoutExpired):
            return ()
        words = completed.stdout.split() if completed.returncode == 0 else []  # the first line may be a heading
        return tuple(int(word) for word in words if word.isdecimal())
