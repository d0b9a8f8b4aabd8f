"""The roofline: one stream decodes as fast as its weights can be read, nearly, and never faster."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Measurement, Perf, Server, by_kind, closed, decode_floor_ms, random_tokens, vllm
from pytest_llmperf.engines.models import SHAPES
from pytest_llmperf.kinds import GPU_KINDS

# `share`: of the memory's peak bandwidth, at least; the rest is launches, attention and what surrounds a step.
DENSE = by_kind(
    l4={"model": "phi-4-mini", "context": 16384, "share": 0.7},
    a100={"model": "llama-3.1-8b", "context": 16384, "share": 0.6},
    h100={"model": "llama-3.1-8b", "context": 16384, "share": 0.6},
    h200={"model": "llama-3.1-8b", "context": 16384, "share": 0.55},
)
# 93 GB of weights fit on one H200. All experts would take 3.7 times as long to read as the two that a token passes.
# 61 GB fit on one H100: all experts would take 18.2 ms, and the eight of 128 that a token passes take 1.8 ms. A step of
# so many small kernels is far from this floor, so 7.3 ms are allowed.
MIXTURE = by_kind(
    h100={"model": "qwen3-30b-a3b", "context": 8192, "share": 0.25},
    h200={"model": "mixtral-8x7b", "context": 8192, "share": 0.45},
)

# `share`: of the peak of dense bfloat16 arithmetic. Nine tokens of ten are prompts, which is what it can be reached by.
ALL = {"model": "llama-3.1-8b", "requests": 256, "share": 0.3}
OFFLINE = by_kind(l4=ALL | {"model": "phi-4-mini", "requests": 96}, a100=ALL, h100=ALL, h200=ALL)
TOKENS = 256 + 32  # of a stream, on average
KV_BYTES = 32 * 2 * 8 * 128 * 2  # of a token: layers × (key and value) × heads × dimensions × bytes, of both models
BATCH_SHARE = 0.4  # of the peak bandwidth: a batch also samples and detokenises its streams one by one


def decodes_near_the_floor(case: SimpleNamespace, engine: Server, perf: Perf) -> Measurement:
    run = perf.measure(engine, random_tokens(input=128, output=128, arrivals=closed(1), requests=12))
    floor_ms = decode_floor_ms(case.model, case.kind)
    perf.check(run, f"itl_p50 <= {floor_ms / case.share:.3f}ms", "error_rate == 0")
    fastest_ms = min(metrics.require("itl_p50") for metrics in run.metrics)
    assert fastest_ms > floor_ms, f"{fastest_ms:.3g} ms a step is less than it takes to read the weights"
    return run


@DENSE
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=case.context))
def test_decoding_nears_the_memory_bandwidth(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    perf.compare_with_baseline(decodes_near_the_floor(case, engine, perf), primaries=["itl_p50"])


@MIXTURE
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=case.context))
def test_one_stream_reads_its_active_experts_only(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    decodes_near_the_floor(case, engine, perf)


@DENSE
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=case.context))
def test_a_batch_reads_the_weights_once(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    """A step of n streams reads the weights and n KV caches. Its arithmetic is still far below the peak."""
    for streams in (1, 4, 16, 64):
        answers = random_tokens(input=256, output=64, arrivals=closed(streams), requests=max(4, streams))
        run = perf.measure(engine, answers, runs=2)
        kv_ms = streams * TOKENS * KV_BYTES / GPU_KINDS[case.kind].bandwidth_bytes_per_s * 1e3
        floor_ms = decode_floor_ms(case.model, case.kind) + kv_ms
        least = [f"tokens_per_step >= {streams / 2}"]  # half of the places, before the last answers end
        perf.check(run, f"itl_p50 <= {floor_ms / BATCH_SHARE:.3f}ms", *least, "error_rate == 0")


@OFFLINE
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=2048))
def test_offline_prompts_use_the_arithmetic(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    """With all prompts there at once no step waits for requests, so a share of the peak arithmetic bounds the tokens a
    second from below: peak ÷ operations of a token. A kernel runs nearly always, and this share differs by some points
    from run to run."""
    prompts = random_tokens(input=512, output=64, arrivals=closed(case.requests), requests=case.requests)
    run = perf.measure(engine, prompts, may_preempt=True)
    most = GPU_KINDS[case.kind].bf16_flops / SHAPES[case.model].prompt_flops
    busy = [] if perf.emulated else ["gpu_utilization >= 80%"]
    perf.check(
        run, f"total_token_throughput >= {case.share * most:.0f}/s", f"tokens_per_step >= {case.requests / 8}",
        *busy, "error_rate == 0",
    )
