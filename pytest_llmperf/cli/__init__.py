"""`llmperf`: what is done with runs and baselines outside pytest. One command a module, in `commands`."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper

from pytest_llmperf.errors import LlmperfError

USAGE = 2
UNWRITABLE = (errno.ENOSPC, errno.EIO)  # of a file that the output was sent to


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `llmperf`.

    Returns:
        What the command returns; 2 where the input is wrong, with one sentence on stderr and nothing written.
    """
    from pytest_llmperf.cli.parser import parser

    arguments = parser().parse_args(argv)
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no "≤" still shows the rest
    try:
        return _run(arguments)
    except LlmperfError as error:
        print(f"llmperf {arguments.command}: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"llmperf {arguments.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `llmperf show … | head`
        _give_up_output()
        return 141
    except OSError as error:
        if error.filename is not None or error.errno not in UNWRITABLE:
            raise
        _give_up_output()
        print(f"llmperf {arguments.command}: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        return USAGE


def _run(arguments: argparse.Namespace) -> int:
    code = int(arguments.run(arguments))
    sys.stdout.flush()  # what cannot be written is told here, and not as Python exits
    return code


def _give_up_output() -> None:
    """Else Python tries once more to write it as it exits, and complains."""
    with suppress(OSError):
        sys.stdout.close()
