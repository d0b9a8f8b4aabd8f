"""SGLang's router (sglang-router 0.3.2)."""

from __future__ import annotations

from types import MappingProxyType

from pytest_llmperf.engines.routers.adapter import switched_on
from pytest_llmperf.engines.routers.rust_router import RustRouter
from pytest_llmperf.model.deployment import Router, router_of
from pytest_llmperf.model.engine import Flag


class SglangRouter(RustRouter):
    """Takes text only: the router answers token ids with HTTP status 422."""

    name = package = "sglang_router"
    takes_token_ids = False
    policies = MappingProxyType({
        "cache_aware": "cache_aware", "round_robin": "round_robin", "random": "random", "power_of_two": "power_of_two",
    })

    def own_flags(self) -> dict[str, object]:
        return {"log_level": "warn"}


SGLANG_ROUTER = SglangRouter()


def sglang_router(*, policy: str = "cache_aware", retries: bool = False, circuit_breaker: bool = False,
                  **options: Flag) -> Router:
    """Describe SGLang's router, of the package sglang-router. Prompts are sent as text, one word for each token.

    Args:
        policy: "cache_aware", "round_robin", "random" or "power_of_two".
        retries: whether the router sends a failed request to another replica. A retry hides an error as latency.
        circuit_breaker: whether the router stops to send to a replica that fails.
        options: further options of the router with underscores, such as `cache_threshold=0.5`.

    Raises:
        SpecError: the value of an option is not JSON.
    """
    return router_of("sglang_router", policy, options | switched_on(retries=retries, circuit_breaker=circuit_breaker))
