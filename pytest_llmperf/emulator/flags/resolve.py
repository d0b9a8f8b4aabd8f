"""From options to a server's configuration."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.sglang_parser import sglang_parser
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.emulator.flags.vllm_parser import vllm_parser

if TYPE_CHECKING:
    from pytest_llmperf.emulator.flags.launch import Launch
    from pytest_llmperf.emulator.options import Options


def known_flags(engine: str) -> frozenset[str]:
    """Every option of that engine that is understood, with an effect or without."""
    return frozenset((sglang_parser() if engine == "sglang" else vllm_parser())._option_string_actions)


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
