"""Builds the emulated server that a command line describes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from pytest_llmperf.emulator.cluster.deployment import Deployment, SplitPools
from pytest_llmperf.emulator.cluster.routing import Routing
from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.cost.coefficients import coefficients_for, digest_of, family_of
from pytest_llmperf.emulator.cost.step_time import StepTime
from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.flags.parser import EngineParser, StartError
from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.tables import FLAGS
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.emulator.http.service import Service
from pytest_llmperf.emulator.noise import Disturbance
from pytest_llmperf.emulator.options import Options
from pytest_llmperf.emulator.quantities import UsageError

_SEEDS_APART = 1_000_003  # between the noise of two replicas
_VIRTUAL_EPOCH_NS = 1_767_225_600_000_000_000  # 2026-01-01: virtual time must not depend on the day


def build_service(options: Options, environ: Mapping[str, str] = os.environ, now_ns: int | None = None) -> Service:
    """The server that the options describe, at the start of its clock.

    Args:
        options: of the command line.
        environ: the environment variables of the server.
        now_ns: the present time of CLOCK_MONOTONIC, for a server in real time; None: virtual time, which begins at 0.

    Raises:
        UsageError: the emulator cannot emulate an option.
        StartError: the real engine would refuse to start.
    """
    (prefill, words), (decode, decode_words) = options.pools
    launch = resolve(options, environ, words)
    config = options.faults.hidden(launch.config)
    count = options.replicas if config.transfer is None else prefill + decode
    disturbances = [Disturbance(replace(options.noise, seed=options.noise.seed + number * _SEEDS_APART),
                                options.faults.of_replica(number + 1)) for number in range(count)]
    decoding = config
    if config.transfer is not None:
        decoding = options.faults.hidden(resolve(options, environ, decode_words).config)
    split = None if config.transfer is None else SplitPools(prefill, decode, decoding, _step_time(decoding, options))
    deployment = Deployment(config, _step_time(config, options), disturbances, _routing(options, config, split), split)
    if now_ns is None:
        return Service(launch, deployment, options.faults, options.seed, _VIRTUAL_EPOCH_NS)
    deployment.sleep_until(now_ns)
    deployment.started_ns = now_ns
    return Service(launch, deployment, options.faults, options.seed, time.time_ns() - now_ns)


def _step_time(config: EngineConfig, options: Options) -> StepTime:
    family = family_of(config)
    return StepTime(config, coefficients_for(config.engine, config.gpu, family, options.coefficients))


def _routing(options: Options, config: EngineConfig, split: SplitPools | None) -> Routing | None:
    """The router of several servers; None for one server.

    Raises:
        UsageError: the machine has too few GPUs, or each replica has several engines.
    """
    count, faults = options.replicas, options.faults
    if split is not None:
        needed = split.prefill * config.tensor_parallel + split.decode * split.config.tensor_parallel
        count, servers = split.prefill + split.decode, "the prefill and decode servers"
        if split.decode == 1 and faults.starved_replica == count:
            raise UsageError(f"--fault starved_replica={count} leaves no decode server. Plant it in a prefill server.")
    else:
        needed, servers = count * config.tensor_parallel, f"{count} replicas of {config.tensor_parallel} GPUs"
    if count == 1:
        return None
    if config.data_parallel > 1 or (split is not None and options.replicas > 1):
        raise UsageError("replicas with data parallel or with a prefill/decode split cannot be emulated.")
    if needed > options.machine.gpus:
        raise UsageError(f"{servers} need {needed}, and the emulated machine "
                         f"has {options.machine.gpus}: start fewer replicas, or raise --gpus.")
    policy = "round_robin" if faults.policy_ignored else options.router
    (sends, pause_s), (failures, left_out_s) = options.retry, options.breaker
    return Routing(count, policy, options.thresholds, faults.starved_replica or None, options.seed, sends,
                   round(pause_s * 1e9), failures, round(left_out_s * 1e9))


@cache
def emulated_flags(engine: str) -> frozenset[str]:
    """Every engine option that the emulator accepts, with or without an effect."""
    options = EngineParser(FLAGS[engine])._option_string_actions if engine in FLAGS else ()
    return frozenset(option.replace("_", "-") for option in options)


def resolve(options: Options, environ: Mapping[str, str], words: Sequence[str]) -> Launch:
    """The configuration of the emulated server from engine flags, including the planted faults that change it.

    Args:
        options, environ: of the server.
        words: further engine options, of one pool.

    Raises:
        UsageError, StartError: see vllm_launch.
    """
    read = sglang_launch if options.engine == "sglang" else vllm_launch
    launch = read(
        [*options.engine_argv, *words], options.machine, environ, split=options.split, acceptance=options.acceptance
    )
    build = "" if options.coefficients is None else f".fit-{digest_of(options.coefficients)}"
    return replace(launch, build=build, config=options.faults.resolved(launch.config))


def refused(error: UsageError | StartError) -> tuple[int, str]:
    """Exit code and last line of a server that does not start, as the engine writes the line."""
    return (2, f"error: {error}") if isinstance(error, UsageError) else (1, f"ValueError: {error}")
