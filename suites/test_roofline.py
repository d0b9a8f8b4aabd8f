"""The roofline: one stream decodes as fast as its weights can be read, nearly, and never faster."""

from dataclasses import dataclass

import pytest

from pytest_llmperf import (
    Measurement,
    Perf,
    Server,
    by_kind,
    closed,
    decode_floor_ms,
    prefill_peak_per_s,
    random_tokens,
    vllm,
)


@dataclass(frozen=True)
class Case:
    #: Of the memory's peak bandwidth, at least; the rest is launches, attention and what surrounds a step.
    share: float
    model: str = "llama-3.1-8b"
    context: int = 16384


@dataclass(frozen=True)
class Offline:
    requests: int = 256
    model: str = "llama-3.1-8b"


DENSE = by_kind(l4=Case(0.7, "phi-4-mini"), a100=Case(0.6), h100=Case(0.6), h200=Case(0.55))
# Of the experts a token passes two of 8, or eight of 128. A step of 128 small experts is far from its floor.
MIXTURE = by_kind(h100=Case(0.25, "qwen3-30b-a3b", 8192), h200=Case(0.45, "mixtral-8x7b", 8192))
ON_ONE_SERVER = pytest.mark.engine(lambda case: vllm(case.model, max_model_len=case.context))


def decode_near_the_floor(case: Case, engine: Server, perf: Perf) -> Measurement:
    run = perf.measure(engine, random_tokens(input=128, output=128, arrivals=closed(1), requests=12))
    floor_ms = decode_floor_ms(case.model, perf.kind)
    perf.check(run, f"itl_p50 <= {floor_ms / case.share:.3f}ms", "error_rate == 0")
    return run


@DENSE
@ON_ONE_SERVER
def test_decoding_nears_the_memory_bandwidth(case: Case, engine: Server, perf: Perf) -> None:
    perf.compare_with_baseline(decode_near_the_floor(case, engine, perf), primaries=["itl_p50"])


@MIXTURE
@ON_ONE_SERVER
def test_one_stream_reads_its_active_experts_only(case: Case, engine: Server, perf: Perf) -> None:
    decode_near_the_floor(case, engine, perf)


@DENSE
@ON_ONE_SERVER
def test_a_batch_reads_the_weights_once(case: Case, engine: Server, perf: Perf) -> None:
    """A step of n streams reads the weights and n KV caches. Its arithmetic is still far below the peak."""
    for streams in (1, 4, 16, 64):
        answers = random_tokens(input=256, output=64, arrivals=closed(streams), requests=max(4, streams))
        run = perf.measure(engine, answers, runs=2)
        floor_ms = decode_floor_ms(case.model, perf.kind, kv_tokens=streams * (256 + 32))
        # 0.4 of the peak bandwidth: a batch also samples and detokenises its streams one by one. Half of the places are
        # taken before the last answers end.
        perf.check(run, f"itl_p50 <= {floor_ms / 0.4:.3f}ms", f"tokens_per_step >= {streams / 2}", "error_rate == 0")


@by_kind(l4=Offline(96, "phi-4-mini"), a100=Offline(), h100=Offline(), h200=Offline())
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=2048))
def test_offline_prompts_use_the_arithmetic(case: Offline, engine: Server, perf: Perf) -> None:
    """With all prompts there at once no step waits for requests. Nine tokens of ten are prompts, so the tokens a second
    are a share of what the peak arithmetic allows."""
    prompts = random_tokens(input=512, output=64, arrivals=closed(case.requests), requests=case.requests)
    run = perf.measure(engine, prompts, may_preempt=True)
    perf.check(
        run,
        f"total_token_throughput >= {0.3 * prefill_peak_per_s(case.model, perf.kind):.0f}/s",
        f"tokens_per_step >= {case.requests / 8}",
        *([] if perf.emulated else ["gpu_utilization >= 80%"]),  # an emulated GPU has no sensor
        "error_rate == 0",
    )
