"""The live display: two lines below whatever else is on the terminal, gone without a trace when there is no more."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pytest_llmperf.clock import Clock
from pytest_llmperf.model.status import Measuring, Note, Starting, Status
from pytest_llmperf.process.serverlog import plain
from pytest_llmperf.report.watch import Watch, duration, facts

FIRST_SHOWN_S = 0.5
BAR_WIDTH = 20
UP = "\x1b[A"


class LiveWatch(Watch):
    """Two lines on a terminal.

    Args:
        file: the terminal. No other code may write to the terminal while the display is shown.
        write: prints a permanent line above the display.
        column: returns the column of the cursor before the display is shown. The cursor returns to this column.
    """

    def __init__(
        self,
        file: TextIO,
        write: Callable[[str], None],
        column: Callable[[], int] = lambda: 0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock)
        self._file = file
        self._write = write
        self._column = column
        self._live: Live | None = None
        self._back = 0  # column to go back to
        self._busy_since_ns: int | None = None

    def _show(self, status: Status, elapsed_s: float) -> None:
        now_ns = self._clock.now_ns()
        self._busy_since_ns = now_ns if self._busy_since_ns is None else self._busy_since_ns
        if now_ns - self._busy_since_ns < FIRST_SHOWN_S * 1e9:
            return
        if self._live is None:
            self._begin()
        if self._live is not None:
            self._live.update(display(self.subject, status, elapsed_s), refresh=True)

    def _next_phase(self, status: Status | None) -> None:
        if status is None:
            self._busy_since_ns = None
            self._erase()

    def _note(self, note: Note) -> None:
        self._erase()
        self._write(f"{self.subject}: {note.text}" if self.subject else note.text)

    def _begin(self) -> None:
        self._back = self._column()
        if self._back:
            self._file.write("\n")
        console = Console(file=self._file, force_terminal=True, width=_width(self._file), legacy_windows=False)
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()
        console.show_cursor(True)  # a killed run must not leave a terminal without one

    def _erase(self) -> None:
        if self._live is None:
            return
        self._live.stop()
        self._live = None
        if self._back:
            self._file.write(f"{UP}\x1b[{self._back + 1}G")
        self._file.flush()


def display(subject: str, status: Status, elapsed_s: float) -> RenderableType:
    """The two lines of the display: the subject with its progress, then the facts measured so far."""
    if isinstance(status, Note):
        return _line(status.text)
    if not isinstance(status, Measuring):
        log_line = status.log_line if isinstance(status, Starting) else ""
        return Group(_line(f"{subject}  {status.phase}, {duration(elapsed_s)}".strip()), _line(f"  {log_line}"))
    head = Table.grid(padding=(0, 2))
    head.add_column(no_wrap=True, overflow="ellipsis")
    head.add_column(no_wrap=True)
    head.add_column(width=BAR_WIDTH)
    bar = ProgressBar(total=status.requests, completed=status.done, width=BAR_WIDTH)
    head.add_row(Text(subject), Text(status.phase), bar)
    return Group(head, _line(f"  {' · '.join(facts(status))}"))


def _line(text: str) -> Text:
    return Text(plain(text), no_wrap=True, overflow="ellipsis")


def _width(file: TextIO) -> int | None:
    """Width of the terminal behind the file in columns; None without a terminal."""
    try:
        return os.get_terminal_size(file.fileno()).columns or None  # 0: it does not know
    except OSError:
        return None
