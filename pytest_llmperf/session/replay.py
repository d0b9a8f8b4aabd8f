"""Replay a workload once: plan, send, read, count. A replay ends early if its server dies or its time is over."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random

from pytest_llmperf.clock import Clock, SystemClock, seconds
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.control.json_answers import whole_number
from pytest_llmperf.engines.models.text_tokenizer import TextTokenizer
from pytest_llmperf.engines.routers.adapter import names_sessions
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import EngineError, LoadError
from pytest_llmperf.load.transport import Progress, Transport
from pytest_llmperf.masking import mask
from pytest_llmperf.metrics import percentile
from pytest_llmperf.metrics.by_replica import counters_by_replica
from pytest_llmperf.metrics.energy import gpu_counters
from pytest_llmperf.metrics.run import span_ns
from pytest_llmperf.model.api import DEFAULT, Api
from pytest_llmperf.model.deployment import PrefillDecode
from pytest_llmperf.model.event import DISTURBED_FROM, DISTURBED_UNTIL, Event, PastEvent
from pytest_llmperf.model.exchange import EmulatedExchange, Ending, Exchange, Replay
from pytest_llmperf.model.plan import Form, LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.ranks import TENSOR
from pytest_llmperf.model.record import Outcome, RequestRecord, RunRecords
from pytest_llmperf.model.request import Request
from pytest_llmperf.model.telemetry import CpuUse, GaugeSample, GpuTrace
from pytest_llmperf.process.background_thread import in_background
from pytest_llmperf.results.measurement import Run
from pytest_llmperf.session.ledger import Ledger
from pytest_llmperf.telemetry.accelerators import TraceOf
from pytest_llmperf.telemetry.replicas import ALONE, Counters, balance, by_pool, increases, total_increases
from pytest_llmperf.wire.completions import CountTokens, emulated_record, to_record
from pytest_llmperf.wire.conversation import part_of, read_reply
from pytest_llmperf.workload import Workload
from pytest_llmperf.workload.prompts import relabelled, sessions_of

DEATH_POLL_S = 0.05


@contextmanager
def cancelled_at_deadline(timeout_s: float, cancel: threading.Event) -> Iterator[threading.Event]:
    """Set `cancel` if the block takes longer than `timeout_s`. The yielded event is set in that case."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        cancel.set()

    timer = threading.Timer(timeout_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


@contextmanager
def cancelled_on_death(server: Server, cancel: threading.Event) -> Iterator[None]:
    """Set `cancel` as soon as a process of the server's unit ends."""
    if not server.unit.pids():  # an endpoint, or an engine in virtual time, which only this session ends
        yield
        return

    def watch(done: threading.Event) -> None:
        while not done.is_set():
            if server.unit.wait_death(DEATH_POLL_S):
                cancel.set()
                return

    with in_background(watch, "llmperf-death-watch"):
        yield


CONSTANTS = {  # metric → names of the fact, by engine
    "chunk_budget": ("max_num_batched_tokens",),
    "kv_blocks": ("num_gpu_blocks",),
    "kv_cache_tokens": ("kv_cache_size_tokens",),
    "block_size": ("effective_attention_block_size", "block_size"),
    "eager": ("enforce_eager",),
    "tensor_parallel": TENSOR,
    "expert_parallel": ("enable_expert_parallel",),
}
#: Bytes of an answer in the detail of a failed request, as `repr` writes them.
QUOTED_BYTES = re.compile(r"""b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*\"""")
GAUGE_INTERVAL_S = 0.25
#: Answers of each replica in a run, on average, from which the values of a header are taken for replicas.
LEAST_ANSWERS = 4
ANSWERS_BYTES = 64 * 2**20  # that answers may have together, however little was asked for
SWITCHES = {"True": 1.0, "False": 0.0}
Watch = Callable[[Progress, LoadPlan], None]
#: Outcomes of requests whose server may be dying.
CUT_OFF = (Outcome.NO_CONNECTION, Outcome.TRUNCATED, Outcome.RESET)
SILENT = (Ending.FIRST_BYTE_TIMEOUT, Ending.IDLE_TIMEOUT, Ending.TOTAL_TIMEOUT)


@dataclass(frozen=True, slots=True)
class Replayer:
    """Replays workloads against servers.

    Args:
        transport: sends the requests.
        now: the wall clock, for labels.
        clock: monotonic clock, which shows jumps of the wall clock.
        limits: limits after which a request is given up.
        timeout_s: limit after which a run is given up.
        fresh_connections: whether each connection serves a single request.
        quotes_answers: whether a message may quote a defective answer of an endpoint.
        cpu_use: starts to measure the use of this machine's CPU time; None in virtual time.
        watched: samples the GPUs of a server during a block; None without GPUs.
        rng: draws new prompts for servers whose caches cannot be emptied.
        ledger: what the session has spent at paid services.
        gpu_costs: the number of GPUs of a server and the price of a GPU hour, as counters (`metrics.energy`).
    """

    transport: Transport
    now: Callable[[], datetime]
    clock: Clock = field(default_factory=SystemClock)
    limits: StreamLimits = field(default_factory=StreamLimits)
    timeout_s: float = 900.0
    watched: Callable[[Server], AbstractContextManager[TraceOf]] | None = None
    fresh_connections: bool = False
    quotes_answers: bool = False
    cpu_use: Callable[[], Callable[[], CpuUse | None]] | None = None
    rng: Random = field(default_factory=Random)
    ledger: Ledger = field(default_factory=Ledger)
    gpu_costs: Callable[[Server], Mapping[str, float]] = lambda _server: {}

    def run(
        self, server: Server, workload: Workload, seed: int, watch: Watch | None = None, *,
        gauge_interval_s: float | None = None, keep: tuple[str, ...] = (), events: Sequence[Event] = (),
    ) -> Run:
        """One run after emptying the cache.

        Args:
            watch: called about four times per second, with the plan of the run.
            gauge_interval_s: sampling interval of gauges; None for no sampling.
            keep: KV cache tiers that are not emptied, see `Server.reset_cache`.
            events: deaths and restarts of replicas, in the order of time. The counters of these replicas are unknown
                afterwards.

        Raises:
            ServerDied: the server ended before the last answer.
            LoadError: the load generator failed, or the run took too long.
        """
        disturbed = {event.part for event in events}
        server.mend()
        server.counters.excuse(disturbed)
        cache_reset = server.reset_cache(keep)
        started_at, started_ns = self.now(), self.clock.now_ns()
        counters_before = server.counters.read()
        watched = nullcontext(_empty_trace) if self.watched is None else self.watched(server)
        with watched as trace, self._sampling(server, gauge_interval_s) as gauges:
            used = None if self.cpu_use is None else self.cpu_use()
            requests = self._requests(server, workload, seed, keep)
            replay, past = self.disturbed_replay(server, requests, workload.concurrency, watch, events)
            records = self.records(server, requests, replay, server.text_counter)
            self.ledger.settle(server.spec, requests, records)
            cpu = None if used is None else used()
        jump_ns = seconds((self.now() - started_at).total_seconds()) - (self.clock.now_ns() - started_ns)
        served = sum(record.choices for record in records if record.ok)
        after = server.counters.wait_idle(counters_before.get("requests_finished", 0.0), 0 if events else served)
        scaled = server.counters.scaling()
        if scaled or bool(after) != bool(counters_before) or (
                not events and any(record.outcome in CUT_OFF for record in records)):
            server.unit.check_dying()
        else:
            server.unit.check_alive()
        if not keep and any(record.outcome is Outcome.ABANDONED for record in records):
            server.reset_cache()  # fails if the server still holds the blocks of cancelled requests
        _check_counted(counters_before, after, scaled)
        by_replica = increases(counters_before, after) | {
            name: dict.fromkeys(counters) for name, counters in counters_before.replicas.items() if name in disturbed}
        replicas = {name: counters for name, counters in by_replica.items() if name != ALONE}
        replicas = replicas or _replicas_by_header(server, records)
        gpu = trace(replay.started_ns)
        lag = percentile(sorted(lag_ns / 1e6 for lag_ns in replay.loop_lag_ns), 0.99) if replay.loop_lag_ns else None
        return Run(
            seed=seed,
            start_id=server.start_id,
            records=RunRecords(records),
            counters=total_increases(by_replica) | _of_replicas(server, replicas) | _peaks(gauges)
            | _constants(server) | _gpu_counters(server, gpu, records, replay.started_ns)
            | dict(self.gpu_costs(server)) | _disturbed(past, records),
            cache_reset=cache_reset,
            restarted=server.counters.restart(),
            scaled=scaled,
            replicas=replicas,
            loop_lag_p99_ms=lag,
            clock_gap_ms=replay.clock_gap_ns / 1e6,
            load=replay.load,
            started_at=started_at.astimezone(UTC).isoformat(timespec="seconds"),
            wall_clock_jump_ms=jump_ns / 1e6,
            gpu=gpu,
            cpu=cpu,
            gauges=tuple(replace(sample, at_ns=sample.at_ns - replay.started_ns) for sample in gauges),
            model_names=server.model_names,
            tokenizer="" if server.text_counter is None else server.text_counter.name,
        )

    def records(
        self, server: Server, requests: tuple[Request, ...], replay: Replay, tokenizer: TextTokenizer | None = None
    ) -> tuple[RequestRecord, ...]:
        """The records of a replay. `tokenizer` counts the text of answers without counts."""
        records = server.answer_ids.checked(
            records_of(requests, replay, server.api, server.contact.secrets, tokenizer))
        if self.quotes_answers or not server.spec.is_endpoint:
            return records
        return tuple(map(_without_quotes, records))

    def _requests(
        self, server: Server, workload: Workload, seed: int, keep: tuple[str, ...]
    ) -> tuple[Request, ...]:
        """The requests of a seed. An endpoint may still cache prompts of an earlier session, and its cache cannot be
        emptied. So the prompts are relabelled for each run. If tiers are kept, a repeated seed keeps its labels."""
        requests = workload.requests(seed)
        if not server.spec.is_endpoint:
            return server.as_sent(requests)
        key = str(workload), seed
        if not (keep and key in server.labels):
            server.labels[key] = self.rng.getrandbits(64)
        return server.as_sent(relabelled(requests, Random(server.labels[key])))

    def disturbed_replay(
        self, server: Server, requests: tuple[Request, ...], concurrency: int | None, watch: Watch | None,
        events: Sequence[Event],
    ) -> tuple[Replay, tuple[PastEvent, ...]]:
        """As `replay`, with events during the load. The second value are the events that have happened."""
        disturber = server.disturber
        if not events or disturber is None:
            return self.replay(server, requests, concurrency, watch), ()
        disturber.arm(events, len(requests))

        def see(progress: Progress, plan: LoadPlan) -> None:
            disturber.sent(progress.sent)
            if watch is not None:
                watch(progress, plan)

        return self.replay(server, requests, concurrency, see), disturber.past()

    def replay(
        self, server: Server, requests: tuple[Request, ...], concurrency: int | None, watch: Watch | None = None
    ) -> Replay:
        """Send the requests and read the answers; given up within a second of the server's death.

        Raises:
            SpendingLimitReached: the requests could exceed the limit of a paid service, and were not sent.
        """
        self.ledger.reserve(server.spec, requests)
        plan = self.plan(server, requests, concurrency)
        cancel = threading.Event()
        progress = None if watch is None else lambda progress: watch(progress, plan)
        with cancelled_on_death(server, cancel), cancelled_at_deadline(self.timeout_s, cancel) as late:
            try:
                replay = self.transport.replay(plan, cancel=cancel, progress=progress)
            except EngineError as error:
                # Ending the emulator ends a run in virtual time, so that end is not a failure of the emulator.
                if not late.is_set():
                    raise
                raise self._timeout_error() from error
            except LoadError:
                server.unit.check_dying()  # whoever sends may hang, once the server has died
                raise
        server.unit.check_alive()
        if late.is_set():
            raise self._timeout_error()
        if any(exchange.ending in SILENT for exchange in replay.exchanges):
            server.control.check_responsive(self.limits.idle_ns / 1e9)
        return replay

    def _timeout_error(self) -> LoadError:
        return LoadError(
            f"The run did not end within {self.timeout_s:g} s and was given up. Send fewer requests, or raise "
            "measure_timeout_s."
        )

    def plan(self, server: Server, requests: tuple[Request, ...], concurrency: int | None) -> LoadPlan:
        """The requests as this server takes them."""
        host, port = server.contact.address
        sessions = sessions_of(requests) if names_sessions(server.spec) else {}
        planned = tuple(_planned(server, request, sessions.get(request.index, "")) for request in requests)
        channel = replace(server.contact.channel, fresh=self.fresh_connections)
        limits = replace(self.limits, replay_bytes=most_bytes(requests) * server.api.choices)
        return LoadPlan(host, port, planned, server.contact.headers, concurrency, limits, channel,
                        keeps_failed_recording=not server.spec.is_endpoint)

    @contextmanager
    def _sampling(self, server: Server, interval_s: float | None) -> Iterator[list[GaugeSample]]:
        """Gauges while the block runs, at the session clock's times."""
        samples = list[GaugeSample]()
        if interval_s is None:
            yield samples
            return

        def sample(done: threading.Event) -> None:
            while not done.wait(interval_s):
                with suppress(EngineError):  # it died, which the replay says, or is too busy just now
                    values = server.counters.gauges()
                    samples.append(GaugeSample(self.clock.now_ns(), values))

        with in_background(sample, "llmperf-gauges"):
            yield samples


def records_of(
    requests: tuple[Request, ...], replay: Replay, api: Api = DEFAULT, secrets: Sequence[str] = (),
    tokenizer: TextTokenizer | None = None,
) -> tuple[RequestRecord, ...]:
    """The record of each request, parsed from the bytes of its answer or converted from its emulated record.

    Args:
        api: how to read the answers.
        secrets: texts to mask in the answers.
        tokenizer: counts the text of answers without counts; None without such a tokenizer.
    """
    count = None if tokenizer is None else tokenizer.counts
    lengths: dict[int, int] = {}  # tokens that a turn and its answer bring into the next turn
    records = tuple(
        _record(request, exchange, api, count, lengths)
        for request, exchange in zip(requests, replay.exchanges, strict=True)
    )
    return tuple(_masked(record, secrets) for record in records) if secrets else records


def _record(
    request: Request, exchange: Exchange | EmulatedExchange, api: Api, count: CountTokens | None,
    lengths: dict[int, int],
) -> RequestRecord:
    """The record of one request. The prompt tokens of a live conversation are known after its earlier answers."""
    if request.continues and request.after in lengths:
        request = replace(request, prompt_tokens=lengths[request.after] + len(request.prompt))
    if isinstance(exchange, EmulatedExchange):
        record = emulated_record(request, exchange)
        answer_tokens = record.output_tokens if record.ok else None
    else:
        record = to_record(request, exchange, api, count)
        form: Form = "ids" if isinstance(request.prompt, tuple) else "text"
        reply = read_reply(exchange, form, api) if request.answer_used else None
        answer_tokens, answer_hash = reply or (None, None)
        record = replace(record, answer_hash=answer_hash)
    if request.answer_used and request.prompt_tokens is not None and answer_tokens is not None:
        lengths[request.index] = request.prompt_tokens + answer_tokens
    return record


def _without_quotes(record: RequestRecord) -> RequestRecord:
    """The record without bytes of an answer that a model generated. A refusal is no generated text."""
    if record.detail is None or record.outcome in (Outcome.HTTP_STATUS, Outcome.RATE_LIMITED):
        return record
    return replace(record, detail=QUOTED_BYTES.sub("(not shown: quote_answers is off)", record.detail))


def _masked(record: RequestRecord, secrets: Sequence[str]) -> RequestRecord:
    """The record without secrets in the texts that the server wrote."""
    models = tuple(mask(name, secrets) for name in record.models)
    detail, replica = (None if text is None else mask(text, secrets) for text in (record.detail, record.replica))
    return replace(record, detail=detail, replica=replica, models=models)


def _replicas_by_header(server: Server, records: Sequence[RequestRecord]) -> dict[str, dict[str, float | None]]:
    """The counters of each replica of an endpoint with `replica_header`; empty for any other server.

    Raises:
        EngineError: the header is missing, or has a value for each request instead of each replica.
    """
    header, served = server.api.replica_header, sum(record.ok for record in records)
    if not header or not served:
        return {}
    replicas = counters_by_replica(records)
    if not replicas:
        raise EngineError(f"No answer of {server.contact.url} has the header {header!r}. The run is invalid. Let the "
                          "proxy or the server send it, or remove replica_header= of the endpoint.")
    if len(replicas) > max(1, served // LEAST_ANSWERS):
        raise EngineError(
            f"The header {header!r} has {len(replicas)} values in {len(records)} answers of {server.contact.url}. The "
            "run is invalid. Name a header that has one value for each replica (replica_header=), or send at least "
            f"{LEAST_ANSWERS} requests for each replica.")
    return replicas


def _check_counted(before: Counters, after: Counters, scaled: str | None) -> None:
    """Raise EngineError if only one of the two readings has counters: the validity checks need both."""
    if bool(before) == bool(after):
        return
    when = "before the run, and not after it" if before else "after the run, and not before it"
    when += f" ({scaled})" if scaled else ""
    raise EngineError(
        f"The server showed its counters {when}: nobody could see a restart, prompts that were still cached, or "
        "preemptions. Run it again; if that does not help, see in the server's log whether it was replaced, or too "
        "busy to answer /metrics."
    )


def _empty_trace(_origin_ns: int) -> None:
    """The trace of a run without GPUs."""


def _disturbed(past: Sequence[PastEvent], records: Sequence[RequestRecord]) -> dict[str, float]:
    """When the first event began and the last one ended, after the first intended send; empty without events."""
    if not past:
        return {}
    origin_ns = min(record.intended_ns for record in records)
    return {DISTURBED_FROM: (min(event.began_ns for event in past) - origin_ns) / 1e9,
            DISTURBED_UNTIL: (max(event.ended_ns for event in past) - origin_ns) / 1e9}


def _peaks(gauges: list[GaugeSample]) -> dict[str, float]:
    """The largest value of each gauge: vLLM's `running` becomes the metric `running_peak`."""
    names = {name for sample in gauges for name in sample.values}
    return {f"{name}_peak": max(sample.values[name] for sample in gauges if name in sample.values) for name in names}


def _of_replicas(
    server: Server, by_replica: Mapping[str, Mapping[str, float | None]]
) -> dict[str, float | None]:
    """The balance of replicas, or the counters of each pool, with the bytes that decode servers should have fetched."""
    pools = by_pool(by_replica)
    if not pools:
        return dict(balance(by_replica))
    prompt, cached = pools.get("prompt_tokens.decode"), pools.get("prefix_cache_hits.decode")
    shape = None if server.model is None else server.model.shape
    if prompt is not None and cached is not None and shape is not None:
        is_fp8 = str(flags_of(server.spec).get("kv_cache_dtype", "")).startswith("fp8")
        bytes_per_token = shape.kv_bytes_per_token("fp8" if is_fp8 else "bfloat16")
        pools["expected_transfer_bytes"] = pools["expected_transfer_bytes.decode"] = bytes_per_token * (prompt - cached)
    return pools


def _gpu_counters(
    server: Server, gpu: GpuTrace | None, records: Sequence[RequestRecord], origin_ns: int
) -> dict[str, float]:
    """Energy and utilization of the GPUs over the run's duration, and of each pool; empty if nothing was sampled."""
    span = span_ns(records)
    if gpu is None or span is None:
        return {}
    begin_ns, end_ns = span[0] - origin_ns, span[1] - origin_ns
    counters = gpu_counters(gpu.samples, begin_ns, end_ns)
    devices = [device.index for device in gpu.devices]
    pools = server.spec.pools if isinstance(server.spec, PrefillDecode) else {}
    for name, pool in pools.items():
        own, devices = devices[: pool.gpus], devices[pool.gpus :]
        samples = [sample for sample in gpu.samples if sample.device in own]
        counters |= {f"{counter}.{name}": value for counter, value in gpu_counters(samples, begin_ns, end_ns).items()}
    return counters


def _constants(server: Server) -> dict[str, float]:
    """Values that the server reported at its start, as metrics for mechanism checks, and its start-up time in s."""
    facts = server.facts
    fact_texts = {
        metric: next((facts[name] for name in names if name in facts), "") for metric, names in CONSTANTS.items()
    }
    constants = {name: SWITCHES.get(text, whole_number(text)) for name, text in fact_texts.items()}
    constants["startup_s"] = server.unit.starting_s
    return {name: value for name, value in constants.items() if value is not None}


def most_bytes(requests: Sequence[Request]) -> int:
    """Limit of the total size of all answers, in bytes: several times the size that engines send for these requests.

    An event of vLLM or SGLang has 250 to 400 bytes per token. SGLang without a tokenizer repeats all previous token ids
    in each event, with 7 bytes per id.
    """
    answers = sum(2048 * request.output_tokens + 8 * request.output_tokens**2 for request in requests)
    return ANSWERS_BYTES + answers + sum(32 * (request.prompt_tokens or len(request.prompt)) for request in requests)


def _planned(server: Server, request: Request, session: str) -> PlannedRequest:
    path, body = server.post(request)
    return PlannedRequest(request.index, path, body, request.at_ns, request.after, request.think_ns,
                          part_of(request, body), request.cancellation, request.retry, server.api.choices,
                          server.api.accepted_ends, request.output_tokens, session)


def stream_limits(settings: Settings) -> StreamLimits:
    """The limits of a request from the settings."""
    return StreamLimits(
        first_byte_ns=seconds(settings.first_byte_timeout_s),
        idle_ns=seconds(settings.idle_timeout_s),
        total_ns=seconds(settings.request_timeout_s),
        response_bytes=round(settings.response_limit_mib * 2**20),
        held_bytes=round(settings.responses_memory_limit_mib * 2**20),
    )
