"""`llmperf`: what is done with runs and baselines outside pytest. One command a module, in `commands`."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Iterable, Sequence

from pytest_llmperf.cli.output import give_up, prepare, remark
from pytest_llmperf.cli.parser import parser
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import LlmperfError
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.kinds.rows import HardwareKind
from pytest_llmperf.process.kernel import interrupt_on_sigterm

USAGE = 2
UNWRITABLE = (errno.ENOSPC, errno.EIO)  # of a file that the output was sent to


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `llmperf`.

    Returns:
        What the command returns; 2 where the input is wrong, with one sentence on stderr and nothing written.
    """
    words = sys.argv[1:] if argv is None else argv
    arguments = parser(words[0] if words else "").parse_args(words)
    prepare()
    interrupt_on_sigterm()
    try:
        return _run(arguments)
    except LlmperfError as error:
        remark(f"llmperf {arguments.command}: {error}")
        return USAGE
    except KeyboardInterrupt:
        remark(f"llmperf {arguments.command}: interrupted")
        return 130
    except BrokenPipeError:  # `llmperf show … | head`
        give_up()
        return 141
    except OSError as error:
        if error.filename is None and error.errno in UNWRITABLE:
            give_up()
            remark(f"llmperf {arguments.command}: the output cannot be written: {error.strerror or error}")
        elif error.filename is not None:
            remark(f"llmperf {arguments.command}: {error.filename}: {error.strerror}. Name another file or folder.")
        else:
            raise
        return USAGE


def _kinds_of_project() -> Iterable[HardwareKind]:
    """Hardware kinds of the project's settings; none if the settings are wrong. Each command that uses settings reports
    the error."""
    try:
        return read_settings(project_root()).kinds.values()
    except LlmperfError:
        return ()


def _run(arguments: argparse.Namespace) -> int:
    with GPU_KINDS.added(_kinds_of_project(), "[tool.llmperf.kinds]"):
        code = int(arguments.run(arguments))
    sys.stdout.flush()  # a failed write is reported here, and not when Python exits
    return code
