"""Tuning claims about LLM inference servers as regression checks.

What a suite imports; everything loads on first use, because this package is part of every pytest run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pytest_llmperf.version import VERSION

if TYPE_CHECKING:
    from pytest_llmperf.engines.connectors.adapter import nixl
    from pytest_llmperf.engines.control.running_server import RunningServer as Server
    from pytest_llmperf.engines.deployment.spec import prefill_decode, replicas
    from pytest_llmperf.engines.endpoint.spec import endpoint
    from pytest_llmperf.engines.models.roofline import decode_floor_ms, prefill_peak_per_s
    from pytest_llmperf.engines.routers.nginx import nginx
    from pytest_llmperf.engines.routers.rust_router import sglang_router, vllm_router
    from pytest_llmperf.engines.spec import sglang, vllm
    from pytest_llmperf.engines.transformers.adapter import transformers
    from pytest_llmperf.model.engine import EngineSpec
    from pytest_llmperf.model.event import kill, restart, stop
    from pytest_llmperf.model.spending import spending_limit
    from pytest_llmperf.model.verdict import Verdict
    from pytest_llmperf.plugin.kinds import by_kind
    from pytest_llmperf.results.check import CheckResult
    from pytest_llmperf.results.measurement import Measurement
    from pytest_llmperf.session.perf import Perf
    from pytest_llmperf.session.sequential_claim import ClaimResult
    from pytest_llmperf.workload import (
        Arrivals,
        Workload,
        across_models,
        at_times,
        cancelled,
        closed,
        constant,
        exponential,
        gamma,
        mixed,
        multi_turn,
        poisson,
        ramp,
        random_tokens,
        recorded,
        retried,
        shared_prefix,
        sharegpt,
        trace,
    )

__version__ = VERSION

_HOME = {
    "Arrivals": "workload",
    "CheckResult": "results.check",
    "ClaimResult": "session.sequential_claim",
    "EngineSpec": "model.engine",
    "Measurement": "results.measurement",
    "Perf": "session.perf",
    "Server": "engines.control.running_server",
    "Verdict": "model.verdict",
    "Workload": "workload",
    "across_models": "workload",
    "at_times": "workload",
    "by_kind": "plugin.kinds",
    "cancelled": "workload",
    "closed": "workload",
    "constant": "workload",
    "decode_floor_ms": "engines.models.roofline",
    "endpoint": "engines.endpoint.spec",
    "exponential": "workload",
    "gamma": "workload",
    "kill": "model.event",
    "mixed": "workload",
    "multi_turn": "workload",
    "nginx": "engines.routers.nginx",
    "nixl": "engines.connectors.adapter",
    "poisson": "workload",
    "prefill_decode": "engines.deployment.spec",
    "prefill_peak_per_s": "engines.models.roofline",
    "ramp": "workload",
    "random_tokens": "workload",
    "recorded": "workload",
    "replicas": "engines.deployment.spec",
    "restart": "model.event",
    "retried": "workload",
    "sglang_router": "engines.routers.rust_router",
    "sglang": "engines.spec",
    "shared_prefix": "workload",
    "sharegpt": "workload",
    "spending_limit": "model.spending",
    "stop": "model.event",
    "trace": "workload",
    "transformers": "engines.transformers.adapter",
    "vllm": "engines.spec",
    "vllm_router": "engines.routers.rust_router",
}

__all__ = [
    "Arrivals",
    "CheckResult",
    "ClaimResult",
    "EngineSpec",
    "Measurement",
    "Perf",
    "Server",
    "Verdict",
    "Workload",
    "across_models",
    "at_times",
    "by_kind",
    "cancelled",
    "closed",
    "constant",
    "decode_floor_ms",
    "endpoint",
    "exponential",
    "gamma",
    "kill",
    "mixed",
    "multi_turn",
    "nginx",
    "nixl",
    "poisson",
    "prefill_decode",
    "prefill_peak_per_s",
    "ramp",
    "random_tokens",
    "recorded",
    "replicas",
    "restart",
    "retried",
    "sglang",
    "sglang_router",
    "shared_prefix",
    "sharegpt",
    "spending_limit",
    "stop",
    "trace",
    "transformers",
    "vllm",
    "vllm_router",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
