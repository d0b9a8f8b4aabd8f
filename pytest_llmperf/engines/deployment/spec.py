"""The spec of several equal servers, behind a router or as a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from pytest_llmperf.engines.routers.door import router_adapter_of
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.deployment import Deployment, Pool, Router
from pytest_llmperf.model.engine import Endpoint, EngineSpec

#: Flags that give a server GPUs of its own choice: each replica gets its GPUs from the deployment.
PLACES = ("device_ids", "base_gpu_id", "gpu_id_step")
LEAST = 2
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
    least = 1 if router is _POOL else LEAST
    if isinstance(n, bool) or not isinstance(n, int) or n < least:
        alone = "" if router is _POOL else " One server needs no router: measure its spec."
        raise SpecError(f"replicas({spec}, {n!r}, …): the number of replicas must be a whole number of at least "
                        f"{least}.{alone}")
    if router is None:
        raise SpecError(f"replicas({spec}, {n}, router=None): replicas without a router are the engine's own data "
                        f"parallelism: write {spec.engine}({spec.model!r}, data_parallel_size={n}), or name a router, "
                        "router=vllm_router().")
    if not isinstance(router, Router):
        raise SpecError(f"replicas({spec}, {n}, router={router!r}): give vllm_router(), sglang_router() or "
                        "nginx().")
    if placed := [name for name, _ in spec.flags if name in PLACES]:
        raise SpecError(f"replicas({spec}, {n}, …): {placed[0]} would give all replicas the same GPUs. Leave the flag "
                        "out: each replica gets the next visible GPUs.")
    if spec.lmcache is not None:
        raise SpecError(f"replicas({spec}, {n}, …): LMCache below replicas is not started yet. Leave with_lmcache out.")
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
