"""Several servers behind a router, as one thing to measure: immutable, hashable, comparable by value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.engine import EngineSpec, Flag


@dataclass(frozen=True, slots=True)
class Router:
    """What divides the requests of a deployment over its replicas. Build one with `vllm_router(…)` and its like.

    Args:
        name: name of the router's adapter: "vllm_router", "sglang_router", "nginx", …
        policy: how the router chooses a replica, in the router's own words.
        options: further options as pairs of name and JSON value, sorted. Values are text so that the router is
            hashable.
    """

    name: str
    policy: str
    options: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        shown = [f"policy={self.policy!r}", *(f"{name}={value}" for name, value in self.options)]
        return f"{self.name}({', '.join(shown)})"

    @property
    def values(self) -> dict[str, object]:
        """The options as Python objects."""
        return {name: json.loads(value) for name, value in self.options}


def router_of(name: str, policy: str, options: dict[str, Flag]) -> Router:
    """A router with options as JSON.

    Args:
        name: name of the router's adapter.
        policy: how the router chooses a replica, in the router's own words.
        options: further options of the router with underscores. An option whose value is None is left out.

    Raises:
        SpecError: the policy is no text, or the value of an option is not JSON.
    """
    if not isinstance(policy, str):
        raise SpecError(f"{name}(policy={policy!r}): write the policy as text, such as policy=\"round_robin\".")
    try:
        pairs = ((option, json.dumps(value, sort_keys=True, allow_nan=False))
                 for option, value in options.items() if value is not None)
        return Router(name, policy, tuple(sorted(pairs)))
    except (TypeError, ValueError) as error:
        raise SpecError(f"{name}(policy={policy!r}, …): write an option as text, a number, a boolean or a list "
                        f"of them ({error}).") from error


@dataclass(frozen=True, slots=True)
class Connector:
    """What moves KV cache from a prefill server to a decode server. Build one with `nixl()` and its like.

    Args:
        name: name of the connector's adapter: "nixl".
    """

    name: str

    def __repr__(self) -> str:
        return f"{self.name}()"


@dataclass(frozen=True, slots=True, repr=False)
class Pool:
    """Equal servers without a router, as a part of a deployment. Build one with `replicas(spec, n)`.

    Args:
        spec: of one server.
        servers: number of servers, at least 1.
    """

    spec: EngineSpec
    servers: int

    @property
    def gpus(self) -> int:
        """Number of GPUs of all servers together."""
        return self.spec.gpus * self.servers

    def __repr__(self) -> str:
        return f"replicas({self.spec}, {self.servers})"


@dataclass(frozen=True, slots=True, repr=False)
class Deployment(EngineSpec):
    """Equal servers behind a router. Build one with `replicas(…)`.

    Engine, model, flags and variables are those of each replica.

    Args:
        servers: number of replicas.
        router: what divides the requests over the replicas.
    """

    servers: int = 1
    router: Router = Router("", "")

    @property
    def replica(self) -> EngineSpec:
        """The spec of one replica."""
        return EngineSpec(self.engine, self.model, self.flags, self.env, None, self.installation, self.model_aliases,
                          self.kind)

    @property
    def pools(self) -> Mapping[str, Pool]:
        """The servers by the name of their pool; replicas have one pool with the name ""."""
        return {"": Pool(self.replica, self.servers)}

    @property
    def parts(self) -> Mapping[str, EngineSpec]:
        """Each server by its name: "1", "2", … or "prefill-1", "decode-1", …"""
        return {f"{name}-{number}" if name else str(number): pool.spec
                for name, pool in self.pools.items() for number in range(1, pool.servers + 1)}

    def with_router(self, router: Router | None = None, /, *, policy: str = "", **options: Flag) -> Self:
        """The same replicas behind another router, or behind the same router with another policy or other options.

        Args:
            router: another router.
            policy: another policy of the same router.
            options: options of the same router to change; None removes an option.

        Raises:
            SpecError: a router and a policy or options are given together, or the value of an option is not JSON.
        """
        if router is not None:
            if policy or options or not isinstance(router, Router):
                raise SpecError(f"with_router({router!r}, …): give a router, with_router(nginx()), or a policy and "
                                'options of the same router, with_router(policy="round_robin").')
            return replace(self, router=router)
        merged: dict[str, Flag] = {name: json.loads(value) for name, value in self.router.options}
        return replace(self, router=router_of(self.router.name, policy or self.router.policy, merged | options))

    def with_lmcache(self, **options: object) -> Self:  # noqa: ARG002
        """Raise SpecError."""
        raise SpecError(f"{self}.with_lmcache(…): LMCache below replicas is not started yet. Measure one server with "
                        "LMCache, or start the replicas yourself and name them by endpoint(…, metrics=[…]).")

    def __repr__(self) -> str:
        return f"replicas({self.replica}, {self.servers}, router={self.router})"


_NO_POOL = Pool(EngineSpec("", ""), 0)


@dataclass(frozen=True, slots=True, repr=False)
class PrefillDecode(Deployment):
    """Servers that compute prompts and servers that generate, behind a router. Build one with `prefill_decode(…)`.

    Engine, model, flags and variables are what all servers have in common.

    Args:
        prefill, decode: the pools.
        connector: what moves KV cache from a prefill server to a decode server.
    """

    prefill: Pool = _NO_POOL
    decode: Pool = _NO_POOL
    connector: Connector = Connector("")

    @property
    def pools(self) -> Mapping[str, Pool]:
        return {"prefill": replace(self.prefill, spec=self.prefill.spec.on(self.kind)),
                "decode": replace(self.decode, spec=self.decode.spec.on(self.kind))}

    @property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools.values())

    def with_pools(self, prefill: Pool, decode: Pool) -> Self:
        """The same deployment with other pools of the same model."""
        first, second = prefill.spec, decode.spec
        return replace(self, prefill=prefill, decode=decode, servers=prefill.servers + decode.servers,
                       flags=tuple(sorted(set(first.flags) & set(second.flags))),
                       env=tuple(sorted(set(first.env) & set(second.env))), installation=first.installation)

    def with_flags(self, /, **flags: Flag) -> Self:
        """Both pools with some flags changed.

        Args:
            flags: the engine's own flags with underscores; None removes a flag.

        Raises:
            SpecError: an argument is not a flag.
        """
        return self.with_pools(*(replace(pool, spec=pool.spec.with_flags(**flags))
                                 for pool in (self.prefill, self.decode)))

    def with_installation(self, name: str) -> Self:
        """Both pools from another installation of the engine.

        Raises:
            SpecError: the name is invalid.
        """
        return self.with_pools(*(replace(pool, spec=pool.spec.with_installation(name))
                                 for pool in (self.prefill, self.decode)))

    def __repr__(self) -> str:
        return (f"prefill_decode(prefill={self.prefill}, decode={self.decode}, connector={self.connector}, "
                f"router={self.router})")
