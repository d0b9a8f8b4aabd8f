"""The options of the emulator. All other arguments on its command line belong to the emulated engine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pytest_llmperf.emulator.cluster.routing import POLICIES, THRESHOLDS
from pytest_llmperf.emulator.config import Link
from pytest_llmperf.emulator.faults import FAULTS, Faults, parse_faults
from pytest_llmperf.emulator.flags.launch import Machine, machine
from pytest_llmperf.emulator.noise import Noise, parse_noise
from pytest_llmperf.emulator.quantities import UsageError, duration_s, fraction

_ENGINES = ("vllm", "sglang")
_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "--hardware": {"required": True, "help": "hardware kind: h200, l40s, ... or one that --hardware-row describes"},
    "--hardware-row": {"metavar": "JSON", "help": 'row of a kind that a project defines: {"bf16_flops": …}'},
    "--gpus": {"type": int, "default": 1, "help": "number of GPUs (1)"},
    "--engine": {"choices": _ENGINES, "help": "engine that is emulated (vllm)"},
    "--fault": {"action": "append", "default": [], "metavar": "NAME[=VALUE]",
                "help": f"plant one: {', '.join(FAULTS)}".replace("%", "%%")},
    "--noise": {"default": "", "help": "e.g. session=0.3%%,run=0.5%%,step=1%%,ar=0.6,age=4%%:120s,gpu=1%%"},
    "--noise-seed": {"type": int, "default": 0, "help": "seed of noise and faults (0)"},
    "--coefficients": {"metavar": "FILE", "help": "fitted coefficients, which `llmperf fit` writes"},
    "--noise-gpu": {"type": int, "default": 0, "help": "seed of the factor of the GPUs, gpu=… (0)"},
    "--acceptance": {"help": "acceptance of drafts by position, e.g. 0.7,0.6"},
    "--split": {"metavar": "BYTES/S[:LATENCY]", "help": "prefill and decode on GPUs of their own, e.g. 50e9:20us"},
    "--pools": {"metavar": "JSON", "default": "[[1, []], [1, []]]", "help": "number and engine options of the prefill "
                "engines, then of the decode engines ([[1, []], [1, []]])"},
    "--replicas": {"type": int, "default": 1, "help": "equal servers behind a router (1)"},
    "--router": {"choices": tuple(POLICIES), "default": "round_robin",
                 "help": "policy of the router (round_robin)"},
    "--router-threshold": {"action": "append", "default": [], "metavar": "NAME=VALUE",
                           "help": f"threshold of a cache-aware router: {', '.join(THRESHOLDS)}"},
    "--router-retry": {"default": "1:0s", "metavar": "SENDS:PAUSE",
                       "help": "sends of a request that no server gets (1:0s)"},
    "--router-breaker": {"default": "0:0s", "metavar": "FAILURES:TIME",
                         "help": "when a replica is left out, and how long"},
    "--record": {"metavar": "FILE", "help": "write each token's intended and actual send time, JSON lines"},
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the emulator.

    Args:
        machine: the emulated hardware.
        engine: engine of the command line `engine_argv`.
        faults, noise, seed: planted faults, noise, and the seed of all random draws.
        split: link between prefill engines and decode engines; None if each engine does both.
        pools: number of prefill engines and of decode engines, and engine options that only these engines have.
        coefficients: file of fitted coefficients; None for the shipped ones.
        acceptance: acceptance probability by draft position; None for the default of the method.
        replicas: number of equal servers behind a router.
        router: policy of the router; thresholds: of a cache-aware router.
        retry: number of sends of a request that reaches no server, and the pause before the second send in seconds.
        breaker: number of failures in a row after which the router leaves a replica out, and the time in seconds.
        record: file for each token's intended and actual send time.
    """

    machine: Machine
    engine: str
    faults: Faults
    noise: Noise
    seed: int
    split: Link | None
    pools: tuple[tuple[int, tuple[str, ...]], ...]
    coefficients: str | None
    acceptance: tuple[float, ...] | None
    replicas: int
    router: str
    thresholds: Mapping[str, float]
    retry: tuple[int, float]
    breaker: tuple[int, float]
    record: str | None
    engine_argv: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See python -m pytest_llmperf.emulator --help.")


def read_options(argv: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        UsageError: an argument is invalid. The message names the argument and the valid values.
    """
    emulator_words, theirs = _divided(list(argv))
    options, rest = _parser().parse_known_args(emulator_words)
    for name in ("gpus", "replicas"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} {getattr(options, name)}: write a number of at least 1.")
    engine, engine_argv = _engine(options.engine, [*rest, *theirs])
    return Options(
        machine=machine(options.hardware, options.gpus, options.hardware_row),
        engine=engine,
        faults=parse_faults(options.fault),
        noise=parse_noise(options.noise, options.noise_seed, options.noise_gpu),
        seed=options.noise_seed,
        split=_link(options.split),
        pools=tuple((int(count), tuple(words)) for count, words in json.loads(options.pools)),
        coefficients=options.coefficients,
        acceptance=_rates(options.acceptance),
        replicas=options.replicas,
        router=options.router,
        thresholds=dict(map(_threshold, options.router_threshold)),
        retry=_count_and_time(options.router_retry, "--router-retry"),
        breaker=_count_and_time(options.router_breaker, "--router-breaker"),
        record=options.record,
        engine_argv=tuple(engine_argv),
    )


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m pytest_llmperf.emulator",
        allow_abbrev=False,
        description="An LLM inference server without a GPU. What follows -- is the engine's own command line, e.g. "
        "--hardware h200 -- serve llama-3.1-8b --max-num-batched-tokens 1024.",
    )
    for name, keywords in _ARGUMENTS.items():
        parser.add_argument(name, **keywords)
    return parser


def _divided(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _engine(named: str | None, argv: list[str]) -> tuple[str, list[str]]:
    """The name of the engine, and its arguments without `-m MODULE`. The module can also name the engine."""
    if argv[:1] != ["-m"]:
        return named or "vllm", argv
    module = argv[1] if len(argv) > 1 else ""
    engine = module.partition(".")[0]
    if engine not in _ENGINES or (named and named != engine):
        raise UsageError(f"-m {module}: it can be vllm.entrypoints.cli.main or sglang.launch_server.")
    return engine, argv[2:]


def _link(text: str | None) -> Link | None:
    if text is None:
        return None
    rate, _, latency = text.partition(":")
    try:
        bytes_per_s = float(rate)
    except ValueError:
        bytes_per_s = 0.0
    if bytes_per_s <= 0:
        raise UsageError(f"--split {text}: {rate!r} is no rate in bytes per second, like 50e9.")
    return Link(bytes_per_s, duration_s(latency, f"--split {text}") if latency else 0.0)


def _threshold(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        if name in THRESHOLDS:
            return name, float(value)
    except ValueError:
        pass
    raise UsageError(f"--router-threshold {text}: write NAME=NUMBER, with {', '.join(THRESHOLDS)}.")


def _count_and_time(text: str, option: str) -> tuple[int, float]:
    count, _, time = text.partition(":")
    if not count.isdecimal():
        raise UsageError(f"{option} {text}: write a number and a time, like 5:50ms.")
    return int(count), duration_s(time, f"{option} {text}")


def _rates(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    return tuple(fraction(part, f"--acceptance {text}", least=0.0, most=1.0) for part in text.split(","))
