"""What to start under supervision, and the secrets in its command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pytest_llmperf.errors import EngineError, Evidence
from pytest_llmperf.masking import MASK, SHAPES, mask, masked, needles, secret_values

from .serverlog import tail_lines
from .unit import TAG, ProcessUnit


def secret_arguments(argv: Iterable[str]) -> list[str]:
    """Secret values in a command line, after options such as `--api-key` or inside JSON, as servers log arguments."""
    return [secret for _, name, value in _values(argv) for secret in secret_values({name: value})]


def mask_argv(argv: Iterable[str], secrets: Iterable[str] = ()) -> str:
    """A command line, quoted for a shell, with `***` for the given secrets and for values of options such as
    `--api-key`."""
    hidden, words = list(secrets), []
    for option, name, value in _values(argv):
        shown = str(masked(value, hidden, name=name))
        word = mask(option, hidden) + shown
        words.append(word if MASK in (shown, word) else shlex.quote(word))
    return " ".join(words)


def _values(argv: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Each argument in three parts: option ("--x", "--x=" or ""), name of the option, and value.

    Arguments up to the next option are values of the option before: `--api-key K1 K2`.
    """
    name = ""
    for argument in argv:
        option, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
        name = option.lstrip("-") or name
        yield option + equals, name, value


# py-setproctitle, which vLLM's workers use, writes their title over /proc/PID/environ unless this is set.
_KEEP_ENVIRON = {"SPT_NOENV": "1"}

COMMAND_FILE = "command.txt"
CANNOT_BE_WRITTEN = "cannot be written: {}. Free space there, or name another folder with --llmperf-runs=DIR."


@dataclass(frozen=True, slots=True)
class Launch:
    """One server to start.

    Args:
        argv: command line; argv[0] is looked up in the PATH of `env`.
        env: the child's complete environment. The tag is added to it.
        cwd: working directory.
        run_dir: folder for the log and for `reaped.json`.
        log_name: file in `run_dir` for stdout and stderr.
        log_cap_bytes: size limit of the log: its head and its tail are kept.
        cpus: CPUs on which the server may run; empty for all CPUs.
        tag: text that marks every process of this server; "" if `Supervised.start` should make one.
        grace_s: seconds between SIGTERM and SIGKILL on `stop`.
        abandoned_grace_s: the same if this process has ended.
        leader_first: whether only the first process of the server gets the SIGTERM at once. Its children get one when
            it has ended, or in the last 3 s of `grace_s`.
        hidden: further secrets, which reports and logs must not contain.
        pids_argv: command that prints the process ids of the server's container, e.g. "docker top NAME -eo pid".
        stop_argv: command that runs after all processes of the server have ended, e.g. "docker rm --force NAME".
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    run_dir: Path
    log_name: str = "server.log"
    log_cap_bytes: int = 16 << 20
    tag: str = ""
    grace_s: float = 10.0
    abandoned_grace_s: float = 5.0
    leader_first: bool = False
    cpus: tuple[int, ...] = ()
    hidden: tuple[str, ...] = ()
    pids_argv: tuple[str, ...] = ()
    stop_argv: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Launch({self.command})"

    @property
    def command(self) -> str:
        """The command line for people, secrets masked."""
        return mask_argv(self.argv, self.secrets)

    @property
    def secrets(self) -> list[str]:
        """All secrets of the launch: `hidden`, and those of the environment and of the command line."""
        return [*self.hidden, *secret_values({}, self.env), *secret_arguments(self.argv)]

    @property
    def log_path(self) -> Path:
        return self.run_dir / self.log_name

    def prepare(self) -> None:
        """Make the folder, and write the command into it for reports.

        Raises:
            EngineError: the folder cannot be made.
        """
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(f"The run folder {CANNOT_BE_WRITTEN.format(error)}") from error
        with suppress(OSError):  # on a full disk the report does without
            (self.run_dir / COMMAND_FILE).write_text(self.command + "\n", encoding="utf-8", errors="replace")

    def open_log(self, name: str) -> IO[bytes]:
        """Open a file in the folder for appending.

        Raises:
            EngineError: the file cannot be written.
        """
        try:
            return (self.run_dir / name).open("ab")
        except OSError as error:
            raise EngineError(f"{name} {CANNOT_BE_WRITTEN.format(error)}") from error

    def evidence(self, ending: str, elapsed_s: float, n_lines: int) -> Evidence:
        """Evidence about a failure, with the last lines of the log. Secrets are masked.

        Args:
            ending: "exit code 2", "signal 9 (SIGKILL)", "running", …
            elapsed_s: seconds since the start of the process.
        """
        lines = tail_lines(self.log_path, n_lines)
        return Evidence(
            command=self.command,
            ending=ending,
            elapsed_s=elapsed_s,
            log_tail=tuple(mask("\n".join(lines), self.secrets).split("\n")) if lines else (),
            log_path=str(self.log_path) if lines else None,
        )

    def unit(self, parent: tuple[int, int]) -> ProcessUnit:
        """The launch in the form that the watchdog reads.

        Args:
            parent: pid and starttime of this process.
        """
        return ProcessUnit(
            tag=self.tag,
            run_dir=str(self.run_dir),
            parent=parent,
            abandoned_grace_s=self.abandoned_grace_s,
            argv=self.argv,
            env={**self.env, **_KEEP_ENVIRON, TAG: self.tag},
            cwd=str(self.cwd),
            log_path=str(self.log_path),
            log_cap_bytes=self.log_cap_bytes,
            cpus=self.cpus,
            needles=needles(self.secrets),
            shapes=SHAPES,
            leader_first=self.leader_first,
            stop_argv=self.stop_argv,
        )
