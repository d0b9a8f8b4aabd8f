"""The fields that a measurement records; `results.conditions` divides them into conditions and build."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmperf.config.gpu_price import GpuPrice
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.masking import mask, masked, masked_env, secret_values
from pytest_llmperf.metrics.registry import all_metrics
from pytest_llmperf.model.deployment import Deployment, PrefillDecode
from pytest_llmperf.model.engine import Endpoint, EngineSpec
from pytest_llmperf.results.conditions import DECLARED, PLANTED, PRICE, ROUTER_VERSION, SHARED_BY
from pytest_llmperf.session.warm_up import RULE
from pytest_llmperf.telemetry.hardware import Hardware
from pytest_llmperf.workload import Workload

# KV blocks follow from the memory that is free at start-up: 57,489 and 57,606 on two starts of one spec on an H200.
MEASURED = ("num_gpu_blocks", "kv_cache_size_tokens")
#: Last words of the condition `treatment` of a server that did not run alone.
BESIDE = "beside it"
#: More streams of a closed loop than these opened some of their connections while the clock ran, in earlier releases.
OPENED_WHILE_RUNNING = 1024
IN_FLAGS = ("enable_expert_parallel",)  # never resolved to anything else than the flag, which is compared


def conditions(
    server: Server, facts: Mapping[str, str], workload: Workload, hardware: Hardware, kind: str,
    *, connections: str = "keep-alive", planted: Sequence[object] = (), handling: str = "",
    price: GpuPrice | None = None,
) -> dict[str, str]:
    """The conditions and the build of a measurement, name → value as text.

    Args:
        handling: how server and caches are treated otherwise than by default, stored as the condition `treatment`.
        price: of a GPU hour; None if none is stated.
    """
    spec, env, flags = server.spec, dict(server.spec.env), flags_of(server.spec)
    secrets = secret_values(flags, env)
    values_by_name = {
        "hardware": hardware.labelled(kind),
        "engine": spec.engine,
        "model": server.model.name if server.model else spec.model,
        "weights": server.model.weights if server.model else "unknown",
        "lmcache": _lmcache(spec),
        "flags": json.dumps(masked(flags, secrets), sort_keys=True),
        "env": json.dumps(masked_env(env, secrets), sort_keys=True),
        "workload": workload.digest(),
        "warm_up": RULE,
        # As in "tpot.1 ttft.1": statistics of one sample share its version.
        "formulas": " ".join(sorted({metric.formula_id.partition("/")[0] for metric in all_metrics().values()})),
    }
    if spec.installation:
        values_by_name["installation"] = spec.installation
    if spec.model_aliases:
        values_by_name["model_alias"] = json.dumps(sorted(spec.model_aliases))
    if isinstance(spec, Endpoint):
        values_by_name |= spec.api.stated
        values_by_name |= {} if spec.kind is None else {DECLARED: spec.kind}
    if server.counters.replica_count:
        values_by_name["replicas"] = str(server.counters.replica_count)
    if isinstance(spec, Deployment):
        values_by_name |= {"router": spec.router.name, "router.policy": spec.router.policy,
                           "router.options": json.dumps(spec.router.values, sort_keys=True)}
    if isinstance(spec, PrefillDecode):
        values_by_name["connector"] = spec.connector.name
        values_by_name |= {f"pool.{name}": str(pool) for name, pool in spec.pools.items()}
    if connections != "keep-alive":
        values_by_name["connections"] = connections
    elif (workload.concurrency or 0) > OPENED_WHILE_RUNNING:
        values_by_name["connections"] = "keep-alive, opened before the start"
    if handling:
        values_by_name["treatment"] = handling
    if price is not None:
        values_by_name[PRICE] = str(price)
    if planted:
        values_by_name[PLANTED] = mask(" ".join(map(str, planted)), secrets)
    values_by_name |= {f"host_env.{name}": value for name, value in server.host_env.items()}
    place = {"url": spec.url} if isinstance(spec, Endpoint) else _machine(hardware, kind)
    compared = {name: value for name, value in facts.items() if name not in (*MEASURED, *IN_FLAGS)}
    return values_by_name | place | {
        name if name == ROUTER_VERSION else f"engine.{name}": value for name, value in compared.items()
    }


def _lmcache(spec: EngineSpec) -> str:
    """The attached LMCache as a condition. The path of its disk tier is left out, because the path does not matter."""
    attached = spec.lmcache
    if attached is None:
        return "none"
    return str(replace(attached, l2_path=None if attached.l2_path is None else "fs"))


def _machine(hardware: Hardware, kind: str) -> dict[str, str]:
    """What the server ran on; of an endpoint's machine nothing is known."""
    used = hardware.gpus if kind != "cpu" else ()
    values_by_name = {
        "gpu": used[0].name if used else "none",
        "gpu_count": str(len(used)),
        "driver": hardware.driver or "none",
    }
    if used and hardware.cuda is not None:
        values_by_name["cuda"] = hardware.cuda
    if kind == "cpu" and hardware.cpu is not None:
        values_by_name |= {"cpu": hardware.cpu.model, "cpu_cores": str(hardware.cpu.cores)}
    if hardware.shared_by > 1:
        values_by_name[SHARED_BY] = str(hardware.shared_by)
    names = dict.fromkeys(name for gpu in used for name, _ in gpu.settings)
    return values_by_name | {
        f"gpu.{name}": _common_value([dict(gpu.settings).get(name) for gpu in used]) for name in names
    }


def _common_value(values: list[str | None]) -> str:
    """One value where all GPUs agree."""
    return " / ".join(dict.fromkeys(value or "unknown" for value in values))
