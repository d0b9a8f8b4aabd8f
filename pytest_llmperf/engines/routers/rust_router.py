"""What vLLM's and SGLang's routers share: both are launched by Python and written in Rust from one origin."""

from __future__ import annotations

from types import MappingProxyType

from pytest_llmperf.engines.routers.adapter import RouterAdapter, RouterPlacement
from pytest_llmperf.engines.spec import command_line
from pytest_llmperf.model.deployment import Router

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
            return (f"{', '.join(taken)} is set by the launcher: it names the servers, picks free ports, and takes "
                    "retries=True and circuit_breaker=True. Leave it out.")
        return super().refusal(router)

    def workers(self, placement: RouterPlacement) -> list[str]:
        """The arguments that name the servers."""
        return ["--worker-urls", *placement.workers]

    def help_arguments(self) -> tuple[str, ...]:
        return ("-m", f"{self.package}.launch_router", "--help")

    def own_flags(self) -> dict[str, object]:
        """Flags that one of the routers has, or spells in its own way."""
        return {}
