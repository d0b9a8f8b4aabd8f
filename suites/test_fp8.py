"""fp8: half the bytes of weights or KV cache, so more tokens a second from the same memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_llmperf import Perf, by_kind, closed, random_tokens, shared_prefix, vllm

GIB = 2**30


@dataclass(frozen=True)
class Weights:
    #: Blocks of 16 tokens: with fp8 weights more than any start with bfloat16 has, and with those fewer.
    blocks: int
    more: float
    model: str = "llama-3.1-8b"
    #: Longer first tokens that are accepted: an A100 unpacks the weights for each step of a prompt.
    allow: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Cache:
    model: str = "llama-3.1-8b"


# An A100 has no arithmetic in fp8: a kernel unpacks the weights, which makes prompts longer, and vLLM's attention there
# reads no fp8 cache.
CACHES = by_kind(l4=Cache("phi-4-mini"), h100=Cache(), h200=Cache())


@by_kind(l4=Weights(7_000, 1.3, "phi-4-mini"), a100=Weights(31_000, 1.1, allow={"ttft_p50": 2.0}),
         h100=Weights(30_500, 1.1), h200=Weights(59_200, 1.05))
def test_fp8_weights_decode_more(case: Weights, perf: Perf) -> None:
    bfloat16 = vllm(case.model, max_model_len=16384)
    perf.claim(
        bfloat16.with_flags(quantization="fp8"),
        bfloat16,
        random_tokens(input=64, output=128, arrivals=closed(16), requests=32),
        f"output_throughput(a) / output_throughput(b) >= {case.more}",
        mechanism=[f"kv_blocks(a) >= {case.blocks}", f"kv_blocks(b) <= {case.blocks - 1}"],
        allow=case.allow,
    )


@CACHES
def test_fp8_cache_holds_twice_the_tokens(case: Cache, perf: Perf) -> None:
    # So little memory that the cache, not the arithmetic, says how many are served at once.
    bfloat16 = vllm(case.model, max_model_len=8192, kv_cache_memory_bytes=4 * GIB)
    perf.claim(
        bfloat16.with_flags(kv_cache_dtype="fp8"),
        bfloat16,
        random_tokens(input=256, output=512, arrivals=closed(96), requests=96),
        "output_throughput(a) / output_throughput(b) >= 1.15",
        mechanism=["kv_blocks(a) >= 4000", "kv_blocks(b) <= 3999"],
        allow={"tpot_mean": 1.5},  # more at once, each of them slower
        may_preempt=True,
    )


@CACHES
def test_fp8_cache_keeps_twice_the_prefixes(case: Cache, perf: Perf) -> None:
    # Six prefixes of 4000 tokens are used in turn. 2 GiB are 16,384 tokens in bfloat16 and hold four of them: the least
    # recently used one is always gone. Blocks in fp8 hold all six.
    bfloat16 = vllm(case.model, max_model_len=8192, kv_cache_memory_bytes=2 * GIB)
    perf.claim(
        bfloat16.with_flags(kv_cache_dtype="fp8"),
        bfloat16,
        shared_prefix(prefix=4000, suffix=64, output=4, groups=6, arrivals=closed(1), requests=36),
        "ttft_p50(b) / ttft_p50(a) >= 1.5",
        mechanism=["kv_blocks(a) >= 2000", "kv_blocks(b) <= 1999",
                   "prefix_cache_hit_rate(a) >= 75%", "prefix_cache_hit_rate(b) <= 20%"],
    )
