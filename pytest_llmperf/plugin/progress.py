"""What goes on, shown on pytest's own terminal. Under xdist each worker writes lines, and the controller shows them.

`-q` shows a line per minute, `-qq` nothing. Where a test may write to the terminal itself (`-s`, live logging, a
debugger) there are lines instead of a live display.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Protocol, TextIO

import pytest

from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.process.places import scratch_folder
from pytest_llmperf.process.scratch import Scratch
from pytest_llmperf.process.serverlog import plain
from pytest_llmperf.report.watch import LineWatch, Pace, Watch

WORKER_LINES = "llmperf_lines"
QUIET_S = 60.0
POLL_S = 0.5


class Terminal:
    """pytest's terminal, reachable also while a test's output is captured."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        file = reporter._tw._file
        try:
            # Capturing points descriptor 1 elsewhere while a test runs; this copy is made while it does not.
            self.file: TextIO = os.fdopen(os.dup(file.fileno()), "w", encoding="utf-8", errors="replace")
            reporter.config.add_cleanup(self.file.close)
        except (OSError, ValueError, AttributeError):  # no file of the operating system: nothing captures it either
            self.file = file

    @property
    def live(self) -> bool:
        """Whether lines may be drawn and erased here."""
        tame = self.file.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
        return tame and not _output_is_captured_elsewhere(self._reporter.config)

    def column(self) -> int:
        """Where pytest has stopped in its line."""
        return self._reporter._tw.width_of_current_line

    def line(self, text: str) -> None:
        """Write a whole line, below what pytest has begun."""
        begun = "\n" if self.column() else ""
        self.file.write(f"{begun}llmperf: {plain(text)}\n")
        self.file.flush()
        self._reporter._tw._current_line = ""  # pytest goes on in a new line, and counts from there


def _output_is_captured_elsewhere(config: pytest.Config) -> bool:
    """Whether a test may write to the terminal by itself; options of plugins that are switched off are not there."""
    live_logs = config.pluginmanager.hasplugin("logging") and (
        config.getini("log_cli") or config.getoption("log_cli_level", default=None)
    )
    return bool(
        config.getoption("capture", default="no") in ("no", "tee-sys")
        or config.getoption("usepdb", default=False)
        or config.getoption("trace", default=False)
        or live_logs
    )


def pace_of(config: pytest.Config) -> Pace | None:
    """How often lines come; None: nobody wants any."""
    if config.get_verbosity() < -1:
        return None
    return Pace(QUIET_S, QUIET_S) if config.get_verbosity() < 0 else Pace()


def watch_of(config: pytest.Config) -> Watch | None:
    """What shows this process's work; None if nobody wants to see it. Called while a test runs."""
    pace = pace_of(config)
    if pace is None:
        return None
    lines = getattr(config, "workerinput", {}).get(WORKER_LINES)
    if lines is not None:
        return LineWatch(_appending(Path(lines)), pace=pace)
    terminal = terminal_of(config)
    if terminal is None:
        return None
    if terminal.live and config.get_verbosity() >= 0:
        from pytest_llmperf.report.live import LiveWatch

        return LiveWatch(terminal.file, terminal.line, terminal.column)
    return LineWatch(terminal.line, pace=pace)


def terminal_of(config: pytest.Config) -> Terminal | None:
    """pytest's terminal; None if it has none: `-p no:terminal`, an xdist worker."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return None
    with uncaptured(config):
        return Terminal(reporter)


def uncaptured(config: pytest.Config) -> AbstractContextManager[None]:
    """pytest's own standard output and error, also while a test runs."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    disabled: AbstractContextManager[None] = nullcontext() if capture is None else capture.global_and_fixture_disabled()
    return disabled


def _appending(path: Path) -> Callable[[str], None]:
    def write(line: str) -> None:
        with suppress(OSError), path.open("a", encoding="utf-8") as file:  # the controller is gone: nobody reads
            file.write(f"{line}\n")

    return write


class WorkerNode(Protocol):
    """The parts of xdist's `WorkerController` that hooks of the controller read and write."""

    workerinput: dict[str, str]
    workeroutput: dict[str, str]


class WorkerProgress:
    """What xdist's workers write, shown by the controller: one file each, read twice a second."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._scratch: Scratch | None = None
        self._read_bytes: dict[str, int] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerNode) -> None:
        """xdist's, before it starts a worker."""
        if self._scratch is None:
            try:
                self._scratch = Scratch(scratch_folder(), "lines-")
            except (OSError, InfrastructureError) as error:
                raise pytest.UsageError(
                    f"The display has no folder for the lines of the workers: {str(error).rstrip('.')}. Set TMPDIR to "
                    "a folder that can be written."
                ) from error
            self._config.add_cleanup(self._end)  # where xdist does not start its workers no session ever finishes
            self._begin(self._scratch.path)
        node.workerinput[WORKER_LINES] = str(self._scratch.path / node.workerinput["workerid"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._end()

    def _end(self) -> None:
        """May be called again."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._scratch is not None:
            self._scratch.remove()

    def _begin(self, folder: Path) -> None:
        terminal = terminal_of(self._config)
        if terminal is not None and pace_of(self._config) is not None:
            self._thread = threading.Thread(target=self._follow, args=(terminal, folder), name="llmperf-workers",
                                            daemon=True)
            self._thread.start()

    def _follow(self, terminal: Terminal, folder: Path) -> None:
        over = False
        while not over:
            over = self._over.wait(POLL_S)  # once more then: the last lines
            for path in sorted(folder.iterdir()):
                for line in self._fresh_lines(path):
                    terminal.line(f"[{path.name}] {line}")

    def _fresh_lines(self, path: Path) -> list[str]:
        """Whole ones; what a worker is just writing comes next time."""
        with path.open("rb") as file:
            file.seek(self._read_bytes.get(path.name, 0))
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_bytes[path.name] = self._read_bytes.get(path.name, 0) + len(whole) + len(end)
        return whole.decode("utf-8", "replace").splitlines() if end else []
