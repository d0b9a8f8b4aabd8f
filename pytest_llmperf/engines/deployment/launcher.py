"""Starts deployments beside single servers: all their servers at the same time, then the router."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.connectors.adapter import connector_adapter_of
from pytest_llmperf.engines.control.contact import Contact
from pytest_llmperf.engines.control.identity import generate_one_token
from pytest_llmperf.engines.deployment.server import DeploymentServer
from pytest_llmperf.engines.deployment.unit import DeploymentUnit, ReplicaDisturber, check_parts, part_text
from pytest_llmperf.engines.lmcache.server import LMCacheServer
from pytest_llmperf.engines.models.text_tokenizer import TextTokenizer, text_tokenizer
from pytest_llmperf.engines.process.environment import Environment, Installations
from pytest_llmperf.engines.process.installed import has_module
from pytest_llmperf.engines.process.launch import Launcher, Start, served_name_of, stop_after
from pytest_llmperf.engines.process.readiness import wait_ready
from pytest_llmperf.engines.process.variables import inherited_environment
from pytest_llmperf.engines.routers.adapter import RouterAdapter, RouterPlacement, adapter_before, router_adapter_of
from pytest_llmperf.engines.routers.place import check_options, router_environment, router_version
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import EngineError, EnvironmentMissing, SpecError
from pytest_llmperf.model.deployment import Deployment, PrefillDecode
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import Starting
from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.ports import PortLease, reserve_port
from pytest_llmperf.process.supervisor import Supervised
from pytest_llmperf.telemetry.hardware import Gpu, showing_only, words_of_gpus
from pytest_llmperf.telemetry.replicas import pool_of

NO_TOKENIZER = "skip_tokenizer_init"


@dataclass(frozen=True)
class DeploymentLauncher(Launcher):
    """Starts single servers as a `Launcher` does, and deployments.

    Args:
        gpus: gives the GPUs that a spec uses on this machine; none on a CPU.
    """

    gpus: Callable[[EngineSpec], tuple[Gpu, ...]] = lambda _spec: ()

    def check(self, spec: EngineSpec) -> None:
        """Look, before anything is started or stopped for it, whether this spec can be started at all.

        Raises:
            SpecError: as of `Launcher.check`. Of a deployment also: there are fewer GPUs than its replicas need, or its
                router takes text and the model has no tokenizer.
            EnvironmentMissing: the engine or the router is not installed.
        """
        if not isinstance(spec, Deployment):
            super().check(spec)
            return
        spec = spec.on(self.kind)
        if self.emulation is not None:
            super().check(spec)
            return
        adapter = adapter_before(spec)
        if (reason := adapter.emulated_only.get(spec.router.policy)) is not None:
            policies = ", ".join(policy for policy in adapter.policies if policy not in adapter.emulated_only)
            raise SpecError(f"{spec.router}: {reason}. Choose one of the policies {policies}, or emulate the "
                            "deployment: --emulate KIND.")
        for pool in spec.pools.values():
            super().check(pool.spec)
        self._check_connector(spec)
        self._placed(spec)
        self._words(spec)
        check_options(adapter, spec.router, self._router_environment(adapter, spec))

    def start(
        self, spec: EngineSpec, start_id: int, lmcache: LMCacheServer | None = None,
        replicas: Mapping[str, Server] | None = None,
    ) -> Server:
        """A server, or all replicas of a deployment and its router, that has generated one token.

        Replicas that run already get a new router, and empty caches. Their start id stays.

        Raises:
            EngineError: with the evidence; nothing is left running.
        """
        if not isinstance(spec, Deployment) or self.emulation is not None:
            return super().start(spec, start_id, lmcache)
        spec = spec.on(self.kind)
        parts = dict(replicas or {})
        try:
            for part in parts.values():
                part.reset_cache()
            if not parts:
                self._start_parts(spec, start_id, parts)
            return self._behind_router(spec, start_id, parts)
        except BaseException as error:
            for part in parts.values():
                stop_after(error, part, self.settings.stop_grace_s)
            raise

    def start_together(self, specs: Sequence[EngineSpec], first_id: int) -> list[Server]:
        """As a `Launcher` does. A deployment takes its GPUs alone."""
        assert not any(isinstance(spec, Deployment) for spec in specs), "deployments start alone"
        return super().start_together(specs, first_id)

    def _start_parts(self, spec: Deployment, start_id: int, parts: dict[str, Server]) -> None:
        """Launch all replicas, and wait until each has generated a token. A replica that dies meanwhile is named.

        Args:
            parts: gets each replica by its name as soon as its process runs.
        """
        def check() -> None:
            check_parts({name: part.unit for name, part in parts.items()})

        name = served_name_of(self.resolver.of(next(iter(spec.parts.values()))).model, self.rng)
        starts: dict[str, Start] = {}
        for part, (replica, cpus) in self._placed(spec).items():
            own = f"replica-{part}" if part.isdigit() else part
            folder = Path(self.worker, f"{start_id:02d}-{spec.router.name}", own)
            launcher = replace(self, served_name=name, cpus=cpus, worker=str(folder), check_others=check)
            connected, side_channel = self._connected(spec, part, replica)
            start = starts[part] = Start(launcher, connected, start_id)
            with ExitStack() as undo:
                if side_channel is not None:
                    undo.callback(side_channel.close)
                start.launch()
                undo.pop_all()
            assert start.server is not None
            parts[part] = start.server
            if side_channel is not None:
                assert isinstance(start.server.unit.process, Supervised)
                start.server.unit.process.on_gone(side_channel.close)
        for part, start in starts.items():
            try:
                parts[part] = start.ready()
            except EngineError as error:
                error.message = f"{part_text(part, spec.servers)} did not start: {error.message}"
                raise

    def _connected(self, spec: Deployment, part: str, server: EngineSpec) -> tuple[EngineSpec, PortLease | None]:
        """The spec of a server with flags and variables of the connector, and the port of the connector's messages."""
        if not isinstance(spec, PrefillDecode):
            return server, None
        adapter, port = connector_adapter_of(spec.connector), reserve_port(self.rng)
        flags = adapter.flags(pool_of(part), spec.kind or self.kind)
        env = dict(server.env) | dict(adapter.variables(port.port))
        return replace(server.with_flags(**flags), env=tuple(sorted(env.items()))), port

    def _check_connector(self, spec: Deployment) -> None:
        """Raise EnvironmentMissing if the engine's environment lacks the package of the connector."""
        if not isinstance(spec, PrefillDecode):
            return
        package, (pool, *_) = connector_adapter_of(spec.connector).package, spec.pools.values()
        environment = self.resolver.of(pool.spec).environment
        if package and environment is not None and has_module(environment, package) is False:
            raise EnvironmentMissing(f"{spec.connector} needs the package {package} beside {spec.engine}, and "
                                     f"{environment.origin} does not have the package. Nothing was started. Install it "
                                     f"there: pip install {package}.")

    def _placed(self, spec: Deployment) -> dict[str, tuple[EngineSpec, tuple[int, ...]]]:
        """Name of each server → its spec, which names the GPUs, and its cores.

        Raises:
            SpecError: the machine has fewer GPUs than the servers need.
        """
        kind, cores = spec.kind or self.kind, len(self.cpus) // spec.servers
        cpus = {part: self.cpus[number * cores : (number + 1) * cores] if cores else self.cpus
                for number, part in enumerate(spec.parts)}
        if kind == "cpu":
            return {part: (server, cpus[part]) for part, server in spec.parts.items()}
        words = words_of_gpus(self.gpus(spec), {**os.environ, **dict(spec.env)})
        if len(words) < spec.gpus:
            pools = " and ".join(f"{pool.spec.gpus} for each {f'{name} server' if name else 'replica'}"
                                 for name, pool in spec.pools.items())
            raise SpecError(f"{spec} needs {spec.gpus} GPUs, {pools}, and this machine shows {len(words)}. Nothing was "
                            f"started. Run it on a machine with more GPUs, or emulate it: --emulate {kind}.")
        placed: dict[str, tuple[EngineSpec, tuple[int, ...]]] = {}
        for part, server in spec.parts.items():
            own = dict(server.env)
            own |= showing_only(words[: server.gpus], {**os.environ, **own})
            words = words[server.gpus :]
            placed[part] = replace(server, env=tuple(sorted(own.items()))), cpus[part]
        return placed

    def _words(self, spec: Deployment) -> TextTokenizer | None:
        """What makes text prompts of a stated length; None if the router takes token ids.

        Raises:
            SpecError: the router takes text, and the model has no tokenizer.
        """
        if router_adapter_of(spec.router).takes_token_ids or adapter_of(spec.engine).interface.sends_text:
            return None
        refused = f"{spec}: the router {spec.router.name} takes text and no token ids"
        if flags_of(spec).get(NO_TOKENIZER):
            raise SpecError(f"{refused}, and {NO_TOKENIZER} starts the servers without a tokenizer. Leave the flag "
                            "out, or choose a router that takes token ids: vllm_router() or nginx().")
        try:
            return text_tokenizer(self.resolver.of(next(iter(spec.parts.values()))).model.path_or_hub_id, self.root)
        except SpecError as error:
            raise SpecError(f"{refused}, and the model has no tokenizer here ({str(error).removesuffix('.')}). Choose "
                            "a router that takes token ids: vllm_router() or nginx().") from error

    def _router_environment(self, adapter: RouterAdapter, spec: Deployment) -> Environment:
        return router_environment(adapter, Installations(self.settings.engines, self.root, spec.kind or self.kind))

    def _behind_router(self, spec: Deployment, start_id: int, parts: dict[str, Server]) -> DeploymentServer:
        """Start the router, and wait until a token comes through it.

        Raises:
            EngineError: with the evidence; the router does not run any more.
        """
        adapter = router_adapter_of(spec.router)
        environment = self._router_environment(adapter, spec)
        folder = self.run_dir / "servers" / self.worker / f"{start_id:02d}-{spec.router.name}" / "router"
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            port, metrics_port = reserve_port(self.rng), reserve_port(self.rng)
            undo.callback(port.close)
            undo.callback(metrics_port.close)
            decoders = tuple(part.contact.url for name, part in parts.items() if pool_of(name) == "decode")
            workers = tuple(part.contact.url for name, part in parts.items() if pool_of(name) != "decode")
            placement = RouterPlacement(port.port, metrics_port.port, workers, folder.absolute(), environment.is_python,
                                        decoders)
            for name, text in adapter.files(spec.router, placement).items():
                (folder / name).write_text(text, encoding="utf-8")
            launch = Launch(argv=(*environment.prefix, *adapter.arguments(spec.router, placement)),
                            env=inherited_environment(environment, self.root), cwd=self.root, run_dir=folder,
                            cpus=self.cpus)
            self.progress(Starting(str(spec.router)))
            started_ns = self.clock.now_ns()
            process = Supervised.start(launch, self.clock)
            undo.callback(process.stop, self.settings.stop_grace_s)
            first = next(iter(parts.values()))
            contact = Contact(f"http://127.0.0.1:{port.port}", first.contact.served_name)
            words = self._words(spec)
            interface = first.reader.interface
            unit = DeploymentUnit(spec, process, {name: part.unit for name, part in parts.items()})
            server = DeploymentServer(
                parts, unit, contact, contact.client(self.settings.control_timeout_s), start_id=first.start_id,
                interface=interface if words is None else replace(interface, text=True), tokenizer=words,
                router_version=router_version(adapter, environment),
            )
            server.disturber = ReplicaDisturber(unit, lambda name: self._start_again(unit, name, parts[name]),
                                                self.clock, self.settings.stop_grace_s)
            wait_ready(process, f"The router {spec.router.name}",
                       lambda left_s: generate_one_token(server, max(1.0, left_s)), clock=self.clock,
                       started_ns=started_ns, timeout_s=self.settings.ready_timeout_s,
                       after_attempt=lambda _: server.unit.check_alive())
            undo.pop_all()
        for lease in (port, metrics_port):
            process.on_gone(lease.close)
        launches_ns = [part.unit.launched_ns for part in parts.values() if part.unit.launched_ns is not None]
        server.unit.launched_ns = min(launches_ns)
        of_replicas_s = max(part.unit.starting_s or 0.0 for part in parts.values())
        server.unit.starting_s = of_replicas_s + (self.clock.now_ns() - started_ns) / 1e9
        return server

    def _start_again(self, unit: DeploymentUnit, name: str, part: Server) -> None:
        """Start a replica that has ended again, and wait until it has generated a token.

        Raises:
            EngineError: with the evidence.
        """
        old = part.unit.process
        assert isinstance(old, Supervised), f"replica {name} is not supervised"
        folder = old.launch.run_dir
        started_ns = self.clock.now_ns()
        process = Supervised.start(replace(old.launch, tag="", run_dir=folder.with_name(f"{folder.name}-again")),
                                   self.clock)
        unit.started_again(name, process)
        if unit.stopped:
            process.stop(0)
        self._wait_ready(part, process, started_ns)
