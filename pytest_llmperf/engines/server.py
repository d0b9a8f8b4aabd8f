"""A running server or endpoint, as measurements use it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.clock import Clock, SystemClock, seconds
from pytest_llmperf.engines.adapter import EngineAdapter
from pytest_llmperf.engines.control.channel import control_client
from pytest_llmperf.engines.control.json_answers import json_list, json_object, section, whole_number
from pytest_llmperf.engines.control.service_url import service_url
from pytest_llmperf.engines.endpoint.credentials import sent_secrets
from pytest_llmperf.engines.endpoint.metric_families import copied_name
from pytest_llmperf.engines.lmcache.settings import is_attached
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.models.text_tokenizer import TextTokenizer
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import EngineError, MetricUnavailable, ServerDied, SpecError, WrongServer
from pytest_llmperf.masking import mask
from pytest_llmperf.model.api import Api
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.plan import Channel
from pytest_llmperf.model.request import Request
from pytest_llmperf.process.ports import who_listens
from pytest_llmperf.telemetry.prometheus import ACCEPT, DERIVED, LARGEST_COUNT, Scrape, parse
from pytest_llmperf.telemetry.replicas import ALONE, Counters, PagesReading, ReplicaLog
from pytest_llmperf.wire.answer_ids import AnswerIds
from pytest_llmperf.wire.chunks import unsuccessful
from pytest_llmperf.wire.stream import SHOWN_BYTES, Stream, read_whole
from pytest_llmperf.workload.prompts import in_words
from pytest_llmperf.workload.words import COMMON_WORDS

if TYPE_CHECKING:
    import httpx

    from pytest_llmperf.engines.control.transports import ControlLimits
    from pytest_llmperf.engines.endpoint.replica_pages import ReplicaPages
    from pytest_llmperf.engines.lmcache.emulated import EmulatedLMCache
    from pytest_llmperf.engines.lmcache.server import LMCacheServer
    from pytest_llmperf.process.piped import PipedProcess
    from pytest_llmperf.process.supervisor import Supervised

IDLE_POLL_NS = 50_000_000
DEATH_TELLS_S = 0.5  # a dying server's sockets close before its end is known
UNAUTHORIZED = (401, 403)
SHARES = ("kv_usage",)  # gauges that have no sum over replicas
ONE_PAGE_READINGS = 4
NO_ROUTE = (404, 405)
GENERATED = "generation_tokens"
MODELS = "/v1/models"
#: Token ids of every vocabulary, the smallest included.
SMALL_PROMPT = (10, 11, 12)
PROFILER_TIMEOUT_S = 120.0  # the server writes the trace before its answer


class Server:
    """One running server.

    Args:
        spec: what was asked for.
        adapter: how to talk to it.
        url: where it answers.
        served_name: the model id to send.
        model: what it loaded; None for an endpoint.
        process: the supervised process; None for an endpoint.
        start_id: counts the starts of a session; runs on one start share it.
        starting_s: seconds from launch to the first generated token.
        transport: of the control requests; None: a socket.
        channel: TLS and proxy, as far as they are needed to reach it.
        clock: what waiting is measured by.
        lmcache: the LMCache server of this unit, which ends with it; None: there is none.
        limits: of answers to control requests; None: the default ones.
        headers: further headers of every request, such as an API key.
        replicas: metrics pages of the replicas of a service; None: the server has a page of its own.
        tokenizer: counts texts and makes text prompts; None if the endpoint names none.
        host_env: variables by which this machine changes performance, see `EngineAdapter.host_variables`.
    """

    def __init__(
        self,
        spec: EngineSpec,
        adapter: EngineAdapter,
        url: str,
        served_name: str,
        *,
        start_id: int,
        model: ResolvedModel | None = None,
        process: Supervised | PipedProcess | None = None,
        starting_s: float | None = None,
        transport: httpx.BaseTransport | None = None,
        channel: Channel | None = None,
        clock: Clock | None = None,
        lmcache: LMCacheServer | EmulatedLMCache | None = None,
        host_env: Mapping[str, str] | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        limits: ControlLimits | None = None,
        replicas: ReplicaPages | None = None,
        tokenizer: TextTokenizer | None = None,
    ) -> None:
        self.spec = spec
        self.adapter = adapter
        self.url = url
        self.service = service_url(url)
        self.served_name = served_name
        self.start_id = start_id
        self._hangs = False
        self.model = model
        self.process = process
        self.starting_s = starting_s
        self.clock = clock or SystemClock()
        self.lmcache = lmcache
        self.host_env = dict(host_env or {})
        self.channel = channel or Channel()
        self.headers = headers
        self.tokenizer = tokenizer
        self.warmed_for: set[str] = set()
        self.answer_ids = AnswerIds()
        self.labels: dict[tuple[str, int], int] = {}  # of an endpoint: how each workload's seed was last relabelled
        self.replicas = replicas
        self._began: dict[str, float] = {}
        self._log = ReplicaLog()
        self.fresh = False  # whether whoever asked for it last had it started anew
        self.requested_spec = spec  # before flags were planted and memory was shared out
        self.siblings = 0  # servers that run beside it, idle while it is measured
        self.takes_turns = False  # its siblings sleep while it is measured
        self.launched_ns: int | None = None  # when its process was started; None: somebody else started it
        self.asleep = False  # its GPU memory is released, and it must not get requests
        self.client: httpx.Client = control_client(self.service.url(), self.channel, limits, transport, headers)

    def __repr__(self) -> str:
        state = "not ours" if self.process is None else repr(self.process)
        return f"<Server {self.spec} at {self.url}, {state}>"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What the server was sent and must not be written down, even where the server repeats it."""
        return sent_secrets(self.headers)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the timed path."""
        url = self.client.base_url
        return url.host, url.port or (443 if self.channel.tls else 80)

    @property
    def api(self) -> Api:
        """How requests are written and answers are read: as the adapter says, or as the test describes an endpoint."""
        return self.adapter.interface if self.spec.url is None else self.spec.api

    @property
    def model_names(self) -> tuple[str, ...]:
        """How the chunks of an answer may call the model: as it was asked for, first, or by a declared alias."""
        return (self.served_name, *self.spec.model_aliases)

    @property
    def hangs(self) -> bool:
        """Whether a part of it was found to run without answering: nobody should measure on it any more."""
        return self._hangs or (self.lmcache is not None and self.lmcache.hangs)

    def post(self, request: Request) -> tuple[str, bytes]:
        """HTTP path and body for one request of a workload."""
        path, body = self.adapter.post(self.spec, request, request.model or self.served_name)
        return self.service.path(path), body

    def as_sent(self, requests: Iterable[Request]) -> tuple[Request, ...]:
        """The requests with text prompts if this server takes text only, or if the test asks for text.

        Raises:
            SpecError: the named tokenizer has too few words of one token.
        """
        if not self.api.sends_text:
            return tuple(requests)
        return in_words(requests, COMMON_WORDS if self.tokenizer is None else self.tokenizer.words)

    @cached_property
    def text_counter(self) -> TextTokenizer | None:
        """The named tokenizer of a server without a counter of generated tokens; None for any other server."""
        return None if self.tokenizer is None or GENERATED in self.counters() else self.tokenizer

    def check_alive(self) -> None:
        """Raise ServerDied if the process has ended by itself, SpecError if it was stopped to make room for another."""
        if self.client.is_closed:
            raise SpecError(
                f"{self.spec} was stopped when this test started another engine: one runs at a time. "
                "Measure it before, or hand the spec itself to perf.measure, which starts it again."
            )
        if self.process is not None and (ending := self.process.ending()) is not None:
            raise ServerDied(f"The {self.spec.engine} server died: {ending}.", self.process.evidence())
        if self.lmcache is not None:
            self.lmcache.check_alive()

    def pids(self) -> tuple[int, ...]:
        """The living processes of this unit; none of an endpoint, or in virtual time."""
        units = [self.process, None if self.lmcache is None else self.lmcache.process]
        return tuple(pid for unit in units if unit is not None for pid in unit.pids())

    def wait_death(self, timeout_s: float) -> bool:
        """Wait until a process of this unit has ended, or for `timeout_s`; whether one has."""
        if self.process is not None and self.process.wait_exit(timeout_s) is not None:
            return True
        beside = None if self.lmcache is None else self.lmcache.process
        return beside is not None and beside.ending() is not None

    def pages(self, *, fresh: bool = True) -> Mapping[str, Scrape]:
        """One reading of each Prometheus page by replica; empty if the server shows no page.

        Args:
            fresh: whether a Prometheus server must have scraped the replicas after this call.

        Raises:
            EngineError: a page is too large or arrives too slowly, or a Prometheus server does not answer.
        """
        reading = self._own_page() if self.replicas is None else self.replicas.read(fresh=fresh)
        self._log.take({name: self.adapter.counters(page) for name, page in reading.pages.items()}, reading.silent)
        return reading.pages

    def _own_page(self) -> PagesReading:
        import httpx

        from pytest_llmperf.engines.control.transports import AnswerTooLarge

        route = self.adapter.metrics_route
        try:
            response = self.client.get(route, headers=ACCEPT)
            scrape = parse(response.text) if response.status_code == 200 else None
        except (AnswerTooLarge, httpx.TimeoutException) as problem:
            self.check_alive()
            raise EngineError(
                f"{self.service.url(route)} cannot be read: {problem}. Without the counters nobody sees a restart, "
                "cached prompts or preemptions. Mend the page, or raise control_timeout_s.",
                self.process.evidence() if self.process else None,
            ) from problem
        except (httpx.HTTPError, MetricUnavailable):
            self.check_alive()
            scrape = None
        return PagesReading({} if scrape is None else {ALONE: scrape})

    def counters(self, *, fresh: bool = True) -> Counters:
        """Counters now, under canonical names; empty where the server shows none.

        Args:
            fresh: as in `pages`.

        Raises:
            EngineError: a counter has a value that no counter can have.
        """
        replicas = {name: dict(self.adapter.counters(page)) for name, page in self.pages(fresh=fresh).items()}
        if self.lmcache is not None and replicas:
            replicas[ALONE] |= self.lmcache.counters()
            self._log.take(replicas, {})
        for replica, counters in replicas.items():
            for name, value in counters.items():
                if not (-LARGEST_COUNT if name in DERIVED else 0) <= value <= LARGEST_COUNT:
                    page = self.adapter.metrics_route + (f" of replica {replica}" if replica else "")
                    raise EngineError(
                        f"The server's counter {name} is {value:.15g}, and a counter lies between 0 and 2^53. The run "
                        f"is invalid. Look at {page}."
                    )
        return Counters(replicas)

    @property
    def replica_count(self) -> int:
        """Number of replicas at the last reading; 0 for a server alone."""
        return len(self._log.present)

    def restart(self) -> str | None:
        """What its readings showed since the last call of a process that began anew; None where nothing did."""
        return self._log.restart()

    def scaling(self) -> str | None:
        """Which replicas appeared or vanished since the last call, as its readings showed; None where none did."""
        return self._log.scaling()

    def gauges(self) -> Mapping[str, float]:
        """Gauges now, under canonical names: requests of all replicas, and the share of the fullest replica.

        A gauge is left out if a replica has no value for it, or a value that no gauge can have.
        """
        readings = [gauges for page in self.pages(fresh=False).values() if (gauges := self.adapter.gauges(page))]
        values = {name: [gauges.get(name, -1.0) for gauges in readings] for name in {}.fromkeys(chain(*readings))}
        return {name: max(each) if name in SHARES else sum(each) for name, each in values.items()
                if all(0 <= value <= LARGEST_COUNT for value in each)}

    @contextmanager
    def answers_within(self, timeout_s: float) -> Iterator[None]:
        """Wait no longer than this for any answer to a control request, while the block runs."""
        usual = self.client.timeout
        self.client.timeout = min(usual.read or timeout_s, timeout_s)
        try:
            yield
        finally:
            self.client.timeout = usual

    def remember_process(self) -> None:
        """Keep when its processes began, for `restarted_since`. Of what we start the watchdog knows."""
        self._began = self.counters(fresh=False).start_times

    def restarted_since(self) -> bool:
        """Whether different processes answer than the remembered processes; False without a sign of that."""
        now = self.counters(fresh=False).start_times
        return bool(self._began and now) and self._began != now

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """Version, resolved configuration and what else a comparison depends on; asked once per start."""
        pages = self.pages(fresh=False)
        with self.answering("its configuration"):
            values = dict(self.adapter.resolved(self.client))
            response = self.client.get("/version")
        of_replicas = [self.adapter.facts(page) for page in pages.values()]
        for name in dict.fromkeys(name for facts in of_replicas for name in facts):
            values[name] = " / ".join(dict.fromkeys(facts.get(name, "unknown") for facts in of_replicas))
        if "version" in (body := json_object(response)):
            values["version"] = str(body["version"])
        return values if self.lmcache is None else values | self.lmcache.facts()

    def reset_cache(self, keep: Collection[str] = ()) -> bool:
        """Empty every tier of the cache but those of `keep`; False where the engine's own, or its LMCache, stays full.

        Args:
            keep: of "engine" (its own KV cache), "l1" (host memory, LMCache's or what vLLM offloads there) and "l2"
                (LMCache's disk). What SGLang has in host memory itself is kept or emptied with "engine".
        """
        self.check_alive()
        emptied = False
        if "engine" not in keep:
            with self.answering("an emptied prefix cache"):
                emptied = self.adapter.reset_cache(self.client, external="l1" not in keep) or self._caches_nothing
        if self.lmcache is not None:
            self.lmcache.clear({"l1", "l2"} - set(keep), self.clock)
        elif "l1" not in keep and is_attached(self.spec):
            return False  # one in the engine's process: nothing empties it, and vLLM answers success all the same
        return emptied

    @property
    def _caches_nothing(self) -> bool:
        """By what it says of itself."""
        facts = self.facts
        return facts.get("enable_prefix_caching") == "False" or facts.get("disable_radix_cache") == "True"

    def start_profiler(self, folder: Path, steps: int) -> None:
        """Begin a trace of every rank; the server was started with the flags of `EngineAdapter.profiler_flags`.

        Args:
            folder: absolute path of the folder for the traces.
            steps: number of engine steps after which the trace ends.

        Raises:
            EngineError: the profiler does not start.
        """
        body = self.adapter.profiler_request(folder, steps)
        with self.answering("a trace"):
            response = self.client.post("/start_profile", json=body, timeout=PROFILER_TIMEOUT_S)
        if response.status_code != 200:
            raise EngineError(f"The profiler of {self.spec.engine} does not start: /start_profile answered "
                              f"{response.status_code} {self.shown(response)!r}. Its log has the reason.")

    def stop_profiler(self) -> None:
        """End the trace, unless the trace has ended by itself, which SGLang reports as an error. The files are complete
        when this returns.

        Raises:
            EngineError: the server does not answer.
        """
        with self.answering("the end of a trace"):
            self.client.post("/stop_profile", timeout=PROFILER_TIMEOUT_S)

    def sleep(self) -> None:
        """Release its GPU memory until `wake`. Nothing is warm afterwards.

        Raises:
            EngineError: it does not sleep; nobody should measure on it any more.
        """
        self._move(self.adapter.sleep, "its released memory")
        self.asleep = True
        self.warmed_for.clear()

    def wake(self) -> None:
        """Take its GPU memory back.

        Raises:
            EngineError: it is not awake; nobody should measure on it any more.
        """
        self._move(self.adapter.wake, "its memory")
        self.asleep = False

    def _move(self, move: Callable[[httpx.Client], None], what: str) -> None:
        self.check_alive()
        try:
            with self.answering(what):
                move(self.client)
        except EngineError as error:
            self._hangs = True
            error.evidence = error.evidence or (self.process.evidence() if self.process else None)
            raise
        except BaseException:
            self._hangs = True  # interrupted: nobody knows whether it sleeps
            raise

    def check_responsive(self, timeout_s: float) -> None:
        """Raise EngineError where the server runs and yet answers nothing within `timeout_s`."""
        with self.answering("its models"):
            self.client.get(self.service.url(MODELS), timeout=timeout_s)

    @contextmanager
    def answering(self, what: str) -> Iterator[None]:
        """A server that is dead or silent is an EngineError with the evidence, not somebody's HTTP exception."""
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            if self.process is not None:
                self.process.wait_exit(DEATH_TELLS_S)
            self.check_alive()
            self._hangs = True
            raise EngineError(
                f"The {self.spec.engine} server hangs: asked for {what}, it did not answer "
                f"({type(error).__name__}: {error}).",
                self.process.evidence() if self.process else None,
            ) from error

    def check_replicas(self) -> None:
        """Refuse replicas that are not equal or cannot be told apart.

        Raises:
            EngineError: a page of a replica cannot be read.
            WrongServer: replicas differ, or several processes answer for one page.
        """
        if self.replicas is not None:
            self.replicas.check()
            return
        page = self.pages().get(ALONE)
        if page is None or page.total("process_start_time_seconds") is None:
            return
        for _ in range(ONE_PAGE_READINGS - 1):  # each over a connection of its own: some balance by connection
            again = self.client.get(self.adapter.metrics_route, headers={**ACCEPT, "connection": "close"})
            begins = {parse(again.text).total("process_start_time_seconds"), page.total("process_start_time_seconds")}
            if again.status_code == 200 and len(begins - {None}) > 1:
                raise WrongServer(
                    f"Several servers answer for {self.service.url(self.adapter.metrics_route)}: their processes "
                    f"started at {' and '.join(f'{at:.15g}' for at in sorted(filter(None, begins)))}. Nothing was "
                    'measured. Name the page of each replica, endpoint(…, metrics=["http://HOST:PORT/metrics", '
                    "…]), or metrics=[] to measure without counters."
                )

    def copied_name(self) -> str | None:
        """A name on its page by which the page is a router's copy of its workers' pages; None for any other page."""
        return next(filter(None, map(copied_name, self.pages(fresh=False).values())), None)

    def check_identity(self) -> None:
        """Raise WrongServer unless the served models contain our name and the server accepts our key.

        An endpoint without a list of models shows with its first request whether it serves the model. A started server
        without the list must listen on its port itself.
        """
        if not self.adapter.lists_models:
            self._check_listener()
            return
        if self.spec.url is not None and self.client.get(self.service.url(MODELS)).status_code in NO_ROUTE:
            return
        names = self.served_models()
        if self.served_name not in names:
            if self.spec.url is None:
                cause = "somebody else answers on this port."
            else:
                cause = "the model id is wrong, or somebody else answers on this port."
                cause += f" Write model={names[0]!r} or correct the URL." if names else " Correct the URL."
            raise WrongServer(f"The server at {self.url} serves {', '.join(names) or 'nothing'}, not "
                              f"{self.served_name!r}: {cause} Nothing was measured.")

    def _check_listener(self) -> None:
        """Raise WrongServer where a process of somebody else listens on our port."""
        listener = who_listens(self.address[1])
        if listener is None:
            raise EngineError(f"no process listens on {self.url} yet")
        if listener.pid not in self.pids():
            raise WrongServer(f"{listener} listens on {self.url}, and is no process of the {self.spec.engine} server: "
                              "somebody else answers on this port. Nothing was measured.")

    def check_models(self, requests: Iterable[Request]) -> None:
        """Raise WrongServer where requests name a model that the server does not list."""
        names = {request.model for request in requests if request.model} - {self.served_name}
        if not names:
            return
        with self.answering("its models"):
            listed = self.served_models()
        if missing := sorted(names - set(listed)):
            raise WrongServer(
                f"The server at {self.url} does not serve {', '.join(map(repr, missing))}: it lists "
                f"{', '.join(listed)}. Load the adapter, as in vllm(…, enable_lora=True, "
                f'lora_modules=["{missing[0]}=PATH"]), or correct the name in across_models. Nothing was measured.'
            )

    def served_models(self) -> list[str]:
        """Ids from /v1/models."""
        return [str(entry["id"]) for entry in self._served()]

    def check_configuration(self) -> None:
        """Raise WrongServer where it loaded another model, or resolved a flag to another number, than was asked for.

        Only reported values are compared, and only numbers above 0: words have several spellings, and -1 or 0 leaves
        the number to the engine.
        """
        wanted = self.model.path_or_hub_id if self.model else None
        with self.answering("its model"):
            loaded = self.adapter.loaded(self.client)
        if None not in (wanted, loaded) and wanted != loaded:
            raise WrongServer(f"The server at {self.url} loaded {loaded}, not {wanted}.")
        for name, requested in flags_of(self.spec).items():
            resolved = self.facts.get(name, "")
            if type(requested) is int and requested > 0 and whole_number(resolved) not in (None, requested):
                raise WrongServer(
                    f"{self.spec} asks for {name}={requested}, and the server resolved it to {resolved}: what "
                    "would be measured is not what the test says. Nothing was measured."
                )

    def _served(self) -> list[dict[str, object]]:
        response = self.client.get(self.service.url(MODELS))
        self.check_admitted(response)
        listed = json_list(response, "data")
        if listed is None:
            raise EngineError(f'{self.service.url(MODELS)} answered {response.status_code} and no list {{"data": '
                              f'[{{"id": "…"}}]}} of models: {self.shown(response)!r}. Correct the URL.')
        return [entry for entry in listed if isinstance(entry, dict) and "id" in entry]

    def shown(self, response: httpx.Response) -> str:
        """The begin of an answer, without the keys that it may repeat."""
        return mask(response.text, self.secrets)[:200]

    def check_admitted(self, response: httpx.Response) -> None:
        """Raise WrongServer where the server refuses the key, or the lack of a key."""
        if response.status_code in UNAUTHORIZED:
            names = ", ".join(f"{header} ({source})" for header, source in self.spec.secret_headers)
            if names:
                remedy = f"The request had the headers {names}. Check that this key is valid and may use this model."
            elif self.spec.url is not None:
                remedy = ('The request had no API key. Write endpoint(…, api_key_env="VARIABLE"), or on the command '
                          "line --api-key-env VARIABLE.")
            else:
                remedy = "The request had no API key. Leave api_key and VLLM_API_KEY out of the spec."
            raise WrongServer(
                f"The server at {self.url} refuses us: {response.request.url.path} answered {response.status_code}. "
                f"{remedy} Nothing was measured."
            )

    def check_ready(self) -> None:
        """Raise EngineError while the server is still busy with itself."""
        if not self.adapter.ready(self.client):
            raise EngineError(f"{self.url} answers and is not ready yet.")

    def generate_one_token(self, timeout_s: float, prompt: tuple[int, ...] = SMALL_PROMPT) -> None:
        """One real token: a health route alone proves little.

        Raises:
            EngineError: the server answers, and not with a token.
            WrongServer: the server refuses the API key or requires an API key.
        """
        (request,) = self.as_sent([Request(0, prompt, 1, len(prompt))])
        path, streamed = self.adapter.post(self.spec, request, self.served_name)
        body = json.loads(streamed) | {"stream": False}
        body.pop("stream_options", None)
        response = self.client.post(path, json=body, timeout=timeout_s)
        self.check_admitted(response)
        answer = json_object(response)
        counts = section(answer, "usage") or section(answer, "meta_info")
        if counts.get("completion_tokens") != 1:
            raise self.without_token(path, response)
        self.check_end(path, read_whole(((0, response.content),)))

    def check_end(self, path: str, answer: Stream) -> None:
        """Raise EngineError where a first answer ended without success."""
        if (words := unsuccessful(answer.ends, self.api.accepted_ends)) is not None:
            raise EngineError(f"{self.url} does not serve the first request: the answer of POST {path} {words}. "
                              "Nothing was measured.")

    def without_token(
        self, path: str, response: httpx.Response, reason: str | None = None, hint: str = ""
    ) -> EngineError:
        """The error for an answer that has no token. An error that the answer contains is the usual reason."""
        reason = reason or read_whole(((0, response.content),)).error
        why = f" ({mask(' '.join(reason.split()), self.secrets)[:SHOWN_BYTES]})" if reason else ""
        return EngineError(f"{self.url} is up but generates nothing: POST {path} for one token answered "
                           f"{response.status_code}{why}: {self.shown(response)!r}{hint}")

    def wait_idle(self, finished_before: float, requests: int, timeout_s: float = 5.0) -> Counters:
        """Counters once the server has counted `requests` more finished ones: they lag the last byte by a step."""
        deadline_ns = self.clock.now_ns() + seconds(timeout_s)
        while True:
            counters = self.counters()
            finished = counters.get("requests_finished")
            if finished is None or finished - finished_before >= requests or self._log.scaled:
                return counters
            if self.clock.now_ns() > deadline_ns:
                return counters
            self.clock.sleep_ns(IDLE_POLL_NS)

    def stop(self, grace_s: float) -> None:
        """End the unit and wait until every descendant is gone; nothing to do for an endpoint. May be called again.

        Raises:
            StopFailed: something of it survived.
        """
        with ExitStack() as steps:  # all of them, from the last to the first
            steps.callback(self.client.close)
            if self.replicas is not None:
                steps.callback(self.replicas.close)
            steps.callback(self._stop_lmcache, grace_s)
            if self.process is not None:
                steps.callback(self.process.stop, grace_s)

    def _stop_lmcache(self, grace_s: float) -> None:
        if self.lmcache is not None:
            self.lmcache.stop(grace_s)
            self.lmcache = None

    def detach_lmcache(self) -> LMCacheServer | None:
        """Detach the LMCache server, which then survives the stop of the engine; the caller must stop it.

        Returns:
            None without LMCache, if LMCache has died or hangs, or if LMCache is emulated and ends with its engine.
        """
        lmcache = self.lmcache
        if lmcache is None or lmcache.process is None or lmcache.hangs or lmcache.process.ending() is not None:
            return None
        self.lmcache = None
        return lmcache
