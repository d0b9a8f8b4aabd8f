"""The door of routers: the shipped routers and the routers of other packages, by name."""

from __future__ import annotations

from pytest_llmperf.doors import Door
from pytest_llmperf.engines.routers.adapter import RouterAdapter
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.deployment import Deployment, PrefillDecode, Router
from pytest_llmperf.model.engine import EngineSpec

ROUTERS = Door[RouterAdapter]("router", "a RouterAdapter", lambda value: isinstance(value, RouterAdapter), {
    "vllm_router": "pytest_llmperf.engines.routers.vllm_router:VLLM_ROUTER",
    "sglang_router": "pytest_llmperf.engines.routers.sglang_router:SGLANG_ROUTER",
    "nginx": "pytest_llmperf.engines.routers.nginx:NGINX",
})


def names_sessions(spec: EngineSpec) -> bool:
    """Whether the router of a deployment chooses by sessions, so that each request needs the header X-Session-Id."""
    return isinstance(spec, Deployment) and spec.router.policy in router_adapter_of(spec.router).session_policies


def router_adapter_of(router: Router) -> RouterAdapter:
    """The adapter of a router.

    Raises:
        SpecError: no router has this name, or the router has no such policy.
        ConfigError: the package that adds the router cannot be used.
    """
    adapter = ROUTERS.get(router.name)
    if adapter is None:
        raise SpecError(ROUTERS.unknown(router.name))
    if (refusal := adapter.refusal(router)) is not None:
        raise SpecError(f"{router}: {refusal}")
    return adapter


def adapter_before(spec: Deployment) -> RouterAdapter:
    """The adapter of the router of a deployment.

    Raises:
        SpecError: as of `router_adapter_of`, or the router would ignore an option before these servers.
    """
    adapter = router_adapter_of(spec.router)
    for name in adapter.idle_in_splits if isinstance(spec, PrefillDecode) else ():
        if spec.router.values.get(name):
            raise SpecError(f"{spec.router}: before prefill and decode servers, {adapter.name} accepts {name} and does "
                            f"not use it: requests to a dead server fail all the same. Leave {name} out.")
    return adapter
