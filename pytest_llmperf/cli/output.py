"""All that the commands print. Text of a run file or of a server must not control the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from io import TextIOWrapper

from pytest_llmperf.process.serverlog import plain


def prepare() -> None:
    """Have a terminal that knows no "≤" show the rest."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def say(text: object, end: str = "\n", *, flush: bool = False) -> None:
    """Print a result on stdout."""
    print(plain(str(text)), end=end, flush=flush)  # noqa: T201


def remark(text: object) -> None:
    """Print an error or progress, which is no result, on stderr without buffering."""
    print(plain(str(text)), file=sys.stderr, flush=True)  # noqa: T201


def give_up() -> None:
    """Drop what could not be written; else Python tries once more as it exits, and complains."""
    with suppress(OSError):
        sys.stdout.close()
