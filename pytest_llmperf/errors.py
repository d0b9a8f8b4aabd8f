"""The exceptions of this package.

A `UsageError` says that an input of the user is invalid. An `InfrastructureError` says that a run is invalid: the
verdict is ERROR, never FAIL.

A message says what, where, why, and the next command. `Evidence` adds facts about the process: command, exit status,
duration and the last lines of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

ECHO_LIMIT = 200
#: Controls of the terminal, of the text direction and of lines, invisible characters, and halves of surrogate pairs.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
                      "\ud800-\udfff]")


def escaped(text: str) -> str:
    """The text with each control character as an escape; line ends and tabs stay.

    >>> escaped("\\x1b[31mred")
    '\\\\x1b[31mred'
    """
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def on_one_line(text: str) -> str:
    """The text without line ends and tabs, and with each control character as an escape."""
    return " ".join(escaped(text).split())


def echo(value: object) -> str:
    """An input as a message repeats it: on one line, escaped, at most 200 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= ECHO_LIMIT else f"{text[:ECHO_LIMIT - 1]}…"


def did_you_mean(
    name: object, known: Iterable[str], form: str = " Did you mean {!r}?", *, most: int = 1, cutoff: float = 0.6
) -> str:
    """The form with the nearest known names in place of its braces; "" if no known name is near.

    >>> did_you_mean("runz", ["runs", "seed"])
    " Did you mean 'runs'?"
    """
    from difflib import get_close_matches  # 1 ms, which only a mistyped name needs

    near = get_close_matches(str(name), list(known), n=most, cutoff=cutoff)
    return form.format(" or ".join(near)) if near else ""


class LlmperfError(Exception):
    """Root of everything this package raises on purpose. Its text has no control characters."""

    def __str__(self) -> str:
        return escaped(super().__str__())


class UsageError(LlmperfError):
    """An input of the user is invalid."""


class ConfigError(UsageError):
    """A configuration file or option is wrong."""


class SpecError(UsageError):
    """An engine, model, workload or marker is described wrongly."""


class SloError(UsageError):
    """The text of an SLO, a claim or a mechanism cannot be read."""


def refuse(*checks: tuple[object, str], error: type[UsageError] = SpecError) -> None:
    """Raise the error of the first check that is wrong.

    Args:
        checks: whether an input is wrong, and the sentence that says so.
        error: what to raise.
    """
    for wrong, text in checks:
        if wrong:
            raise error(text)


class InfrastructureError(LlmperfError):
    """The run is invalid, for a reason that no check of the test judges."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a server process, with secrets masked.

    Args:
        command: the command line.
        ending: "exit code 2", "signal 9 (SIGKILL)", "running", …
        elapsed_s: seconds from its start until this was written.
        log_tail: the last lines of its log.
        log_path: where the whole log lies.
    """

    command: str
    ending: str
    elapsed_s: float
    log_tail: tuple[str, ...] = ()
    log_path: str | None = None

    def __str__(self) -> str:
        lines = [f"command: {self.command}", f"process: {self.ending}, {self.elapsed_s:.1f} s after its start"]
        if self.log_path:
            lines.append(f"log: {self.log_path}")
        lines += [f"  | {line}" for line in self.log_tail]
        return "\n".join(lines)


class EngineError(InfrastructureError):
    """An engine did not start, serve or stop as it should."""

    def __init__(self, message: str, evidence: Evidence | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence

    def __str__(self) -> str:
        return escaped(self.message) if self.evidence is None else f"{escaped(self.message)}\n{self.evidence}"


class EnvironmentMissing(EngineError):
    """The engine is not installed where it was looked for."""


class ExitedEarly(EngineError):
    """The server process ended before it was ready."""


class StartupTimeout(EngineError):
    """The server did not become ready before its deadline."""


class WrongServer(EngineError):
    """Another process answers on the port, the served model is another one, or the server refuses the key."""


class ServerDied(EngineError):
    """The server process ended while it was being measured."""


class StopFailed(EngineError):
    """Some part of the server survived the stop."""


class LoadError(InfrastructureError):
    """The load generator failed, or what it recorded cannot be believed."""


class RunInvalid(LoadError):
    """A run is invalid by its checks, such as requests that were sent late. The next run may be valid."""


class MetricUnavailable(InfrastructureError):
    """A metric was asked for that this run does not have."""


class NotJudged(InfrastructureError):
    """A test measured and ended before any check, so nothing says whether its figures are good."""


class BaselineError(InfrastructureError):
    """A stored baseline cannot be read, believed or written. Never the same as having none."""


class HardwareBusy(InfrastructureError):
    """A process of another program uses the accelerator."""
