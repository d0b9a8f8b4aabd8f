"""`python -m pytest_llmperf.emulator --hardware h200 … -- serve MODEL …`: an emulated server in real time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from pytest_llmperf.emulator.build import build_service, refused
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.options import read_options
from pytest_llmperf.emulator.quantities import UsageError


def main(argv: Sequence[str]) -> int:
    """Serve until a stop signal, and return the exit code."""
    try:
        options = read_options(argv)
        service = build_service(options, now_ns=time.monotonic_ns())
        try:
            from pytest_llmperf.emulator.http.server import serve_http
        except ImportError as error:
            raise UsageError(
                f"the emulator in real time needs {error.name}, which is not installed: "
                "pip install 'pytest-llmperf[emulator]'. Virtual time needs no further package."
            ) from error
        return serve_http(service, options.record)
    except (UsageError, StartError) as error:
        code, line = refused(error)
        print(line, file=sys.stderr)  # noqa: T201
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at its end
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
