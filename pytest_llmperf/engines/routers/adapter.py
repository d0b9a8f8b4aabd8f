"""What one router must tell: command line, files, policies. One small class per router.

Our own routers and routers of other packages are subclasses, which come in through the door `ROUTERS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pytest_llmperf.doors import Door
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.deployment import Deployment, PrefillDecode, Router
from pytest_llmperf.model.engine import EngineSpec, Flag


@dataclass(frozen=True, slots=True)
class RouterPlacement:
    """Everything about one start of a router that its spec does not say.

    Args:
        port: TCP port on 127.0.0.1 for requests.
        metrics_port: TCP port on 127.0.0.1 for the router's own metrics.
        workers: address of each replica: "http://127.0.0.1:8000". With decoders, these are the prefill servers.
        folder: an empty folder for the router's files.
        is_python: whether the command is an interpreter, so that "-m MODULE" must follow.
        decoders: address of each decode server, for a router that `splits`; empty for replicas.
    """

    port: int
    metrics_port: int
    workers: tuple[str, ...]
    folder: Path
    is_python: bool = True
    decoders: tuple[str, ...] = ()


SWITCHES = ("retries", "circuit_breaker")


class RouterAdapter(ABC):
    """One router that a session can start before the replicas of a deployment."""

    api: int
    """Version of the doors for which the class was written: 1."""
    name: str
    """The name in settings, options and messages."""
    package: str = ""
    """Import name of the router's Python package, whose distribution states the version; "" for a program."""
    program: str = ""
    """Name of the program on PATH, for a router that is no Python package."""
    policies: Mapping[str, str] = MappingProxyType({})
    """Policy → the policy of the emulated router that chooses in the same way: "random", "round_robin", "cache_aware",
    "kv_aware", "power_of_two", "least_loaded" or "consistent_hash"."""
    takes_token_ids: bool = True
    """Whether prompts may be token ids. If False, prompts are sent as text, one word for each token."""

    splits: bool = False
    """Whether the router can send a request to a prefill server and then to a decode server."""
    idle_in_splits: tuple[str, ...] = ()
    """Options that have no effect before prefill and decode servers."""
    session_policies: frozenset[str] = frozenset()
    """Policies that choose by the header X-Session-Id. Requests to a router with such a policy have this header."""
    emulated_only: Mapping[str, str] = MappingProxyType({})
    """Policy → why a session cannot start the router with this policy before real servers."""

    switches: Mapping[str, str] = MappingProxyType({})
    """Option of a spec → the router's flag that switches the feature off, for features that are off by default here."""

    emulated_retry: str = "2:0s"
    """With retries, how often the emulated router sends a request that reaches no server, and the pause before the
    second send. Without a pause the router sends to a replica that it has not tried."""
    emulated_breaker: str = "1:10s"
    """With a circuit breaker, after how many failures in a row the emulated router leaves a replica out, and for how
    long."""

    @abstractmethod
    def arguments(self, router: Router, placement: RouterPlacement) -> list[str]:
        """The command line after the interpreter or program. The router must listen on `placement.port` of 127.0.0.1.

        Retries and circuit breakers are off unless the options of the spec ask for them: they change latencies.
        """

    def files(self, router: Router, placement: RouterPlacement) -> Mapping[str, str]:  # noqa: ARG002
        """Name → text of files that the router reads, to be written into `placement.folder`."""
        return {}

    def refusal(self, router: Router) -> str | None:
        """Why this router cannot run with these options; None if it can run."""
        if router.policy not in self.policies:
            return f"{router.name} has no policy {router.policy!r}; its policies are {', '.join(self.policies)}."
        for name in SWITCHES:
            if not isinstance(router.values.get(name, True), bool):
                return f"write {name}=True or {name}=False. How often a router sends again is retry_max_retries=…."
        return None

    def help_arguments(self) -> tuple[str, ...]:
        """Arguments with which the command prints its options, so that a mistyped option is found before a start; empty
        if no option of a spec goes to the command line."""
        return ()


def switched_on(**wanted: bool) -> dict[str, Flag]:
    """The options that are on. An option that is off is left out, so that equal routers are equal."""
    return {name: on for name, on in wanted.items() if on is not False}


ROUTERS = Door[RouterAdapter]("router", "a RouterAdapter", lambda value: isinstance(value, RouterAdapter), {
    "vllm_router": "pytest_llmperf.engines.routers.rust_router:VLLM_ROUTER",
    "sglang_router": "pytest_llmperf.engines.routers.rust_router:SGLANG_ROUTER",
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
