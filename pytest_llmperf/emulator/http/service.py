"""Everything of a server but its clock and its sockets: the same object serves real time and virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from urllib.parse import urlsplit

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.core.counters import Counters, Gauges
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.faults import Faults, HttpFault
from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.http import pages
from pytest_llmperf.emulator.http.generation_request import KINDS, GenerationRequest, read_generation_request
from pytest_llmperf.emulator.http.metrics_page import CONTENT_TYPE, Latencies, metrics_page
from pytest_llmperf.emulator.http.replies import TEXT, Refusal, Reply, json_reply

_COMMON = {"/health", "/ping", "/v1/models", "/version", "/metrics"}
_OF_VLLM = {"/reset_prefix_cache", "/server_info", "/load", "/sleep", "/wake_up", "/is_sleeping"}
_OF_SGLANG = {
    "/health_generate", "/get_server_info", "/server_info", "/model_info", "/get_model_info", "/flush_cache",
    "/release_memory_occupation", "/resume_memory_occupation",
}  # fmt: skip
_POSTED = {"/reset_prefix_cache", "/lmcache/cache/clear", "/sleep", "/wake_up"}


class Service:
    """A server's routes.

    Args:
        launch: what the server says of itself.
        deployment: what runs behind it; its faults need not show in `launch`.
        faults, seed: which requests end badly.
        epoch_ns: what the deployment's clock reads 0 at, nanoseconds since 1970.
    """

    def __init__(self, launch: Launch, deployment: Deployment, faults: Faults, seed: int, epoch_ns: int) -> None:
        self.launch = launch
        self.deployment = deployment
        self._sglang = launch.config.engine == "sglang"
        self.latencies = Latencies(launch.config.max_model_len, per_token=self._sglang)
        #: Latencies by replica; empty for one server.
        self.replicas = [Latencies(launch.config.max_model_len, per_token=self._sglang)
                         for _ in deployment.engines] if deployment.routing is not None else []
        self._faults = faults
        self._seed = seed
        self._epoch_ns = epoch_ns
        self._started_ns = deployment.now_ns
        self._numbers = 0
        self._ids = 0
        self._served = 0
        self.asleep = False  # vLLM keeps new requests until it is awake; SGLang must not get any

    def unix_s(self, now_ns: int) -> float:
        """Seconds since 1970."""
        return (self._epoch_ns + now_ns) / 1e9

    @property
    def ignores_disconnects(self) -> bool:
        """Whether requests of clients that have gone run to their end (a planted fault)."""
        return self._faults.disconnects_ignored

    def generates(self, method: str, path: str) -> bool:
        """Whether this is a request for tokens."""
        return method == "POST" and path in KINDS and (path != "/generate" or self._sglang)

    def ask(self, path: str, body: bytes) -> GenerationRequest:
        """Read a request for tokens.

        Raises:
            Refusal: the request cannot be served.
        """
        if self.asleep and self._sglang:
            raise Refusal(500, "The memory of weights and KV cache is released.", "InternalServerError")
        return read_generation_request(path, body, self.launch)

    def number(self) -> int:
        """Numbers requests in the order in which they come."""
        self._numbers += 1
        return self._numbers - 1

    def fault_of(self, number: int, max_tokens: int) -> HttpFault | None:
        """The planted fault of request `number`; None if the request is served."""
        return self._faults.of_request(self._seed, number, max_tokens)

    def sequences(self, ask: GenerationRequest, arrived_ns: int) -> list[Sequence]:
        """The sequences of a request for the engine, one per prompt."""
        made = [
            Sequence(self._ids + index, prompt, ask.max_tokens, arrived_ns, ask.salt, ask.session)
            for index, prompt in enumerate(ask.prompts)
        ]
        self._ids += len(made)
        return made

    def submit(self, sequences: Iterable[Sequence], now_ns: int) -> Refusal | None:
        """Queue the sequences of a request. Returns the refusal of a request that the engine can never finish. A server
        with leaked blocks does not know its real capacity: there such a request waits for ever."""
        for sequence in sequences:
            try:
                self.deployment.submit(sequence, now_ns)
            except ValueError as reason:
                if not self._faults.leaked_blocks:
                    return Refusal(400, str(reason))
        return None

    def drop(self, sequences: Iterable[Sequence]) -> None:
        """The client of these sequences has gone."""
        if not self.ignores_disconnects:
            for sequence in sequences:
                self.deployment.abort(sequence)

    def finished(self, sequence: Sequence, first_ns: int, last_ns: int) -> None:
        """Count a sequence that generated all of its requested tokens. Some faults make its answer wrong."""
        if self.deployment.routing is not None and self._faults.corrupts(self._seed, sequence):
            sequence.corrupt()
        self._served += 1
        self.latencies.finished(sequence, first_ns, last_ns)
        if self.replicas:
            self.replicas[sequence.engine].finished(sequence, first_ns, last_ns)

    def reply(self, method: str, target: str) -> Reply:
        """Answer any other request."""
        _, _, path, query, _ = urlsplit(target)
        paths = _COMMON | (_OF_SGLANG if self._sglang else _OF_VLLM)
        if self.launch.config.tiers:
            paths |= pages.LMCACHE_ROUTES
        paths |= {f"/replicas/{number}/metrics" for number in self._numbers_of_replicas}
        if path in KINDS or path in paths:
            posted = path in KINDS or path in _POSTED
            if method not in (("POST",) if posted else ("GET", "HEAD", "POST")):
                return Refusal(405, "Method Not Allowed", "Method Not Allowed").reply()
        if path not in paths or (path == "/metrics" and not self.launch.metrics):
            return Refusal(404, f"Not Found: {path}", "Not Found").reply()
        return self._page(path, query)

    def _page(self, path: str, query: str) -> Reply:
        made: dict[str, Callable[[], Reply]] = {
            "/v1/models": lambda: pages.models(self.launch, int(self._started_s)),
            "/version": lambda: pages.version(self.launch),
            "/metrics": self._metrics,
            **{f"/replicas/{number}/metrics": partial(self._metrics, number) for number in self._numbers_of_replicas},
            "/server_info": lambda: pages.server_info(self.launch),
            "/get_server_info": lambda: pages.server_info(self.launch),
            "/model_info": lambda: pages.sglang_model_info(self.launch),
            "/get_model_info": lambda: pages.sglang_model_info(self.launch),
            "/reset_prefix_cache": lambda: self._reset(external="reset_external=true" in query.lower().split("&")),
            "/flush_cache": lambda: self._reset(external=True),
            "/load": self._load,
            "/sleep": self._sleep,
            "/wake_up": self._wake,
            "/is_sleeping": lambda: json_reply({"is_sleeping": self.asleep}),
            "/release_memory_occupation": self._sleep,
            "/resume_memory_occupation": self._wake,
            "/lmcache/metrics": lambda: pages.lmcache_page(self.deployment),
            "/lmcache/cache/clear": lambda: pages.clear_tier(self.deployment, query),
        }
        return made[path]() if path in made else Reply(200, b"", TEXT)

    @property
    def _started_s(self) -> float:
        return self.unix_s(self._started_ns)

    @property
    def _numbers_of_replicas(self) -> range:
        return range(1, len(self.replicas) + 1)

    def _metrics(self, replica: int | None = None) -> Reply:
        """The page of all engines, or of the replica with this number."""
        engines = self._engines()
        if replica is not None:
            engine = self.deployment.engines[replica - 1]
            engines = [(engine.counters, engine.gauges, self.replicas[replica - 1])]
        body = metrics_page(self.launch, engines, started_s=self._started_s, served=self._served)
        return Reply(200, body, CONTENT_TYPE)

    def _load(self) -> Reply:
        return json_reply({"server_load": sum(engine.gauges.running for engine in self.deployment.engines)})

    def _reset(self, *, external: bool) -> Reply:
        done = self.deployment.reset_prefix_cache()
        if done and external:
            self.deployment.clear_own_tiers()
        if done:
            self.deployment.begin_run()
        if self._sglang:
            text = "Cache flushed.\n" if done else "Flush cache failed: requests run or wait.\n"
            return Reply(200 if done else 400, text.encode(), TEXT)
        return json_reply({"success": done})

    def _sleep(self) -> Reply:
        """The weights go to host memory and the KV cache is discarded. A busy SGLang refuses; a real one dies."""
        if not self.deployment.reset_prefix_cache() and self._sglang:
            return Refusal(500, "Memory is released only while no request runs.", "InternalServerError").reply()
        self.asleep = True
        return json_reply({"status": "sleeping", "level": 1}) if not self._sglang else Reply(200, b"", TEXT)

    def _wake(self) -> Reply:
        self.asleep = False
        return json_reply({"status": "awake", "tags": None}) if not self._sglang else Reply(200, b"", TEXT)

    def _engines(self) -> list[tuple[Counters, Gauges, Latencies]]:
        """One row per data-parallel engine; latencies are kept for all together, under the first."""
        engines = self.deployment.engines
        if self.launch.config.transfer is not None:
            gauges = [engine.gauges for engine in engines]
            usage = max(gauge.kv_usage for gauge in gauges)
            whole = Gauges(sum(g.running for g in gauges), sum(g.waiting for g in gauges), usage)
            return [(self.deployment.counters, whole, self.latencies)]
        others = Latencies(self.launch.config.max_model_len)
        return [
            (engine.counters, engine.gauges, self.latencies if index == 0 else others)
            for index, engine in enumerate(engines)
        ]
