"""The routers of vLLM and of SGLang. Both are Rust programs of a common origin with a launcher in Python."""

from __future__ import annotations

from types import MappingProxyType

from pytest_llmperf.engines.routers.adapter import SWITCHES, RouterAdapter, RouterPlacement, switched_on
from pytest_llmperf.engines.spec import command_line
from pytest_llmperf.model.deployment import Router, router_of
from pytest_llmperf.model.engine import Flag

#: Options that the launcher sets.
_OF_LAUNCHER = frozenset({
    "host", "port", "prometheus_host", "prometheus_port", "worker_urls", "prefill", "decode", "pd_disaggregation",
    "vllm_pd_disaggregation", "service_discovery", "disable_retries", "disable_circuit_breaker",
})


class RustRouter(RouterAdapter):
    """The command line of a `launch_router` module."""

    api = 1
    switches = MappingProxyType({"retries": "disable_retries", "circuit_breaker": "disable_circuit_breaker"})
    emulated_retry, emulated_breaker = "5:50ms", "10:60s"  # defaults of vllm-router 0.1.17

    def arguments(self, router: Router, placement: RouterPlacement) -> list[str]:
        options = router.values
        off = {flag: True for option, flag in self.switches.items() if not options.pop(option, False)}
        own: dict[str, object] = {
            "host": "127.0.0.1", "port": placement.port, "policy": router.policy, "log_level": "warning",
            "prometheus_host": "127.0.0.1", "prometheus_port": placement.metrics_port,
        }
        module = ["-m", f"{self.package}.launch_router"] if placement.is_python else []
        return [*module, *self.workers(placement), *command_line(own | self.own_flags() | off | options)]

    def refusal(self, router: Router) -> str | None:
        if taken := sorted(_OF_LAUNCHER & router.values.keys()):
            return (f"{', '.join(taken)} is set by the launcher, which knows the servers and picks free ports. Leave "
                    "it out. To switch on retries or the circuit breaker, write retries=True or circuit_breaker=True.")
        return super().refusal(router)

    def workers(self, placement: RouterPlacement) -> list[str]:
        """The arguments that name the servers."""
        return ["--worker-urls", *placement.workers]

    def help_arguments(self) -> tuple[str, ...]:
        return ("-m", f"{self.package}.launch_router", "--help")

    def own_flags(self) -> dict[str, object]:
        """Flags that only this router has, or spells differently."""
        return {}


class VllmRouter(RustRouter):
    """The router of vLLM. Its prompts may be token ids, and its cache-aware policy compares prefixes of token ids,
    too."""

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
    idle_in_splits = SWITCHES  # measured: half of the requests failed, with both switches on and with both off

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


class SglangRouter(RustRouter):
    """The router of SGLang. Its prompts must be text: the router answers token ids with HTTP status 422."""

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
