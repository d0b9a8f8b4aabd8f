"""`--llmperf-profile`: a trace of what a test measured, after its verdict."""

from __future__ import annotations

import pytest

from pytest_llmperf.model.status import Note
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.profile import installed_nsys, profile_measurements

OPTION = "--llmperf-profile"


def refuse_emulated_traces(config: pytest.Config) -> None:
    """Refuse a trace of an emulated server.

    Raises:
        UsageError: an option asks for traces, and the servers are emulated.
    """
    if config.getoption(OPTION) is not None and config.getoption("--emulate") is not None:
        raise pytest.UsageError(
            f"{OPTION} traces the kernels of a server, and an emulated server has none. Leave out {OPTION}, or run "
            "without --emulate on the hardware itself."
        )


def header(config: pytest.Config) -> str | None:
    """Which profilers this session uses; None without an option for traces."""
    if config.getoption(OPTION) is None:
        return None
    text = "llmperf: traces by PyTorch's profiler"
    return f"{text} and nsys" if installed_nsys() else f"{text}; no capture of Nsight Systems: nsys is not on PATH"


def profile(config: pytest.Config, execution: Execution) -> None:
    """Trace what a test has measured, as far as the options ask for it. A trace changes no verdict."""
    wanted = config.getoption(OPTION) == "always" or (config.getoption(OPTION) and execution.ending.word == "FAIL")
    if not execution.ending.complete or not wanted:
        return
    for trace in profile_measurements(execution):
        execution.session.notify(Note(str(trace)))
