"""An LMCache server of an engine, and LMCache within an emulated engine.

The server starts before the engine and stops after the engine; one watchdog watches both.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.clock import Clock, attempts
from pytest_llmperf.config.settings import expanded
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.contact import CONTROL_TIMEOUT_S, control_client
from pytest_llmperf.engines.control.json_answers import json_object, section
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.process.readiness import POLL_S, wait_ready
from pytest_llmperf.errors import EngineError, EnvironmentMissing, ServerDied, WrongServer
from pytest_llmperf.model.lmcache import LMCache
from pytest_llmperf.model.plan import Channel
from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.ports import PortLease
from pytest_llmperf.process.supervisor import Supervised
from pytest_llmperf.telemetry.prometheus import parse

COUNTERS = {
    "lmcache_lookup_tokens": "lmcache_mp_lookup_requested_tokens_total",
    "lmcache_hit_tokens": "lmcache_mp_lookup_hit_tokens_total",
    "lmcache_l1_hit_tokens": "lmcache_mp_lookup_hit_l1_tokens_total",
    "lmcache_l2_hit_tokens": "lmcache_mp_lookup_hit_l2_tokens_total",
    "lmcache_l2_chunks": "lmcache_mp_l2_prefetch_load_completed_chunks_total",
    "lmcache_evictions": "lmcache_mp_l1_eviction_loop_triggered_total",
}
# LMCache 0.5.6 counts these with every lookup, 0.5.4 and older ones do not.
BY_TIER = ("lmcache_l1_hit_tokens", "lmcache_l2_hit_tokens")
# Counted every second, whether or not room was made: without it nobody says whether it was.
WATCHED = "lmcache_mp_l1_eviction_loop_ticks_total"
HELD_BYTES = "lmcache_mp_l1_memory_usage_bytes"
DISK_FILES = "*@*.data"  # what its file adapter writes, and nothing else
# Until it lets go of a dead engine's KV cache on the GPU, which SGLang never tells it to: the least that it allows, a
# quarter of it more at most, and so less than the next engine waits for its GPU.
SILENCE_S = 30
CLEAR_TIMEOUT_S = 10.0  # chunks that are being stored are not cleared before that is done


@dataclass(frozen=True, slots=True)
class LMCacheLaunch:
    """The launch of an LMCache server.

    Args:
        wanted: chunk size, tiers, policy.
        kind: hardware kind.
        environment: environment of the engine, which also contains LMCache.
        env: environment variables.
        root: project root, for relative paths.
        run_dir: folder for the log, and for the file with the server's address for SGLang.
        ports: ports of the message queue and of HTTP.
        cpus: CPUs on which the server may run; empty for all CPUs.
        control_timeout_s: longest time to the last byte of an answer to a control request.
    """

    wanted: LMCache
    kind: str
    environment: Environment
    env: Mapping[str, str]
    root: Path
    run_dir: Path
    ports: tuple[PortLease, PortLease]
    cpus: tuple[int, ...] = ()
    control_timeout_s: float = CONTROL_TIMEOUT_S

    @property
    def disk(self) -> Path | None:
        """The folder of the disk tier."""
        return None if self.wanted.l2_path is None else self.root / expanded(self.wanted.l2_path)

    @property
    def config_file(self) -> Path:
        """The file with the server's address for SGLang."""
        return self.run_dir / "lmcache.yaml"

    def prepare(self) -> None:
        """Make its folders, and the file for SGLang.

        Raises:
            EngineError: a folder or the file cannot be written.
        """
        try:
            for folder in filter(None, (self.run_dir, self.disk)):
                folder.mkdir(parents=True, exist_ok=True)
            self.config_file.write_text(f"mp_host: 127.0.0.1\nmp_port: {self.ports[0].port}\n", encoding="utf-8")
        except OSError as error:
            places = " and ".join(str(place) for place in (self.config_file, self.disk) if place is not None)
            raise EngineError(
                f"LMCache was not started: {places} cannot be written ({error}). Make room there (df -h), or name "
                "other folders with --llmperf-runs and l2_path."
            ) from error

    def argv(self) -> tuple[str, ...]:
        """The server's command line."""
        messages, http = (str(lease.port) for lease in self.ports)
        options = {
            "host": "127.0.0.1", "port": messages, "http-host": "127.0.0.1", "http-port": http,
            "chunk-size": str(self.wanted.chunk_size), "l1-size-gb": f"{self.wanted.l1_size_gb:g}",
            "eviction-policy": self.wanted.eviction_policy,
        }  # fmt: skip
        if self.kind == "cpu":
            options["supported-transfer-mode"] = "engine_driven"  # the other one needs device memory to map
        else:
            options["worker-reap-timeout-seconds"] = str(SILENCE_S)
        if self.disk is not None:
            options["l2-adapter"] = json.dumps({"type": "fs", "base_path": str(self.disk)})
        return (*_command(self.environment), "server", *(word for k, v in options.items() for word in (f"--{k}", v)))


def counters_of(page: str) -> dict[str, float]:
    """The counters of LMCache's metrics page, under canonical names.

    LMCache shows a counter only after its first count, so a missing counter is 0. A counter that this LMCache version
    lacks is left out. Two signs show this: the page counts lookups without hits by tier, or it has no eviction loop.
    """
    shown = parse(page)
    counters = {name: shown.counter(sample) for name, sample in COUNTERS.items()}
    unknown = [*(BY_TIER if counters["lmcache_lookup_tokens"] is not None else ()),
               *(() if shown.total(WATCHED) else ("lmcache_evictions",))]
    return {name: value or 0.0 for name, value in counters.items() if value is not None or name not in unknown}


class LMCacheServer:
    """A running LMCache server; made by `start_lmcache`.

    Attributes:
        hangs: whether it was found to run without answering.
    """

    hangs = False

    def __init__(self, launch: LMCacheLaunch, process: Supervised) -> None:
        self.launch = launch
        self.process = process
        self.port = launch.ports[0].port  # of its message queue
        self.client: httpx.Client = control_client(
            f"http://127.0.0.1:{launch.ports[1].port}", Channel(), launch.control_timeout_s
        )

    def __repr__(self) -> str:
        return f"<LMCacheServer {self.launch.wanted}, {self.process!r}>"

    def check_alive(self) -> None:
        """Raise ServerDied if it has ended."""
        if (ending := self.process.ending()) is not None:
            raise ServerDied(f"The LMCache server died: {ending}. Read the end of its log.", self.process.evidence())

    def counters(self) -> dict[str, float]:
        """Counters now, under canonical names; see `counters_of`."""
        return counters_of(self._get("/metrics").text)

    def facts(self) -> dict[str, str]:
        """The conditions of the LMCache server, as the server resolved them.

        Raises:
            WrongServer: the server uses a chunk size that differs from the requested size.
        """
        resolved = section(json_object(self._get("/config")), "mp").get("chunk_size")
        wanted = self.launch.wanted
        if resolved is not None and resolved != wanted.chunk_size:
            raise WrongServer(f"LMCache was asked for chunks of {wanted.chunk_size} tokens and uses {resolved}. "
                              f"Write chunk_size={resolved} in with_lmcache().")
        return {
            "lmcache.version": self._get("/version").text.strip('"\n '),
            "lmcache.chunk_size": str(wanted.chunk_size),
            "lmcache.l1_size_gb": f"{wanted.l1_size_gb:g}",
            "lmcache.eviction_policy": wanted.eviction_policy,
            "lmcache.l2": "none" if wanted.l2_path is None else "fs",
        }

    def clear(self, tiers: Collection[str], clock: Clock) -> None:
        """Empty tiers "l1" (host memory) and "l2" (disk).

        Raises:
            EngineError: chunks stayed in L1.
        """
        if "l1" in tiers:
            self._clear_memory(clock)
        if "l2" in tiers and self.launch.disk is not None:
            for file in self.launch.disk.glob(DISK_FILES):
                file.unlink(missing_ok=True)

    def stop(self, grace_s: float) -> None:
        """End it and wait until every descendant is gone."""
        self.client.close()
        self.process.stop(grace_s)

    def _clear_memory(self, clock: Clock) -> None:
        for _ in attempts(clock, CLEAR_TIMEOUT_S, POLL_S):
            self._answer("POST", "/cache/clear", json={"tier": "l1", "force": False})
            held_bytes = parse(self._get("/metrics").text).total(HELD_BYTES)
            if held_bytes == 0:
                return
        held = "does not say what it holds" if held_bytes is None else f"still holds {held_bytes:g} bytes"
        raise EngineError(f"LMCache's L1 {held} after it was cleared. Measure with fresh=True, or with keep=[\"l1\"].",
                          self.process.evidence())

    def _get(self, path: str) -> httpx.Response:
        return self._answer("GET", path)

    def _answer(self, method: str, path: str, **body: object) -> httpx.Response:
        """An answer of status 200; anything else is an EngineError with the evidence."""
        try:
            response = self.client.request(method, path, **body)  # type: ignore[arg-type]
        except httpx.HTTPError as error:
            self.process.wait_exit(0.5)  # a dying server's sockets close before its end is known
            self.check_alive()
            self.hangs = True
            evidence = self.process.evidence()
            raise EngineError(f"The LMCache server hangs: {method} {path}: {error}. Read the end of its log.",
                              evidence) from error
        if response.status_code != 200:
            raise EngineError(f"LMCache answered {method} {path} with {response.status_code}: {response.text[:200]!r}. "
                              "Read the end of its log.", self.process.evidence())
        return response


class EmulatedLMCache:
    """Replaces the `LMCacheServer` of a real unit. The emulated engine starts and ends this LMCache.

    Args:
        client: client of the emulated engine, which serves LMCache's routes below /lmcache.
    """

    process = None
    hangs = False

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def check_alive(self) -> None:
        """Does nothing, because the emulated LMCache lives as long as its engine."""

    def counters(self) -> dict[str, float]:
        """Counters now, under canonical names."""
        return counters_of(self._answer("GET", "/metrics").text)

    def facts(self) -> dict[str, str]:
        """Empty: the emulated LMCache resolves no setting, so the engine's flags contain all conditions."""
        return {}

    def clear(self, tiers: Collection[str], clock: Clock) -> None:  # noqa: ARG002 - nothing has to be waited for
        """Empty tiers "l1" (host memory) and "l2" (disk)."""
        for tier in sorted(tiers):
            self._answer("POST", f"/cache/clear?tier={tier}")

    def stop(self, grace_s: float) -> None:
        """Nothing to do: the emulated LMCache ends with its engine."""

    def _answer(self, method: str, path: str) -> httpx.Response:
        response = self.client.request(method, f"/lmcache{path}")
        if response.status_code != 200:
            raise EngineError(f"The emulated LMCache answered {method} {path} with {response.status_code}. Read "
                              "the end of its log.")
        return response


def start_lmcache(launch: LMCacheLaunch, clock: Clock, timeout_s: float) -> LMCacheServer:
    """A server that answers.

    Raises:
        EngineError: with the evidence; nothing is left running.
    """
    launch.prepare()
    argv, folder = launch.argv(), launch.run_dir
    lmcache_launch = Launch(argv, launch.env, launch.root, folder, log_name="lmcache.log", cpus=launch.cpus)
    process = Supervised.start(lmcache_launch, clock)
    with ExitStack() as undo:
        undo.callback(process.stop, 0)
        for lease in launch.ports:
            process.on_gone(lease.close)
        server = LMCacheServer(launch, process)
        undo.callback(server.client.close)
        wait_ready(process, "The LMCache server", lambda left_s: server.client.get(
            "/healthcheck", timeout=min(launch.control_timeout_s, max(POLL_S, left_s))).raise_for_status(),
            clock=clock, started_ns=clock.now_ns(), timeout_s=timeout_s)
        undo.pop_all()
    return server


def _command(environment: Environment) -> tuple[str, ...]:
    """LMCache's command in the engine's environment."""
    if environment.is_python:
        return (*environment.prefix, "-m", "lmcache.cli.main")
    beside = Path(environment.prefix[0]).with_name("lmcache")
    if not beside.exists():
        raise EnvironmentMissing(
            f"with_lmcache(…) needs LMCache in the engine's environment, but {beside} does not exist. Install LMCache "
            "in that environment, or replace the command by an environment or interpreter with engine and LMCache."
        )
    return (str(beside),)
