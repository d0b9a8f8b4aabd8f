"""A running deployment, as measurements use it: requests go to the router, control requests to every replica."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.api import ControlApi
from pytest_llmperf.engines.control.contact import Contact
from pytest_llmperf.engines.deployment.unit import DeploymentUnit
from pytest_llmperf.engines.endpoint.replica_pages import DeploymentPages
from pytest_llmperf.engines.models.text_tokenizer import TextTokenizer
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import EngineError
from pytest_llmperf.model.api import Api
from pytest_llmperf.model.deployment import Deployment
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.results.conditions import ROUTER_VERSION


class DeploymentServer(Server):
    """Replicas behind a router.

    Args:
        parts: name of a replica → its server.
        unit: the processes of replicas and router.
        contact: where the router answers.
        client: sends control requests to the router.
        start_id: as of `Server`.
        interface: how requests to the router are written: text, if the router takes no token ids.
        tokenizer: makes text prompts of a stated length; None if prompts are token ids.
        router_version: installed version of the router.
    """

    def __init__(
        self, parts: Mapping[str, Server], unit: DeploymentUnit, contact: Contact, client: httpx.Client, *,
        start_id: int, interface: Api, tokenizer: TextTokenizer | None, router_version: str,
    ) -> None:
        first = next(iter(parts.values()))
        pages = {name: (part.control.client, part.reader.metrics_route) for name, part in parts.items()}
        super().__init__(first.reader, contact, unit, client, start_id=start_id, model=first.model, clock=first.clock,
                         host_env=first.host_env, replicas=DeploymentPages(pages), tokenizer=tokenizer)
        self.parts = parts
        self._unit = unit
        self.control = DeploymentControl(self.control, parts, unit)
        self._interface = interface
        self._router_version = router_version

    @property
    def api(self) -> Api:
        return self._interface

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """The facts of all replicas, with each different value once, and the version of the router."""
        each = [part.facts for part in self.parts.values()]
        names = dict.fromkeys(name for facts in each for name in facts)
        values = {name: " / ".join(dict.fromkeys(facts.get(name, "unknown") for facts in each)) for name in names}
        return values | {ROUTER_VERSION: self._router_version}

    def reset_cache(self, keep: Collection[str] = ()) -> bool:
        """Empty the caches of all replicas; False if one of them stays full."""
        self.unit.check_alive()
        emptied = [part.reset_cache(keep) for part in self.parts.values()]
        return all(emptied)

    def detach_replicas(self, spec: EngineSpec, grace_s: float) -> Mapping[str, Server]:
        own = self.unit.spec
        if not (isinstance(spec, Deployment) and isinstance(own, Deployment)) or (
                spec.with_router(own.router) != own) or self.unit.hangs:
            return {}
        try:
            self.mend()
            self.unit.check_alive()
        except EngineError:
            return {}
        self.control.client.close()
        self._unit.stop_router(grace_s)
        return self.parts

    def stop(self, grace_s: float) -> None:
        """End all processes and connections.

        Raises:
            StopFailed: something of a part survived.
        """
        with ExitStack() as steps:
            for part in self.parts.values():
                steps.callback(part.control.client.close)
            steps.callback(super().stop, grace_s)


class DeploymentControl(ControlApi):
    """Asks the replicas what a router does not answer.

    Args:
        routed: control requests to the router.
        parts: name of a replica → its server.
        unit: the processes of the deployment.
    """

    def __init__(self, routed: ControlApi, parts: Mapping[str, Server], unit: DeploymentUnit) -> None:
        super().__init__(routed.reader, routed.contact, routed.unit, routed.client)
        self._deployment = unit
        self._named = {name: part.control for name, part in parts.items()}

    def check_responsive(self, timeout_s: float) -> None:
        """Raise EngineError if a replica or the router runs and answers nothing within `timeout_s`."""
        for name, part in self._named.items():
            if name not in self._deployment.ended:
                part.check_responsive(timeout_s)
        super().check_responsive(timeout_s)

    def served_models(self) -> list[str]:
        """Ids of the models that every replica serves."""
        listed = [part.served_models() for part in self._named.values()]
        return [name for name in listed[0] if all(name in names for names in listed)]

    def start_profiler(self, folder: Path, steps: int) -> None:
        for part in self._named.values():
            part.start_profiler(folder, steps)

    def stop_profiler(self) -> None:
        for part in self._named.values():
            part.stop_profiler()
