"""Refuses invalid arguments of `perf.…(…)` before any request is sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import ParamSpec, TypeVar

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.adapters import adapter_of, reader_of
from pytest_llmperf.engines.control.running_server import RunningServer, handle_of
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import SloError, SpecError, UsageError, refuse
from pytest_llmperf.metrics.energy import COST, OF_REAL_GPUS
from pytest_llmperf.metrics.registry import streamed
from pytest_llmperf.model.deployment import Deployment, Pool
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.event import Event
from pytest_llmperf.model.request import Request
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.slo.model import Claim, Mechanism, Slo
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.workload import Workload
from pytest_llmperf.workload.arguments import number

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
SHORTEST_REASON = 4  # "tp" or "dp" would stand in most logs


def check_engine(engine: object, call: str) -> None:
    """Refuse an engine argument that is neither a server nor an engine spec.

    Raises:
        SpecError: the argument has a different type.
    """
    refuse(
        (isinstance(engine, Pool),
         f"{call.replace('…', repr(engine))}: these servers have no router. Write replicas(…, "
         "router=vllm_router()), or data_parallel_size=… for the engine's own data parallel."),
        (not isinstance(engine, RunningServer | Server | EngineSpec),
         f"{call.replace('…', repr(engine))}: an engine is the `engine` fixture or a spec such as "
         "vllm(MODEL)."),
    )


def spec_of(engine: RunningServer | Server | EngineSpec) -> EngineSpec:
    """The spec that a server was asked for by, or the spec itself."""
    handle = handle_of(engine)
    return handle.requested_spec if isinstance(handle, Server) else handle


def check_sides_differ(a: RunningServer | EngineSpec, b: RunningServer | EngineSpec) -> None:
    """Refuse a claim that compares an engine spec with itself, because such a claim compares only two server starts.

    Raises:
        SpecError: both sides are equal.
    """
    if spec_of(a) != spec_of(b):
        return
    attached = spec_of(a).is_endpoint
    change = "name the other endpoint" if attached else "change a flag of one side: a.with_flags(…)"
    raise SpecError(f"perf.claim(a, b, …): both sides are {spec_of(a)}, and a claim is about what differs. To claim "
                    f"something, {change}. To see how much two starts differ, measure it twice with "
                    "perf.measure(…, fresh=True) and put both into perf.compare.")


def check_together(specs: Sequence[EngineSpec]) -> None:
    """Refuse an announcement of fewer than two different specs.

    Raises:
        SpecError: an argument is no spec, or there are not two different ones.
    """
    for spec in specs:
        if not isinstance(spec, EngineSpec):
            raise SpecError(f"perf.together({spec!r}, …): announce specs such as vllm(MODEL). A server that runs "
                            "already needs no announcement.")
    if len(set(specs)) < max(2, len(specs)):
        raise SpecError(f"perf.together({', '.join(map(str, specs))}): announce two different specs or more, each "
                        "once.")


def check_tables(specs: object, workloads: object) -> None:
    """Refuse arguments of `measure_each` that name nothing.

    Raises:
        UsageError: the specs or the workloads are no mapping, or there is no workload.
    """
    if not isinstance(specs, Mapping) or not isinstance(workloads, Mapping) or not workloads:
        wrong = workloads if isinstance(specs, Mapping) else specs
        raise UsageError(f"perf.measure_each({wrong!r}): name the specs, and several workloads, too: "
                         "perf.measure_each({'small': vllm(…), 'large': vllm(…)}, {1: random_tokens(…), 64: …}).")


def check_workload(workload: Workload, call: str) -> None:
    """Refuse a workload argument of a different type.

    Raises:
        SpecError: the argument is not a workload.
    """
    if not isinstance(workload, Workload):
        raise SpecError(f"{call.replace('…', repr(workload))}: this is no workload. Build it with random_tokens(…), "
                        "shared_prefix(…), mixed(…), multi_turn(…), sharegpt(…) or trace(…).")


def check_requests(spec: EngineSpec, workload: Workload, model: ResolvedModel | None) -> None:
    """Refuse a request that is longer than the engine takes, or has tokens beyond the vocabulary of the model.

    Args:
        spec: the engine.
        workload: the requests.
        model: the model of the engine; None for an endpoint. The engine's flag overrides its longest sequence.

    Raises:
        SpecError: names the request and the limit.
    """
    if model is None:
        return
    _check_vocabulary(spec, workload.longest(), workload, model)
    flag = adapter_of(spec.engine).context_flag
    requested = flags_of(spec).get(flag)
    longest = model.longest_sequence if requested is None else None
    limit = requested if type(requested) is int and requested > 0 else longest
    if limit is None:
        return
    request = workload.longest()
    prompt = request.prompt_tokens or 0
    if prompt + request.output_tokens > limit:
        whose = f"{flag}={limit}" if longest is None else f"{limit} tokens are the most that {spec.model} takes"
        raise SpecError(
            f"{workload}: request {request.index} has {prompt} tokens in its prompt and asks for "
            f"{request.output_tokens}, {prompt + request.output_tokens} in all, and {whose}: the server would refuse "
            f"it. {f'Raise {flag} or shorten' if flag else 'Shorten'} the requests, e.g. by input=. Nothing was sent."
        )


def _check_vocabulary(spec: EngineSpec, request: Request, workload: Workload, model: ResolvedModel) -> None:
    size = model.vocabulary_size
    if size is None or isinstance(request.prompt, str) or max(request.prompt, default=0) < size:
        return
    if adapter_of(spec.engine).interface.sends_text:
        return
    raise SpecError(f"{workload}: request {request.index} has the token {max(request.prompt)}, and the vocabulary of "
                    f"{spec.model} has {size} tokens: the server would refuse the request. Send text that the model "
                    "knows, with sharegpt(…) or text=True. Nothing was sent.")


def check_duration(workload: Workload, timeout_s: float) -> None:
    """Refuse a workload whose last request is sent after the time at which a run is given up.

    Raises:
        SpecError: names the duration and the setting.
    """
    last_s = workload.last_send_s()
    if last_s >= timeout_s:
        raise SpecError(f"{workload}: the last request is sent {last_s:.0f} s after the start, and a run is given up "
                        f"after measure_timeout_s = {timeout_s:g} s. Write measure_timeout_s = "
                        f"{last_s + 600:.0f} in [tool.llmperf], or send fewer requests. Nothing was sent.")


def check_streamed(spec: EngineSpec, metrics: Iterable[str]) -> None:
    """Refuse metrics that whole answers do not have, before anything is sent.

    Raises:
        SpecError: the endpoint is measured with whole answers, and a metric needs streamed answers.
    """
    if not reader_of(spec).interface.stream and (missing := streamed(metrics)):
        raise SpecError(f"{spec}: {missing[0]} needs streamed answers, and stream=False asks for whole answers. "
                        "Nothing was sent. Write stream=True, or limit e2el, error_rate or a throughput.")


def check_runs(runs: int, call: str) -> None:
    """Refuse an invalid number of runs.

    Raises:
        SpecError: the number is below 1 or is no whole number.
    """
    if type(runs) is not int or runs < 1:
        raise SpecError(f"{call}(…, runs={runs!r}): at least one run, and a whole number.")


def check_starts(starts: int, engine: object) -> None:
    """Refuse an invalid number of server starts, and several starts of a running server.

    Raises:
        SpecError: the number is below 1 or is no whole number, or the server runs already.
    """
    refuse(
        (type(starts) is not int or starts < 1,
         f"perf.measure(…, starts={starts!r}): at least one start, and a whole number."),
        (type(starts) is int and starts > 1
         and (isinstance(engine, RunningServer | Server) or getattr(engine, "url", None) is not None),
         f"perf.measure(engine, …, starts={starts}): that server runs already. Give the spec of a "
         "server that this test starts: perf.measure(engine.spec, …)."),
    )


def check_measurement(measurement: Measurement, call: str, argument: str = "the first argument") -> None:
    """Refuse an argument that is no measurement.

    Raises:
        UsageError: the argument is not a measurement.
    """
    if not isinstance(measurement, Measurement):
        raise UsageError(f"{call}: {argument} must be what perf.measure(…) returned, got {measurement!r}.")


def check_name(name: object, call: str) -> None:
    """Refuse an invalid name of a stored measurement.

    Raises:
        SpecError: the name is not a text.
    """
    if not isinstance(name, str):
        raise SpecError(f"{call}: the name of the stored measurement must be a text, got {name!r}. Measurements of "
                        "this test are put beside each other by perf.compare(…).")


def check_try_rates(rates: object) -> None:
    """Refuse rates that cannot be tried.

    Raises:
        SpecError: no list, or one of them is no rate.
    """
    if not isinstance(rates, Sequence) or isinstance(rates, str):
        raise SpecError(f"perf.max_rate(…, try_rates={rates!r}): write a list of requests per second, "
                        "try_rates=[12].")
    for rate in rates:
        number("perf.max_rate", "try_rates", rate, above=0)


def check_until(until: str | Sequence[str], starts: int) -> tuple[Slo, ...]:
    """Parse the SLOs that may end a measurement.

    Raises:
        SloError: a text cannot be read.
        SpecError: several server starts, each of which has to be measured.
    """
    slos = tuple(map(parse_slo, texts_of(until, "until")))
    if slos and starts > 1:
        raise SpecError(f"perf.measure(…, until={until!r}, starts={starts}): until= can end a measurement after "
                        "the first run, so it needs starts=1. Leave out until= or starts=.")
    return slos


def refuse_arguments(
    call: str, **replaced: str
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Refuse arguments that belong to another verb, and name that verb.

    Args:
        call: the method for messages.
        replaced: per argument what to write instead.
    """

    def decorate(method: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        @wraps(method)
        def refusing(*positional: Parameters.args, **named: Parameters.kwargs) -> Returned:
            for name in replaced.keys() & named.keys():
                raise UsageError(f"{call} takes no {name}=: {replaced[name]}.")
            return method(*positional, **named)

        return refusing

    return decorate


def texts_of(given: str | Iterable[str], argument: str) -> tuple[str, ...]:
    """The texts of an argument that is a text or a sequence of texts.

    Raises:
        SloError: the argument is neither.
    """
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Iterable):
        raise SloError(f"{argument}={given!r}: write one text, or a list of texts.")
    return tuple(given)


def check_price(requirements: Iterable[Slo | Claim | Mechanism], settings: Settings) -> None:
    """Refuse a limit on a cost without a price of a GPU hour, or in another currency than the price.

    Raises:
        SloError: names the limit and the setting.
    """
    price = settings.gpu_price
    for requirement in requirements:
        if requirement.metric != COST:
            continue
        text = requirement.text or str(requirement)
        if price is None:
            raise SloError(f"{text!r}: a cost needs the price of a GPU hour, and none is stated. Set gpu_hour_price = "
                           '"2.50 USD 2026-11-01", or pass --llmperf-set gpu_hour_price=….')
        if not isinstance(requirement, Claim) and requirement.currency != price.currency:
            raise SloError(f"{text!r}: the limit is in {requirement.currency}, and the GPU hour costs {price}. State "
                           "both in one currency.")


def check_energy_is_seen(metrics: Iterable[str], text: str) -> None:
    """Refuse a claim about energy or utilization on emulated hardware.

    Raises:
        SpecError: the claim needs a metric that only a real GPU has.
    """
    if unseen := [metric for metric in metrics if metric in OF_REAL_GPUS]:
        raise SpecError(f"perf.claim(…, {text!r}): {unseen[0]} is not seen, because an emulated GPU draws no power. "
                        "Run the claim on the GPU itself, and skip it where perf.emulated is true.")


def check_refusal(spec: object, reason: object) -> None:
    """Refuse arguments of `perf.refuses` by which no engine is started, or which every log contains.

    Raises:
        SpecError: the first argument is no spec of an engine that this session starts, or the reason is no text.
    """
    call = f"perf.refuses({spec!s}, {reason!r})"
    refuse(
        (not isinstance(spec, EngineSpec) or spec.is_endpoint,
         f"{call}: the engine is started and must refuse, so hand over a spec such as vllm(MODEL, "
         "max_model_len=…), not a server that runs."),
        (not isinstance(reason, str) or len(reason.strip()) < SHORTEST_REASON,
         f"{call}: name the flag that the engine refuses, such as \"max_model_len\", or a phrase of its "
         f"error message, of at least {SHORTEST_REASON} characters."),
    )


def check_names(names: Collection[str], argument: str) -> None:
    """Refuse one text where a list belongs: it would be read letter by letter.

    Raises:
        SpecError: the argument is no list of texts.
    """
    refuse(
        (isinstance(names, str), f"{argument}={names!r}: write a list, {argument}=[{names!r}]."),
        (not isinstance(names, Collection) or not all(isinstance(name, str) for name in names),
         f"{argument}={names!r}: write a list of texts."),
    )


CALL = "perf.measure(…, events=[…])"


def check_events(events: object, spec: EngineSpec, workload: Workload, session: PerfSession) -> tuple[Event, ...]:
    """The events in the order of time.

    Raises:
        SpecError: an event is invalid for these servers or this workload.
    """
    if isinstance(events, Event) or not isinstance(events, Sequence) or not all(
            isinstance(event, Event) for event in events):
        raise SpecError(f"perf.measure(…, events={events!r}): write a list of events: "
                        "events=[kill(replica=0, at_requests=0.25), restart(replica=0, at_requests=0.5)].")
    if not events:
        return ()
    refuse(
        (spec.is_endpoint,
         f"{CALL}: {spec} runs already, and this session ends only servers that it started. Measure "
         "replicas(…) that the test starts."),
        (not isinstance(spec, Deployment),
         f"{CALL}: {spec} is one server, and without it nothing would answer. Measure replicas behind a "
         "router: replicas(spec, 2, router=vllm_router())."),
        (session.hardware.emulated and not isinstance(session.clock, VirtualClock),
         f"{CALL}: the emulator in real time is one process, of which no part can end. Leave "
         "--emulate-clock real out."),
    )
    assert isinstance(spec, Deployment), "refused above"
    count = len(workload.requests(0))
    ordered = sorted(events, key=lambda event: event.due(count))
    _check_order(ordered, spec, workload, count)
    return tuple(ordered)


def _check_order(events: Sequence[Event], spec: Deployment, workload: Workload, count: int) -> None:
    dead: set[str] = set()
    moments: dict[tuple[str, int], Event] = {}
    for event in events:
        pool = spec.pools.get(event.pool)
        if pool is None:
            named = replace(event, pool=next(iter(spec.pools)))
            pools = f"the pools {' and '.join(spec.pools)}. Name the pool and" if named.pool else "no pools. Name"
            raise SpecError(f"{event}: {spec} has {pools} the replica{'' if named.pool else ' alone'}: {named}.")
        if event.replica >= pool.servers:
            numbers = f"{pool.servers} replicas, 0 to {pool.servers - 1}" if pool.servers > 1 else "one replica, 0"
            raise SpecError(f"{event}: {pool if event.pool else spec} has {numbers}. Name one of them.")
        if not 0 < event.due(count) < count:
            raise SpecError(f"{event}: {workload} has {count} requests, so the event would come "
                            f"{'after the last' if event.due(count) else 'before the first'} of them. Choose another "
                            "at_requests, or send more requests.")
        moment = (event.part, event.due(count))
        if moment in moments:
            raise SpecError(f"{moments[moment]} and {event} change one replica at the same moment, after "
                            f"{event.due(count)} of {count} requests. Give one of them another at_requests.")
        moments[moment] = event
        if (event.action == "restart") != (event.part in dead):
            state = "still runs then" if event.action == "restart" else "has ended before"
            repair = "Kill it earlier" if event.action == "restart" else "Restart it in between"
            raise SpecError(f"{event}: replica {event.replica} {state}. {repair}, or leave the event out.")
        dead ^= {event.part}


CACHE_TIERS = ("engine", "l1", "l2")


def check_keep(spec: EngineSpec, keep: Collection[str], *, fresh: bool, starts: int = 1) -> None:
    """Raise SpecError if the engine cannot keep these tiers, or can keep these tiers only together with others."""
    anew = "fresh=True" if fresh else f"starts={starts}" if starts > 1 else ""
    if not spec.is_endpoint and (problem := _keep_problem(spec, set(keep), anew)) is not None:
        shown = f"{anew}, " if anew else ""
        raise SpecError(f"perf.measure({spec}, …, {shown}keep={tuple(keep)}): {problem}")


def _keep_problem(spec: EngineSpec, keep: set[str], anew: str) -> str | None:
    if anew and "l1" in keep and (spec.lmcache is None or spec.lmcache.in_process):
        return (
            "what an engine has in host memory ends with it; only an LMCache server beside it outlives a fresh start. "
            f"Attach one with .with_lmcache(), or leave out {anew}."
        )
    memory = keep & {"engine", "l1"}
    return adapter_of(spec.engine).tiers_in_one(spec, *memory) if len(memory) == 1 else None
