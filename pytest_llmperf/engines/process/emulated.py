"""Starts emulated engines in virtual time, each from the command line of the engine that it emulates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.control.contact import Contact
from pytest_llmperf.engines.control.identity import check_configuration, check_identity, generate_one_token
from pytest_llmperf.engines.deployment.emulated import emulated_pages
from pytest_llmperf.engines.lmcache.server import EmulatedLMCache, LMCacheServer
from pytest_llmperf.engines.process.environment import EMULATOR
from pytest_llmperf.engines.process.launch import Launcher, served_name_of
from pytest_llmperf.engines.process.unit import Unit
from pytest_llmperf.engines.process.variables import child_environment
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import secrets_of
from pytest_llmperf.load.virtual import VirtualEngine
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import Starting
from pytest_llmperf.process.launch import Launch

NO_PORT = 1  # nothing listens in virtual time, and the engine's command line wants one


@dataclass(frozen=True)
class VirtualLauncher(Launcher):
    """Starts emulated engines in virtual time: no port, no watchdog, no waiting.

    Args:
        clock: the session's clock, which the engines advance.
        engines: running engines by their artificial host names; shared with the transport.
    """

    clock: VirtualClock
    engines: dict[str, VirtualEngine] = field(default_factory=dict)

    def start(
        self, spec: EngineSpec, start_id: int, lmcache: LMCacheServer | None = None,  # noqa: ARG002
        replicas: Mapping[str, Server] | None = None,  # noqa: ARG002
    ) -> Server:
        """An emulated server that has generated one token under our name.

        Raises:
            EngineError: with the evidence; nothing is left running.
        """
        spec = spec.on(self.kind)
        adapter = adapter_of(spec.engine)
        resolution = self.resolver.of(spec)
        model = resolution.model
        environment = self.emulator(spec, start_id)
        name = served_name_of(model, self.rng)
        placement = Placement(spec.kind or self.kind, NO_PORT, name, model, environment, root=self.root)
        arguments = adapter.arguments(resolution.spec, placement)
        launch = Launch(
            argv=(*environment.prefix, *arguments),
            env=child_environment(spec, adapter, placement),
            cwd=self.root,
            run_dir=self.run_dir / "servers" / self.worker / f"{start_id:02d}-{spec.engine}-emulated",
            hidden=secrets_of(spec),
        )
        self.progress(Starting(str(spec)))
        from pytest_llmperf.engines.control.transports import VirtualControl

        host = f"emulated-{start_id}"
        words = (*environment.prefix[len(EMULATOR):], *arguments)
        self.engines[host] = engine = VirtualEngine(spec.engine, launch, words, self.clock)
        contact, unit = Contact(f"http://{host}", name), Unit(spec, engine)
        unit.launched_ns = engine.begun_ns
        client = contact.client(transport=VirtualControl(engine))
        server = Server(adapter, contact, unit, client, start_id=start_id, model=model, clock=self.clock,
                        replicas=emulated_pages(spec, client))
        server.disturber = engine if spec.servers > 1 else None
        if spec.lmcache is not None:
            unit.lmcache = EmulatedLMCache(server.control.client)
        try:
            check_identity(server)
            generate_one_token(server, self.settings.ready_timeout_s)
            check_configuration(server)
        except BaseException:
            server.stop(0)
            raise
        return server

    def start_together(self, specs: Sequence[EngineSpec], first_id: int) -> list[Server]:
        """Emulated servers beside each other; each has a machine of its own.

        Raises:
            EngineError: a server did not start. The others are stopped.
        """
        servers: list[Server] = []
        try:
            for number, spec in enumerate(specs):
                servers.append(self.start(spec, first_id + number))
        except BaseException:
            for server in servers:
                server.stop(0)
            raise
        return servers
