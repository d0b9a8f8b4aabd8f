"""Gates of one run: the GPUs, the hardware's bounds, and the load generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.metrics import RunMetrics
from pytest_llmperf.metrics.families import e2el, output_tokens, prompt_tokens
from pytest_llmperf.metrics.server import counter_difference
from pytest_llmperf.model.datasheet import LatencyBound
from pytest_llmperf.model.exchange import LoadReport
from pytest_llmperf.model.record import RequestRecord
from pytest_llmperf.model.telemetry import GpuDevice, GpuTrace
from pytest_llmperf.results.causes.runs import (
    ArrivalsStampedLate,
    BelowHardwareBound,
    ChunksCoalesced,
    ClocksUncertain,
    GpuContended,
    GpuFault,
    GpuPartitioned,
    GpuSettingsChanged,
    GpusMixed,
    GpuThrottled,
    LoadGeneratorFault,
    LoadProcessSuspended,
    RequestsSentLate,
    SlotsEmpty,
)
from pytest_llmperf.results.check import Fault
from pytest_llmperf.results.measurement import Run
from pytest_llmperf.stats.interval import share_interval
from pytest_llmperf.telemetry.nvml import reasons_in

# Heat and the power supply's brake. The software power cap is how an H200 under load works: recorded, and no gate.
THROTTLED = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
# A first chunk that is delivered late shortens the time to the last one. In 638 honest runs on H200s it was up to 5 ms
# late in the median (prompts of 16,000 tokens, LMCache). Decoding that seems too fast counts only where a first chunk
# would have to be ten times as late, and only where more than this share of the requests is proven to do so.
LATE_FIRST_CHUNK_NS = 50e6
LATE_FIRST_CHUNKS = 0.05
CONFIDENCE = 0.99
Timed = tuple[float, float]  # measured and least time, in nanoseconds
#: A run with fewer than 100 requests has its longest pause as p99. Pauses below this share of the slots' time change
#: throughput and the number of requests in flight by less than 1 %.
EMPTY_SHARE_LIMIT = 0.01
GAP_METRICS = ("itl", "largest_stall")


def gpu_problems(trace: GpuTrace, first: GpuTrace | None) -> Iterator[Fault]:
    """Why a run on these GPUs is invalid.

    Args:
        trace: of the run.
        first: of the measurement's first run, whose settings all others must have.
    """
    if trace.contended is not None:
        yield GpuContended(trace.contended)
    yield from _throttled(trace)
    for fault in trace.faults:
        yield GpuFault(fault)
    yield from _devices(trace.devices)
    if first is not None:
        yield from _changed(first.devices, trace.devices)


def _throttled(trace: GpuTrace) -> Iterator[Fault]:
    samples = [sample for sample in trace.samples if sample.throttle_reasons is not None]
    hit = [sample for sample in samples if THROTTLED & set(reasons_in(sample.throttle_reasons or 0))]
    if not hit:
        return
    reasons = Counter(reason for sample in hit for reason in reasons_in(sample.throttle_reasons or 0)
                      if reason in THROTTLED)
    hottest = max((sample.temperature_c for sample in hit if sample.temperature_c is not None), default=None)
    yield GpuThrottled(list(reasons), len(hit), len(samples), hottest)


def _devices(devices: tuple[GpuDevice, ...]) -> Iterator[Fault]:
    names = list(dict.fromkeys(device.name for device in devices))
    if len(names) > 1:
        yield GpusMixed(names)
    for device in devices:
        if dict(device.settings).get("mig") == "on":
            yield GpuPartitioned(device.index, device.name)


def _changed(earlier: tuple[GpuDevice, ...], now: tuple[GpuDevice, ...]) -> Iterator[Fault]:
    by_index = {device.index: dict(device.settings) for device in earlier}
    for device in now:
        settings = by_index.get(device.index, {})
        changed = [f"{name} {settings[name]} → {value}" for name, value in device.settings
                   if name in settings and settings[name] != value]
        if changed:
            yield GpuSettingsChanged(device.index, changed)


def impossible(run: Run, bound: LatencyBound) -> Iterator[BelowHardwareBound]:
    """Latencies of a run that this model on these GPUs cannot have.

    TTFT and E2E latency begin before the request is handed to the kernel and end when bytes have come. Any delay adds
    to them, so one request below the bound is enough.
    """
    served = [record for record in run.records if record.ok]
    firsts = [(float(record.arrivals_ns[0] - record.intended_ns), bound.first_token_ns(_computed(record, run)))
              for record in served]
    below = [timed for timed in firsts if timed[0] < timed[1]]
    if below:
        by = bound.reading if min(below, key=_ratio)[1] <= bound.step_ns else bound.computing
        yield _problem("TTFT", below, len(served), bound, by)
    decoded = [timed for record in served if (timed := _decoded(record, bound)) is not None]
    faster = [timed for timed in decoded if timed[0] + LATE_FIRST_CHUNK_NS < timed[1]]
    if faster and share_interval(len(faster), len(decoded), CONFIDENCE).low > LATE_FIRST_CHUNKS:
        yield _problem("decoding after the first chunk", faster, len(decoded), bound, _per_step(bound))
    whole = [(e2el(record)[0], least) for record in served if (least := _whole_ns(record, run, bound)) is not None]
    below = [timed for timed in whole if timed[0] < timed[1]]
    if below:
        yield _problem("E2E latency", below, len(whole), bound, _per_step(bound))


def _computed(record: RequestRecord, run: Run) -> int:
    """Prompt tokens that were computed for certain: at least the last one is."""
    prompt, cached = prompt_tokens(record), record.cached_tokens
    hits = [counter_difference(run.counters, name) for name in ("prompt_tokens_cached", "external_cache_hits")]
    if cached is None and hits[0] == 0 and not hits[1]:
        cached = 0
    return 1 if prompt is None or cached is None else max(1, prompt - cached)


def _decoded(record: RequestRecord, bound: LatencyBound) -> Timed | None:
    """Time from the first content chunk to the last, with its lower bound; None if the token count is unverified."""
    if record.chunk_tokens is None or len(record.arrivals_ns) < 2:
        return None
    return record.arrivals_ns[-1] - record.arrivals_ns[0], bound.decoding_ns(sum(record.chunk_tokens[1:]))


def _whole_ns(record: RequestRecord, run: Run, bound: LatencyBound) -> float | None:
    tokens = output_tokens(record)
    if record.chunk_tokens is None or not tokens:
        return None
    return bound.first_token_ns(_computed(record, run)) + bound.decoding_ns(tokens - 1)


def _ratio(timed: Timed) -> float:
    return timed[0] / timed[1]


def _per_step(bound: LatencyBound) -> str:
    most = bound.tokens_per_step
    return f"{bound.reading} per step" + (f" of at most {most} tokens" if most > 1 else "")


def _problem(what: str, below: Sequence[Timed], of: int, bound: LatencyBound, by: str) -> BelowHardwareBound:
    measured_ns, least_ns = min(below, key=_ratio)
    return BelowHardwareBound(
        text=what, gpus=bound.gpus, answers=len(below), of_answers=of,
        share=share_interval(len(below), of, CONFIDENCE).low, confidence=CONFIDENCE,
        measured_ms=measured_ns / 1e6, least_ms=least_ns / 1e6, bound_by=by,
    )


def load_generator_problems(
    run: Run, metrics: RunMetrics, named: Collection[str], settings: Settings
) -> Iterator[Fault]:
    """Where the load generator distorted a run.

    Args:
        run: the run.
        metrics: of the run.
        named: metrics that the test judges itself.
        settings: the limits.
    """
    late = _lateness(run, metrics, named, settings)
    if late is not None:
        yield _with_load(late, run.load)
    coalesced = metrics.value("coalesced_share")
    asks_for_gaps = any(name.startswith(GAP_METRICS) for name in named) and "coalesced_share" not in named
    if asks_for_gaps and coalesced is not None and coalesced > settings.coalesced_limit:
        yield _with_load(ChunksCoalesced(share=coalesced, limit=settings.coalesced_limit), run.load)
    if run.clock_gap_ms > settings.clock_gap_limit_ms:
        yield LoadProcessSuspended(run.clock_gap_ms, settings.clock_gap_limit_ms)


def _lateness(
    run: Run, metrics: RunMetrics, named: Collection[str], settings: Settings
) -> LoadGeneratorFault | None:
    """The worst way in which the load generator was late; None if it was in time."""
    delay_ms, limit_ms = metrics.value("send_delay_p99"), settings.send_delay_p99_limit_ms
    judged = not {"send_delay_p99", "send_delay_max"}.isdisjoint(named)
    if not judged and delay_ms is not None and delay_ms > limit_ms:
        return RequestsSentLate(measured_ms=delay_ms, limit_ms=limit_ms)
    if run.load is None:
        return None
    empty_ms = (run.load.turnaround_p99_ns or 0) / 1e6
    if empty_ms > limit_ms and (share := _empty_share(run, run.load)) > EMPTY_SHARE_LIMIT:
        return SlotsEmpty(measured_ms=empty_ms, limit_ms=limit_ms, share=share, share_limit=EMPTY_SHARE_LIMIT)
    error_ms, error_limit_ms = run.load.stamp_error_p99_ns / 1e6, settings.stamp_error_p99_limit_ms
    if error_ms > error_limit_ms and (worst := max(run.load.hosts, key=attrgetter("clock_error_ns"), default=None)):
        return ClocksUncertain(measured_ms=error_ms, limit_ms=error_limit_ms,
                               clock_error_ms=worst.clock_error_ns / 1e6, load_host=worst.name)
    if error_ms > error_limit_ms:
        return ArrivalsStampedLate(measured_ms=error_ms, limit_ms=error_limit_ms,
                                   kernel_stamped=run.load.kernel_stamped or 0.0)
    return None


def _empty_share(run: Run, load: LoadReport) -> float:
    """Share of the slots' time between an answer and the next request; 0 in an open loop."""
    taken_ns = sum(record.ended_ns - record.sent_ns for record in run.records if record.sent_ns is not None)
    return load.turnaround_total_ns / max(1, load.turnaround_total_ns + taken_ns)


def _with_load(fault: LoadGeneratorFault, load: LoadReport | None) -> LoadGeneratorFault:
    """The fault with the state of the load processes behind it."""
    if load is None:
        return fault
    delay_ns = load.read_delay_p99_ns
    return replace(fault, load_processes=load.processes, load_cpus=len(load.cpus), own_cpus=load.own_cpus,
                   busy=load.busy, read_delay_ms=None if delay_ns is None else delay_ns / 1e6)
