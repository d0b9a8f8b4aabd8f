"""The emulator in place of a deployment: one process emulates all replicas and the router."""

from __future__ import annotations

import json

from pytest_llmperf.config.emulation import GPUS
from pytest_llmperf.engines.connectors.adapter import connector_adapter_of
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.endpoint.replica_pages import DeploymentPages
from pytest_llmperf.engines.routers.adapter import adapter_before
from pytest_llmperf.engines.spec import command_line, flags_of
from pytest_llmperf.errors import refuse
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.model.deployment import Deployment, PrefillDecode
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.ranks import DATA, size_of

#: Options of a cache-aware router that the emulated router has, too.
THRESHOLDS = ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold")


def emulated_words(spec: EngineSpec) -> list[str]:
    """Options of the emulator for a deployment; none for a server.

    Raises:
        SpecError: the emulated host has too few GPUs, or each replica is data parallel itself.
    """
    if not isinstance(spec, Deployment):
        return []
    refuse(
        (size_of(flags_of(spec), DATA) > 1,
         f"{spec}: the emulator knows no replicas that are data parallel themselves. Leave {DATA[0]} "
         "out, or drop --emulate."),
        (spec.gpus > GPUS, f"{spec} needs {spec.gpus} GPUs, and an emulated host has {GPUS}. Name fewer replicas."),
    )
    adapter, options = adapter_before(spec), spec.router.values
    router = ["--router", adapter.policies[spec.router.policy]]
    for name in THRESHOLDS:
        if name in options:
            router += ["--router-threshold", f"{name}={options[name]}"]
    if options.get("retries"):
        router += ["--router-retry", adapter.emulated_retry]
    if options.get("circuit_breaker"):
        router += ["--router-breaker", adapter.emulated_breaker]
    if not isinstance(spec, PrefillDecode):
        return ["--replicas", str(spec.servers), *router]
    rate = connector_adapter_of(spec.connector).emulated_bytes_per_s
    if spec.kind is not None and spec.kind in GPU_KINDS:
        rate = min(rate, GPU_KINDS[spec.kind].peer_bytes_per_s)
    common = flags_of(spec)
    pools = [(pool.servers, command_line({name: value for name, value in flags_of(pool.spec).items()
                                          if name not in common})) for pool in spec.pools.values()]
    return ["--split", str(rate), "--pools", json.dumps(pools), *router]


def emulated_pages(spec: EngineSpec, client: httpx.Client) -> DeploymentPages | None:
    """The metrics page of each emulated replica; None for a server.

    Args:
        client: reaches the emulator.
    """
    if not isinstance(spec, Deployment):
        return None
    return DeploymentPages({name: (client, f"/replicas/{number}/metrics")
                            for number, name in enumerate(spec.parts, start=1)})
