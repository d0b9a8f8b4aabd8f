"""`--llmperf-profile`: a trace of what a test measured, after its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmperf.session.executions import Execution

ALWAYS, ON_FAIL = "--llmperf-profile", "--llmperf-profile-on-fail"


def refuse_emulated_traces(config: pytest.Config) -> None:
    """Refuse a trace of an emulated server.

    Raises:
        UsageError: an option asks for traces, and the servers are emulated.
    """
    option = next((name for name in (ALWAYS, ON_FAIL) if config.getoption(name)), None)
    if option is not None and config.getoption("--emulate") is not None:
        raise pytest.UsageError(
            f"{option} traces the kernels of a server, and an emulated server has none. Leave out {option}, or run "
            "without --emulate on the hardware itself."
        )


def header(config: pytest.Config) -> str | None:
    """Which profilers this session uses; None without an option for traces."""
    if not (config.getoption(ALWAYS) or config.getoption(ON_FAIL)):
        return None
    from pytest_llmperf.engines.process.nsys import installed_nsys

    text = "llmperf: traces by PyTorch's profiler"
    return f"{text} and nsys" if installed_nsys() else f"{text}; no capture of Nsight Systems: nsys is not on PATH"


def profile(config: pytest.Config, execution: Execution) -> None:
    """Trace what a test has measured, as far as the options ask for it. A trace changes no verdict."""
    option = config.getoption
    if not execution.complete or not (option(ALWAYS) or (option(ON_FAIL) and execution.ended == "FAIL")):
        return
    from pytest_llmperf.model.status import Note
    from pytest_llmperf.session.profile import profile_measurements

    for trace in profile_measurements(execution):
        execution.session.notify(Note(str(trace)))
