"""Checks that measured latencies are possible. The model on its GPUs cannot cause a latency below the hardware's lower
bound, so such answers came from a different source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_llmperf.metrics.families import e2el, output_tokens, prompt_tokens
from pytest_llmperf.metrics.server import counter_difference
from pytest_llmperf.model.datasheet import LatencyBound
from pytest_llmperf.model.record import RequestRecord
from pytest_llmperf.results.causes.runs import BelowHardwareBound
from pytest_llmperf.results.measurement import Run
from pytest_llmperf.stats.binomial import share_interval

# A first chunk that is delivered late shortens the time to the last one. In 638 honest runs on H200s it was up to 5 ms
# late in the median (prompts of 16,000 tokens, LMCache). Decoding that seems too fast counts only where a first chunk
# would have to be ten times as late, and only where more than this share of the requests is proven to do so.
LATE_FIRST_CHUNK_NS = 50e6
LATE_FIRST_CHUNKS = 0.05
CONFIDENCE = 0.99

Timed = tuple[float, float]  # measured and least time, in nanoseconds


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
    """From the first content chunk to the last; None where the token count is unverified."""
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
