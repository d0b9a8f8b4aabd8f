"""Hides the progress display while pytest writes, and ends the servers of a pytest process with the session.

A server that does not end is reported and makes the session an ERROR.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_llmperf.plugin.progress import WorkerNode
from pytest_llmperf.plugin.state import STATE

UNENDED = "llmperf_unended"
LAST_NOTES = "llmperf_last_notes"
EXITED = "pytest.exit: "  # prefix of pytest's reason if a test called `pytest.exit`


class PytestProcess:
    """Plugin object of each pytest process. An xdist worker sends its notes to the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._state = config.stash[STATE]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self._state.subject = item.nodeid.rpartition("/")[2]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        self._state.rest()

    def pytest_enter_pdb(self) -> None:
        """Leave the terminal to the debugger until the end of the session."""
        self._state.stop_showing()

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # the exit code depends on the servers that could not be stopped
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        self._state.stop_showing()
        self._state.close()
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[UNENDED] = "\n".join(self._state.unended)
            self._config.workeroutput[LAST_NOTES] = "\n".join(self._state.last_notes)
            self._state.end_watchdog()  # the controller reports the verdicts, and may kill this worker from now on
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerNode) -> None:
        """Hook of xdist: takes over the notes of a worker. A crashed worker sends no output, and its watchdogs end the
        processes that it started."""
        output = getattr(node, "workeroutput", {})
        self._state.unended += output.get(UNENDED, "").splitlines()
        self._state.last_notes += output.get(LAST_NOTES, "").splitlines()
        if str(output.get("shouldfail", "")).startswith(EXITED):  # xdist's key
            self._state.exited = True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for note in self._state.last_notes:
            terminalreporter.write_line(f"llmperf: {note}")
        for sentence in self._state.unended:
            terminalreporter.write_line(f"llmperf ERROR: a server outlives its session: {sentence}", red=True)
