"""`llmperf`: what is done with runs and baselines outside pytest. One command a module, in `commands`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pytest_llmperf.errors import LlmperfError

USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `llmperf`.

    Returns:
        What the command returns; 2 where the input is wrong, with one sentence on stderr and nothing written.
    """
    from pytest_llmperf.cli.parser import parser

    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except LlmperfError as error:
        print(f"llmperf {arguments.command}: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"llmperf {arguments.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `llmperf show … | head`
        sys.stderr.close()
        return 141
