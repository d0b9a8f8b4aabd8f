"""vLLM's router (vllm-router 0.1.17)."""

from __future__ import annotations

from types import MappingProxyType

from pytest_llmperf.engines.routers.adapter import SWITCHES, RouterPlacement, switched_on
from pytest_llmperf.engines.routers.rust_router import RustRouter
from pytest_llmperf.model.deployment import Router, router_of
from pytest_llmperf.model.engine import Flag


class VllmRouter(RustRouter):
    """Takes token ids, and compares prefixes of token ids as of text."""

    name = package = "vllm_router"
    policies = MappingProxyType({
        "cache_aware": "cache_aware", "round_robin": "round_robin", "random": "random", "power_of_two": "power_of_two",
        "consistent_hash": "consistent_hash", "sticky_least_loaded": "sticky_least_loaded", "kv_aware": "kv_aware",
    })
    session_policies = frozenset({"consistent_hash", "sticky_least_loaded"})
    emulated_only = MappingProxyType({
        "kv_aware": "without KV events of the servers the router chooses by load alone, and a session does not connect "
                    "KV events yet",
    })
    splits = True
    idle_in_splits = SWITCHES  # tried: half of the requests failed with both, as without

    def workers(self, placement: RouterPlacement) -> list[str]:
        if not placement.decoders:
            return super().workers(placement)
        prefill = [word for url in placement.workers for word in ("--prefill", url)]
        decode = [word for url in placement.decoders for word in ("--decode", url)]
        return ["--vllm-pd-disaggregation", *prefill, *decode]


VLLM_ROUTER = VllmRouter()


def vllm_router(*, policy: str = "cache_aware", retries: bool = False, circuit_breaker: bool = False,
                **options: Flag) -> Router:
    """Describe vLLM's router, of the package vllm-router.

    Args:
        policy: "cache_aware", "round_robin", "random", "power_of_two", "consistent_hash", "sticky_least_loaded" or
            "kv_aware".
        retries: whether the router sends a failed request to another replica. A retry hides an error as latency.
        circuit_breaker: whether the router stops to send to a replica that fails.
        options: further options of the router with underscores, such as `cache_threshold=0.5`.

    Raises:
        SpecError: the value of an option is not JSON.
    """
    return router_of("vllm_router", policy, options | switched_on(retries=retries, circuit_breaker=circuit_breaker))
