"""A child process that reads commands from its stdin pipe as lines of JSON and ends when the pipe closes."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_llmperf.clock import Clock
from pytest_llmperf.errors import EngineError, Evidence
from pytest_llmperf.process.kernel import KILL_WAIT_S, close_pipes, kill_child, write_line
from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.tree import describe_code


class PipedProcess:
    """A child process that answers commands.

    The child needs no watchdog: any end of this process closes the pipe, and the child ends at the end of the pipe.

    Args:
        launch: the command to start. Output of the child other than answers goes to the launch's log.
        clock: stamps the start, for `Evidence.elapsed_s`.

    Raises:
        EngineError: the program cannot be started.
    """

    def __init__(self, launch: Launch, clock: Clock) -> None:
        self.launch = launch
        self._clock = clock
        self._started_ns = clock.now_ns()
        self._one_at_a_time = threading.Lock()
        launch.prepare()
        try:
            with launch.open_log(launch.log_name) as log:
                self._popen = subprocess.Popen(
                    launch.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=dict(launch.env),
                    cwd=launch.cwd, start_new_session=True,  # Ctrl-C is for us; the closed pipe is for the child
                )
        except OSError as error:
            raise EngineError(f"{Path(launch.argv[0]).name} cannot be started: {error}") from error

    def __repr__(self) -> str:
        return f"<PipedProcess {self._popen.pid}, {self.ending() or 'running'}>"

    def read(self) -> dict[str, Any]:
        """The child's next line.

        Raises:
            EngineError: it ended, or wrote something else than an object.
        """
        line = self._popen.stdout.readline() if self._popen.stdout else b""
        if not line:
            self.wait_exit(KILL_WAIT_S)
            raise EngineError(f"The emulator ended: {self.ending() or 'it closed its pipe'}.", self.evidence())
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineError(f"The emulator wrote no JSON object: {line[:200]!r}", self.evidence())
        return answer

    def call(self, command: Mapping[str, object]) -> dict[str, Any]:
        """Send one command and read its answer.

        An interrupt kills the child: whoever called next would read the answer to this command.

        Raises:
            EngineError: the child ended, or says that the command is wrong.
        """
        with self._one_at_a_time:
            try:
                write_line(self._popen, json.dumps(command, separators=(",", ":")))
                answer = self.read()  # says how a child ended that closed its pipe
            except BaseException:
                self._popen.kill()
                raise
        if "error" in answer:
            raise EngineError(f"The emulator refuses: {answer['error']}", self.evidence())
        return answer

    def pids(self) -> tuple[int, ...]:
        """Its process id while it runs."""
        return (self._popen.pid,) if self.ending() is None else ()

    def ending(self) -> str | None:
        """ "exit code 2", "signal 9 (SIGKILL)", …; None while it runs."""
        code = self._popen.poll()
        return None if code is None else describe_code(code)

    def wait_exit(self, timeout_s: float | None = None) -> str | None:
        """Wait until it has ended; its ending, or None after `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_s)
        return self.ending()

    def evidence(self, n_lines: int = 200) -> Evidence:
        """Evidence about a failure, with secrets masked."""
        elapsed_s = (self._clock.now_ns() - self._started_ns) / 1e9
        return self.launch.evidence(self.ending() or "running", elapsed_s, n_lines)

    def kill(self) -> None:
        """Kill the child. A thread that waits for an answer gets an EngineError."""
        self._popen.kill()

    def stop(self, grace_s: float = 0.0) -> None:  # noqa: ARG002
        """Kill the child, which stores nothing, and close its pipes. May be called again.

        A child that is not killed may never end: while nobody reads its answer, it blocks in the middle of the answer.
        """
        kill_child(self._popen)
        close_pipes(self._popen)
