"""From options to a server's configuration."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.vllm import vllm_launch

if TYPE_CHECKING:
    from pytest_llmperf.emulator.flags.launch import Launch
    from pytest_llmperf.emulator.options import Options


def resolve(options: Options) -> Launch:
    """What the server says of itself, the faults that it would own up to included.

    Raises:
        UsageError, StartError: see vllm_launch.
    """
    read = sglang_launch if options.engine == "sglang" else vllm_launch
    launch = read(
        options.engine_argv, options.machine, os.environ, split=options.split, acceptance=options.acceptance
    )
    return replace(launch, config=options.faults.resolved(launch.config))
