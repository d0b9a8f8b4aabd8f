"""`python -m pytest_llmperf.emulator --hardware h200 … -- serve MODEL …`."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.cost.coefficients import coefficients_for
from pytest_llmperf.emulator.cost.step_time import StepTime
from pytest_llmperf.emulator.flags.parser import EngineParser, StartError
from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.tables import FLAGS
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.emulator.noise import Disturbance
from pytest_llmperf.emulator.options import Options, read_options
from pytest_llmperf.emulator.quantities import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmperf.emulator.flags.launch import Launch

_VIRTUAL_EPOCH_NS = 1_767_225_600_000_000_000  # 2026-01-01: virtual time must not depend on the day


def build_service(options: Options) -> Service:
    """The server that the options describe, at the start of its clock.

    Raises:
        UsageError: the emulator cannot emulate an option.
        StartError: the real engine would refuse to start.
    """
    launch = resolve(options)
    config = options.faults.hidden(launch.config)
    coefficients = coefficients_for(config.engine, config.gpu)
    disturbance = Disturbance(options.noise, options.faults)
    deployment = Deployment(config, StepTime(config, coefficients), disturbance)
    if options.pipe:
        return Service(launch, deployment, options.faults, options.seed, _VIRTUAL_EPOCH_NS)
    now_ns = time.monotonic_ns()
    deployment.sleep_until(now_ns)
    deployment.started_ns = now_ns
    return Service(launch, deployment, options.faults, options.seed, time.time_ns() - now_ns)


def known_flags(engine: str) -> frozenset[str]:
    """Every engine option that the emulator accepts, with or without an effect."""
    return frozenset(EngineParser(FLAGS[engine])._option_string_actions)


def resolve(options: Options) -> Launch:
    """The configuration of the emulated server from engine flags, including the planted faults that change it.

    Raises:
        UsageError, StartError: see vllm_launch.
    """
    read = sglang_launch if options.engine == "sglang" else vllm_launch
    launch = read(
        options.engine_argv, options.machine, os.environ, split=options.split, acceptance=options.acceptance
    )
    return replace(launch, config=options.faults.resolved(launch.config))


def main(argv: Sequence[str]) -> int:
    """Run until a stop signal, and return the exit code."""
    try:
        options = read_options(argv)
        if options.known_flags:
            print(json.dumps(sorted(known_flags(options.engine))))  # noqa: T201
            return 0
        service = build_service(options)
        return _run(options, service)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except StartError as error:
        print(f"ValueError: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at its end
        return 1


def _run(options: Options, service: Service) -> int:
    if options.pipe:
        from pytest_llmperf.emulator.virtual.pipe import serve_pipe

        serve_pipe(service, sys.stdin, sys.stdout)
        return 0
    from pytest_llmperf.emulator.http.server import serve_http

    return serve_http(service, options.record)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
