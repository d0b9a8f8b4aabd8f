"""The KV cache: as large as the memory allows, and extended into the host's memory."""

from dataclasses import dataclass

import pytest

from pytest_llmperf import Perf, Server, by_kind, closed, poisson, random_tokens, shared_prefix, vllm


@dataclass(frozen=True)
class Capacity:
    #: Blocks of 16 tokens beside the weights at vLLM's default memory share.
    blocks: int
    together: int
    model: str = "llama-3.1-8b"


@dataclass(frozen=True)
class Offload:
    rate: float


@by_kind(l4=Capacity(4_500, 16, "phi-4-mini"), a100=Capacity(24_000, 64), h100=Capacity(24_000, 64),
         h200=Capacity(54_000, 128))
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=16384))
def test_the_memory_becomes_blocks(case: Capacity, engine: Server, perf: Perf) -> None:
    crowd = random_tokens(input=1024, output=64, arrivals=closed(case.together), requests=2 * case.together)
    run = perf.measure(engine, crowd, may_preempt=True)
    perf.check(run, f"kv_blocks >= {case.blocks}", "preemptions == 0", "error_rate == 0")


@by_kind(a100=Offload(rate=1), h100=Offload(rate=2), h200=Offload(rate=2))
def test_evicted_prefixes_come_back_from_the_host(case: Offload, perf: Perf) -> None:
    # Twelve prefixes of 4000 tokens, and blocks for eight: the least recently used one is always gone.
    scarce = vllm("llama-3.1-8b", max_model_len=16384, num_gpu_blocks_override=2_000)
    claim = perf.claim(
        scarce.with_flags(kv_offloading_size=32),
        scarce,
        shared_prefix(prefix=4000, suffix=(32, 96), output=16, groups=12, arrivals=poisson(case.rate), requests=60),
        # On H200s 2.0 times was seen: copies take 15 ms, and 20 ms pass around them. Three pairs prove 1.3 of that.
        "ttft_p50(b) / ttft_p50(a) >= 1.3",
        mechanism="external_cache_hit_rate(a) >= 30%",
    )
    # Mean TTFT differs by 8 % (sd) between four H200 hosts, median TTFT by 12 %.
    perf.compare_with_baseline(
        claim.a, primaries=["ttft_mean", "external_cache_hit_rate"], margins={"ttft_mean": (0.12, 0.5)}
    )
