"""The spec of prefill servers and decode servers behind a router."""

from __future__ import annotations

from pytest_llmperf.engines.connectors.door import connector_adapter_of
from pytest_llmperf.engines.routers.door import router_adapter_of
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.deployment import Connector, Pool, PrefillDecode, Router
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.ranks import DATA, PIPELINE, size_of

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
