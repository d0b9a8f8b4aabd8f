"""Specs of several servers: equal servers behind a router, and prefill servers before decode servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from pytest_llmperf.engines.connectors.adapter import connector_adapter_of
from pytest_llmperf.engines.routers.adapter import router_adapter_of
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import SpecError, refuse
from pytest_llmperf.model.deployment import Connector, Deployment, Pool, PrefillDecode, Router
from pytest_llmperf.model.engine import Endpoint, EngineSpec
from pytest_llmperf.model.ranks import DATA, PIPELINE, size_of

#: Flags that give a server GPUs of its own choice: each replica gets its GPUs from the deployment.
PLACES = ("device_ids", "base_gpu_id", "gpu_id_step")
LEAST, MOST = 2, 1024
_POOL = Router("", "")


@overload
def replicas(spec: EngineSpec, n: int) -> Pool: ...


@overload
def replicas(spec: EngineSpec, n: int = 0, *, router: Router | None) -> Deployment: ...


def replicas(spec: EngineSpec, n: int = 0, *, router: Router | None = _POOL) -> Deployment | Pool:
    """Describe equal servers behind a router, which start, are measured and stop as one.

    Each replica has GPUs and ports of its own, and an equal share of reserved cores. Measurements, claims, searches and
    baselines take a deployment like the spec of a server.

    Args:
        spec: of one replica, as `vllm(…)` gives it.
        n: number of replicas, at least 2; in a pool at least 1.
        router: `vllm_router(…)`, `sglang_router(…)`, `nginx(…)`, or a router of another package. Without this argument
            the replicas are a pool of `prefill_decode(…)`.

    Raises:
        SpecError: the spec is not that of one server to start, there is no router, or the router does not exist.
    """
    given: object = spec
    if isinstance(given, list | tuple):
        raise SpecError(_several(given))
    if not isinstance(spec, EngineSpec) or isinstance(spec, Deployment):
        raise SpecError(f'replicas({spec!r}, {n!r}, …): a replica is the spec of one server, such as vllm("MODEL").')
    if isinstance(spec, Endpoint):
        raise SpecError(f"replicas({spec}, {n!r}, …): this server runs already. Write replicas that run "
                        'already as one endpoint: endpoint(URL, model="ID", metrics=["http://…", …]).')
    least, alone = (1, "") if router is _POOL else (LEAST, " One server needs no router: measure its spec.")
    if isinstance(n, bool) or not isinstance(n, int) or not least <= n <= MOST:
        raise SpecError(f"replicas({spec}, {n!r}, …): the number of replicas must be a whole number from {least} "
                        f"to {MOST}.{alone}")
    if router is None:
        raise SpecError(f"replicas({spec}, {n}, router=None): replicas without a router are the engine's own data "
                        f"parallelism: write {spec.engine}({spec.model!r}, data_parallel_size={n}), or name a router, "
                        "router=vllm_router().")
    placed = [name for name, _ in spec.flags if name in PLACES]
    refuse(
        (not isinstance(router, Router),
         f"replicas({spec}, {n}, router={router!r}): give vllm_router(), sglang_router() or nginx()."),
        (placed, f"replicas({spec}, {n}, …): {', '.join(placed)} would give all replicas the same GPUs. Leave the flag "
                 "out: each replica gets the next visible GPUs."),
        (spec.lmcache is not None,
         f"replicas({spec}, {n}, …): LMCache below replicas is not started yet. Leave with_lmcache out."),
    )
    if router is _POOL:
        return Pool(spec, n)
    router_adapter_of(router)
    return Deployment(spec.engine, spec.model, spec.flags, spec.env, None, spec.installation, spec.model_aliases,
                      spec.kind, n, router)


def _several(specs: Sequence[object]) -> str:
    models = list(dict.fromkeys(spec.model for spec in specs if isinstance(spec, EngineSpec)))
    shown = ", ".join(map(str, specs))
    if len(models) > 1:
        return (f"replicas([{shown}], …): the replicas serve different models, {' and '.join(models)}, and an answer "
                "does not say which replica gave it. Give the spec of one server: replicas(spec, n, router=…).")
    return (f"replicas([{shown}], …): replicas are equal servers. Give the spec of one server, and their number: "
            "replicas(spec, n, router=…).")


CALL = "prefill_decode(…)"
TRANSFER = "kv_transfer_config"


def prefill_decode(*, prefill: Pool, decode: Pool, connector: Connector, router: Router) -> PrefillDecode:
    """Describe servers that compute prompts and servers that generate, which start, are measured and stop as one.

    The router sends each request to a prefill server first. Then a decode server fetches the KV cache of the prompt and
    generates the answer. Measurements, claims and baselines take the deployment like the spec of a server.

    Args:
        prefill, decode: a pool of servers each, `replicas(spec, n)` without a router. The pools may have other flags
            and another number of servers, and have the same engine and model.
        connector: what moves the KV cache: `nixl()`.
        router: `vllm_router(…)`.

    Raises:
        SpecError: a pool, the connector or the router cannot be part of this deployment.
    """
    pools: tuple[tuple[str, object], ...] = (("prefill", prefill), ("decode", decode))
    for name, pool in pools:
        if not isinstance(pool, Pool):
            one = f"replicas({pool}, 1)" if type(pool) is EngineSpec else 'replicas(vllm("MODEL"), 1)'
            raise SpecError(f"prefill_decode({name}={pool!r}, …): a pool is a number of equal servers without a "
                            f"router. Write {name}={one}.")
        _check_pool(name, pool.spec)
    if not isinstance(connector, Connector) or not isinstance(router, Router):
        raise SpecError(f"prefill_decode(…, connector={connector!r}, router={router!r}): write connector=nixl() and "
                        "router=vllm_router().")
    _check_together(prefill.spec, decode.spec, connector)
    if not router_adapter_of(router).splits:
        raise SpecError(f"{CALL}: the router {router.name} sends a request to one server only, and here each request "
                        "goes to a prefill server and then to a decode server. Write router=vllm_router().")
    spec = prefill.spec
    empty = PrefillDecode(spec.engine, spec.model, model_aliases=spec.model_aliases, kind=spec.kind, router=router,
                          connector=connector)
    return empty.with_pools(prefill, decode)


def _check_pool(name: str, spec: EngineSpec) -> None:
    """Refuse parallelism that a pool cannot have, and flags that the deployment sets."""
    flags = flags_of(spec)
    for words, what in ((PIPELINE, "pipeline parallel"), (DATA, "data parallel")):
        if size_of(flags, words) > 1:
            raise SpecError(f"{CALL}: the {name} servers are {what} ({spec}), which a pool does not support yet. Leave "
                            f"{words[0]} out, and name more servers or tensor_parallel_size instead.")
    if flags.get("enable_dp_attention"):
        raise SpecError(f"{CALL}: the {name} servers have DP attention ({spec}), which a pool does not support yet. "
                        "Leave enable_dp_attention out.")
    if TRANSFER in flags:
        raise SpecError(f"{CALL}: the {name} servers set {TRANSFER} ({spec}), and the connector sets this flag. Leave "
                        "the flag out.")


def _check_together(prefill: EngineSpec, decode: EngineSpec, connector: Connector) -> None:
    """Refuse pools that differ in a property that the connector or the router needs equal."""
    for name in ("engine", "model", "installation"):
        if getattr(prefill, name) != getattr(decode, name):
            raise SpecError(f"{CALL}: the pools have different {name}s, {getattr(prefill, name)!r} and "
                            f"{getattr(decode, name)!r}. Give both pools the same {name}.")
    adapter = connector_adapter_of(connector)
    if prefill.engine not in adapter.engines:
        raise SpecError(f"{CALL}: {connector.name} is started here for {' and '.join(adapter.engines)} alone, and not "
                        f"for {prefill.engine}. Name the router of servers that you split yourself, as with SGLang's "
                        '--disaggregation-mode: endpoint(URL, model="ID", metrics=["http://…", …]).')
    flags = flags_of(prefill), flags_of(decode)
    for flag in adapter.equal_flags:
        first, second = (each.get(flag) for each in flags)
        if first != second:
            raise SpecError(f"{CALL}: the prefill servers have {flag}={first!r} and the decode servers have "
                            f"{flag}={second!r}, and {connector.name} copies blocks as they are. Give both pools the "
                            f"same {flag}.")
    taken = adapter.variables(0)
    for spec in (prefill, decode):
        for name, _ in spec.env:
            if name in taken:
                raise SpecError(f"{CALL}: {spec} sets {name}, and two servers with the same side channel cannot start. "
                                "Leave the variable out: each server gets a side channel of its own.")
