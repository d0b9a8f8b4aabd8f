"""The KV cache: as large as the memory allows, and extended into the host's memory."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, Server, by_kind, closed, poisson, random_tokens, shared_prefix, vllm

# Blocks of 16 tokens beside the weights at vLLM's default memory share.
CAPACITY = by_kind(
    l4={"model": "phi-4-mini", "context": 16384, "blocks": 4_500, "together": 16},
    a100={"model": "llama-3.1-8b", "context": 16384, "blocks": 24_000, "together": 64},
    h100={"model": "llama-3.1-8b", "context": 16384, "blocks": 24_000, "together": 64},
    h200={"model": "llama-3.1-8b", "context": 16384, "blocks": 54_000, "together": 128},
)
# On H200s 2.0 times was seen: copies take 15 ms, and 20 ms pass around them. Three pairs prove 1.3 of that.
OFFLOAD = by_kind(
    a100={"model": "llama-3.1-8b", "context": 16384, "rate": 1, "sooner": 1.3},
    h100={"model": "llama-3.1-8b", "context": 16384, "rate": 2, "sooner": 1.3},
    h200={"model": "llama-3.1-8b", "context": 16384, "rate": 2, "sooner": 1.3},
)


@CAPACITY
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=case.context))
def test_the_memory_becomes_blocks(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    crowd = random_tokens(input=1024, output=64, arrivals=closed(case.together), requests=2 * case.together)
    run = perf.measure(engine, crowd, may_preempt=True)
    perf.check(run, f"kv_blocks >= {case.blocks}", "preemptions == 0", "error_rate == 0")


@OFFLOAD
def test_evicted_prefixes_come_back_from_the_host(case: SimpleNamespace, perf: Perf) -> None:
    # Twelve prefixes of 4000 tokens, and blocks for eight: the least recently used one is always gone.
    scarce = vllm(case.model, max_model_len=case.context, num_gpu_blocks_override=2_000)
    offloading = scarce.with_flags(kv_offloading_size=32)
    questions = shared_prefix(
        prefix=4000, suffix=(32, 96), output=16, groups=12, arrivals=poisson(case.rate), requests=60
    )
    claim = perf.claim(
        offloading,
        scarce,
        questions,
        f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}",
        mechanism="external_cache_hit_rate(a) >= 30%",
    )
    # Mean TTFT differs by 8 % (sd) between four H200 hosts, median TTFT by 12 %.
    perf.compare_with_baseline(
        claim.a, primaries=["ttft_mean", "external_cache_hit_rate"], margins={"ttft_mean": (0.12, 0.5)}
    )
