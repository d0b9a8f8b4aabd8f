"""Start a server and prove that it is ours and generates."""

from __future__ import annotations

import os
import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from urllib.parse import urlsplit

from pytest_llmperf.clock import Clock
from pytest_llmperf.config.emulation import Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.adapter import EngineAdapter, Placement
from pytest_llmperf.engines.adapters import adapter_of, reader_of
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.api import MODELS
from pytest_llmperf.engines.control.contact import Contact, channel_of, control_client
from pytest_llmperf.engines.control.identity import check_configuration, check_identity, check_ready, generate_one_token
from pytest_llmperf.engines.deployment.emulated import emulated_pages, emulated_words
from pytest_llmperf.engines.endpoint.credentials import header_values
from pytest_llmperf.engines.endpoint.reader import copy_remedy
from pytest_llmperf.engines.endpoint.replica_pages import ReplicaPages
from pytest_llmperf.engines.lmcache.proof import prove_hits
from pytest_llmperf.engines.lmcache.server import EmulatedLMCache, LMCacheLaunch, LMCacheServer, start_lmcache
from pytest_llmperf.engines.lmcache.settings import is_attached
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.models.text_tokenizer import TextTokenizer, text_tokenizer
from pytest_llmperf.engines.process.environment import Environment, emulator_environment
from pytest_llmperf.engines.process.installed import installed_version
from pytest_llmperf.engines.process.readiness import wait_ready
from pytest_llmperf.engines.process.resolution import Resolver
from pytest_llmperf.engines.process.unit import Unit
from pytest_llmperf.engines.process.variables import (
    child_environment,
    container_variables,
    host_environment,
    inherited_environment,
)
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import secrets_of
from pytest_llmperf.errors import EngineError, ExitedEarly, SpecError
from pytest_llmperf.model.engine import REFERENCE, Endpoint, EngineSpec
from pytest_llmperf.model.status import Note, Notify, Starting, ignore_status
from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.ports import HOST, check_loopback, reserve_port
from pytest_llmperf.process.supervisor import Supervised

PORT_ATTEMPTS = 5
NOTE_EVERY_S = 1.0
ABANDONED_GRACE_S = 5.0  # nobody is left who could wait for longer
PORT_TAKEN = ("address already in use", "errno 98", "eaddrinuse")


#: Sign of an error of TLS → what to do.
TLS_REMEDIES = {
    "CERTIFICATE_VERIFY_FAILED": "Name a file with its certificate, --llmperf-set=tls_ca_file=FILE, or do not "
                                 "check the certificate, --llmperf-set=tls_verify=false.",
    "WRONG_VERSION_NUMBER": "The server does not speak TLS: write http:// instead of https://.",
}


@dataclass(frozen=True)
class Launcher:
    """Where and how servers are started.

    Args:
        settings: timeouts and environments.
        root: project root, for relative places.
        run_dir: folder for logs; each start gets a folder below it.
        kind: hardware kind of this session.
        clock, rng: time and chance.
        progress: called about once a second with the progress of a start.
        cpus: on which servers run; none: on any.
        emulation: the emulator takes the place of every engine; None: the engines themselves.
        worker: of xdist, whose starts have a folder of their own.
        under: words before the command of each server, such as those of a profiler.
        served_name: name under which servers serve; "" gives each start a name of its own.
        shown: the variables by which a server sees its GPUs alone; none for a server on the first GPUs.
        check_others: called while a start is waited for; raises EngineError if a server that starts beside it died.
    """

    settings: Settings
    root: Path
    run_dir: Path
    kind: str
    clock: Clock
    rng: random.Random
    progress: Notify = ignore_status
    emulation: Emulation | None = None
    cpus: tuple[int, ...] = ()
    worker: str = ""
    under: tuple[str, ...] = ()
    served_name: str = ""
    shown: Callable[[EngineSpec], Mapping[str, str]] = lambda _spec: {}
    check_others: Callable[[], None] = lambda: None

    @cached_property
    def resolver(self) -> Resolver:
        """Models and environments that this launcher has looked up."""
        return Resolver(self.settings, self.root, emulated=self.emulation is not None)

    def check(self, spec: EngineSpec) -> None:
        """Look, before anything is started or stopped for it, whether this spec can be started at all.

        Raises:
            SpecError: there is no such model or flag, or the endpoint cannot be measured.
            EnvironmentMissing: its engine is not installed.
        """
        if not isinstance(spec, Endpoint):
            self.resolver.of(spec.on(self.kind))
            return
        if self.emulation is not None:
            raise SpecError(f"{spec} is a server that already runs: nothing can stand in for it. Drop --emulate.")
        _check_url(spec)
        header_values(spec, self.root, os.environ)
        header_values(spec, self.root, os.environ, spec.metrics_headers)
        self._tokenizer(spec)

    def version(self, spec: EngineSpec) -> str | None:
        """The installed version of the engine that would be started; None for a command without metadata."""
        environment = self.resolver.of(spec.on(self.kind)).environment
        return None if environment is None else installed_version(environment, spec.engine)

    def start(
        self, spec: EngineSpec, start_id: int, lmcache: LMCacheServer | None = None,
        replicas: Mapping[str, Server] | None = None,  # noqa: ARG002 - of a deployment
    ) -> Server:
        """A server that has generated one token under our name.

        Args:
            lmcache: an LMCache server that runs already and becomes part of the unit; it ends where the start fails.
            replicas: replicas of a deployment that run already, by name; a failed start ends these replicas.

        Raises:
            EngineError: with the evidence; nothing is left running.
        """
        if isinstance(spec, Endpoint):
            return self._attach(spec, start_id)
        start = Start(self, spec.on(self.kind), start_id, lmcache)
        start.launch()
        return start.ready()

    def start_together(self, specs: Sequence[EngineSpec], first_id: int) -> list[Server]:
        """Servers that run at the same time, in the order of `specs`; start ids count from `first_id`.

        They start at the same time. An engine that derives its memory from what is free at its start (SGLang) starts
        once all servers before it on the same GPUs are ready.

        Raises:
            EngineError: a server did not start. The others are stopped.
        """
        starts: list[Start] = []
        try:
            for number, spec in enumerate(specs):
                if adapter_of(spec.engine).sizes_by_free_memory:
                    for start, other in zip(starts, specs, strict=False):
                        if other.gpu_set == spec.gpu_set:
                            start.ready()
                starts.append(Start(self, spec.on(self.kind), first_id + number))
                starts[-1].launch()
            return [start.ready() for start in starts]
        except BaseException as error:
            for start in starts:
                if start.server is not None:
                    stop_after(error, start.server, self.settings.stop_grace_s)
            raise

    def _attach(self, spec: Endpoint, start_id: int) -> Server:
        if urlsplit(spec.url).hostname == HOST:
            check_loopback()
        contact = Contact(spec.url, spec.model, channel_of(self.settings, spec.url, self.root),
                          header_values(spec, self.root, os.environ))
        server = Server(reader_of(spec), contact, Unit(spec), contact.client(self.settings.control_timeout_s),
                        start_id=start_id, replicas=self._replicas(spec), tokenizer=self._tokenizer(spec))
        try:
            check_identity(server)
            server.counters.check_replicas()
            if spec.metrics is None and (copied := server.counters.copied_name()) is not None:
                self.progress(Note(f"{contact.service.url(server.reader.metrics_route)} {copy_remedy(copied)}"))
        except httpx.HTTPError as error:
            server.stop(0)
            remedy = next((text for sign, text in TLS_REMEDIES.items() if sign in str(error)),
                          f"Start it, or correct the URL; try `curl {contact.service.url(MODELS)}`.")
            raise EngineError(
                f"The endpoint {spec.url} does not answer ({type(error).__name__}: {error}). {remedy}") from error
        except EngineError:
            server.stop(0)
            raise
        return server

    def _replicas(self, spec: Endpoint) -> ReplicaPages | None:
        """Readers of the replicas' pages. A page on the endpoint's own host and port also gets its headers."""
        if spec.metrics is None:
            return None
        headers = header_values(spec, self.root, os.environ, spec.metrics_headers)
        own = header_values(spec, self.root, os.environ)

        def client_of(origin: str) -> httpx.Client:
            same = urlsplit(origin)[:2] == urlsplit(spec.url)[:2]
            return control_client(origin, channel_of(self.settings, origin, self.root), self.settings.control_timeout_s,
                                  headers=tuple({**dict(own if same else ()), **dict(headers)}.items()))

        return ReplicaPages(spec.metrics, client_of, self.clock)

    def _tokenizer(self, spec: Endpoint) -> TextTokenizer | None:
        return text_tokenizer(spec.api.tokenizer, self.root) if spec.api.tokenizer else None

    def launched(self, spec: EngineSpec, start_id: int, *, attempt: int, lmcache: LMCacheServer | None) -> Server:
        """A server whose process runs, and that need not answer yet."""
        adapter = adapter_of(spec.engine)
        resolution = self.resolver.of(spec)
        model, environment = resolution.model, resolution.environment or self.emulator(spec, start_id)
        folder = self.run_dir / "servers" / self.worker / f"{start_id:02d}-{spec.engine}-{attempt}"
        port = reserve_port(self.rng)
        nonce = self.served_name or served_name_of(model, self.rng)
        with ExitStack() as undo:
            undo.callback(port.close)
            lmcache = lmcache or self._lmcache(spec, environment, folder / "lmcache")
            if lmcache is not None:
                undo.callback(lmcache.stop, self.settings.stop_grace_s)
            placement = Placement(spec.kind or self.kind, port.port, nonce, model, environment, lmcache, self.root)
            env = child_environment(spec, adapter, placement) | dict(self.shown(spec))
            process = self._spawn(resolution.spec, adapter, placement, env, folder)
            undo.callback(process.stop, self.settings.stop_grace_s)
            contact = Contact(f"http://127.0.0.1:{port.port}", adapter.served_name(placement))
            client = contact.client(self.settings.control_timeout_s)
            server = Server(
                adapter, contact, Unit(spec, process, lmcache), client, replicas=emulated_pages(spec, client),
                start_id=start_id, model=model,
                host_env=None if self.emulation else host_environment(spec, adapter, placement, env),
            )
            undo.pop_all()
        process.on_gone(port.close)
        process.on_gone(lambda: self._note_unproven(process))
        return server

    def emulator(self, spec: EngineSpec, start_id: int) -> Environment:
        """The emulator as the command of an engine."""
        assert self.emulation is not None, "an engine without emulation has an environment"
        return emulator_environment(self.emulation, spec.engine, start_id, faults=spec.installation != REFERENCE,
                                    words=emulated_words(spec), gpu_set=spec.gpu_set)

    def make_ready(self, server: Server, process: Supervised, started_ns: int) -> None:
        """Wait until a launched server has generated one token under our name, and prove what it is.

        Raises:
            EngineError: with the evidence; nothing is left running.
        """
        try:
            if self.emulation is not None and server.spec.lmcache is not None:
                server.unit.lmcache = EmulatedLMCache(server.control.client)
            self._wait_ready(server, process, started_ns)
            check_configuration(server)
            server.unit.launched_ns = started_ns
            server.unit.starting_s = (self.clock.now_ns() - started_ns) / 1e9
            if self.emulation is None and is_attached(server.spec):
                prove_hits(server, self.rng, self.settings.ready_timeout_s - server.unit.starting_s)
        except BaseException as error:  # also KeyboardInterrupt: whatever happens, nothing stays behind
            if isinstance(error, EngineError):
                error.evidence = error.evidence or process.evidence()
            stop_after(error, server, self.settings.stop_grace_s)
            raise

    def _lmcache(self, spec: EngineSpec, environment: Environment, folder: Path) -> LMCacheServer | None:
        """The started LMCache server of this spec; None without LMCache, in process, or emulated with its engine."""
        wanted = spec.lmcache
        if wanted is None or wanted.in_process or self.emulation is not None:
            return None
        ports = (reserve_port(self.rng), reserve_port(self.rng))
        ours = {"PYTHONHASHSEED": "0", "LMCACHE_DISABLE_BANNER": "1"}
        env = inherited_environment(environment, self.root) | ours | dict(spec.env)
        launch = LMCacheLaunch(wanted, spec.kind or self.kind, environment, env, self.root, folder, ports, self.cpus,
                               self.settings.control_timeout_s)
        self.progress(Starting(f"LMCache for {spec}"))
        try:
            lmcache = start_lmcache(launch, self.clock, self.settings.ready_timeout_s)
        except BaseException:
            for port in ports:
                port.close()
            raise
        lmcache.process.on_gone(lambda: self._note_unproven(lmcache.process))
        return lmcache

    def _note_unproven(self, process: Supervised) -> None:
        """Name shared memory that appeared while the server ran and that cannot be removed safely."""
        if process.report is not None and (note := process.report.shm_note) is not None:
            self.progress(Note(note))

    def _spawn(
        self, spec: EngineSpec, adapter: EngineAdapter, placement: Placement, env: Mapping[str, str], folder: Path
    ) -> Supervised:
        container = f"llmperf-{os.urandom(6).hex()}"
        listing, stop = (
            tuple(shlex.split(template.replace("{name}", container))) if placement.environment.is_container else ()
            for template in (self.settings.engine_processes_command, self.settings.engine_stop_command)
        )
        launch = Launch(
            argv=(*self.under,
                  *placement.environment.command(container, container_variables(spec, adapter, placement, env)),
                  *adapter.arguments(spec, placement)),
            env=env,
            pids_argv=listing,
            stop_argv=stop,
            cwd=self.root,
            run_dir=folder,
            abandoned_grace_s=min(ABANDONED_GRACE_S, self.settings.stop_grace_s),
            leader_first=placement.lmcache is not None and adapter.tells_lmcache,
            cpus=self.cpus,
            hidden=(*secrets_of(spec), *placement.environment.secrets()),
        )
        self.progress(Starting(str(spec)))
        return Supervised.start(launch, self.clock)

    def _wait_ready(self, server: Server, process: Supervised, started_ns: int) -> None:
        """Wait until the server lists our model and has generated a token."""
        noted_s = 0.0

        def attempt(left_s: float) -> None:
            with server.control.answers_within(max(1.0, left_s)):
                check_identity(server)
                check_ready(server)
            generate_one_token(server, max(1.0, left_s))

        def after_attempt(waited_s: float) -> None:
            nonlocal noted_s
            if waited_s - noted_s >= NOTE_EVERY_S:
                noted_s = waited_s
                log_tail = process.evidence(1).log_tail
                self.progress(Starting(str(server.spec), log_tail[-1] if log_tail else "(no output yet)"))
            self.check_others()
            if server.unit.lmcache is not None:
                server.unit.lmcache.check_alive()

        wait_ready(process, f"The {server.spec.engine} server", attempt, clock=self.clock, started_ns=started_ns,
                   timeout_s=self.settings.ready_timeout_s, after_attempt=after_attempt, ended=ExitedEarly)


class Start:
    """The start of one server. Where another program took the server's port, the server is launched again.

    Args:
        launcher: what launches it.
        spec, start_id, lmcache: as of `Launcher.start`.
    """

    def __init__(
        self, launcher: Launcher, spec: EngineSpec, start_id: int, lmcache: LMCacheServer | None = None
    ) -> None:
        self.server: Server | None = None
        self._launcher = launcher
        self._launch = partial(launcher.launched, spec, start_id, lmcache=lmcache)
        self._lmcache = lmcache
        self._attempt = 0
        self._launched_ns = 0
        self._is_ready = False

    def launch(self) -> None:
        """Start the process."""
        self._attempt += 1
        self._launched_ns = self._launcher.clock.now_ns()
        self.server = self._launch(attempt=self._attempt)

    def ready(self) -> Server:
        """Wait until the server has generated one token.

        Raises:
            EngineError: with the evidence; nothing is left running.
        """
        while not self._is_ready:
            server = self.server
            assert server is not None, "launch() comes first"
            process = server.unit.process
            assert isinstance(process, Supervised), f"{server} is not supervised"
            try:
                self._launcher.make_ready(server, process, self._launched_ns)
                self._is_ready = True
            except ExitedEarly as error:
                # An LMCache server that was handed in ended with the failed start, and what it held with it.
                if self._attempt == PORT_ATTEMPTS or self._lmcache is not None or not _is_port_conflict(error):
                    raise
                self.launch()
        assert self.server is not None
        return self.server


def served_name_of(model: ResolvedModel, rng: random.Random) -> str:
    """The model's name with a random suffix. An answer under another name comes from a foreign server."""
    return f"{model.name.rsplit('/', 1)[-1]}-{rng.getrandbits(32):08x}"


def _check_url(spec: Endpoint) -> None:
    try:
        httpx.URL(spec.url)
    except httpx.InvalidURL as error:
        raise SpecError(f'{spec}: {error}. Write it as endpoint("http://HOST:PORT", model="ID").') from error


def stop_after(error: BaseException, server: Server, grace_s: float) -> None:
    """Stop a server after an error. If the stop fails, its message becomes a note on the first error."""
    try:
        server.stop(grace_s)
    except EngineError as also:
        error.add_note(str(also))


def _is_port_conflict(error: ExitedEarly) -> bool:
    tail = "\n".join(error.evidence.log_tail if error.evidence else ()).lower()
    return any(mark in tail for mark in PORT_TAKEN)

