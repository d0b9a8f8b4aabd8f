"""fp8: half the bytes of weights or KV cache, so more tokens a second from the same memory."""

from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, closed, random_tokens, shared_prefix, vllm

GIB = 2**30
# Blocks of 16 tokens: with fp8 weights more than any start with bfloat16 has, and with those fewer.
WEIGHTS = by_kind(
    l4={"model": "phi-4-mini", "context": 16384, "blocks": 7_000, "more": 1.3},
    a100={"model": "llama-3.1-8b", "context": 16384, "blocks": 31_000, "more": 1.2},
    h100={"model": "llama-3.1-8b", "context": 16384, "blocks": 30_500, "more": 1.1},
    h200={"model": "llama-3.1-8b", "context": 16384, "blocks": 59_200, "more": 1.05},
)
# An A100 has no arithmetic in fp8, and vLLM's attention there reads no fp8 cache.
LLAMA = {"model": "llama-3.1-8b", "context": 8192, "kv_gib": 4, "blocks": 4_000, "together": 96, "more": 1.15}
CACHE = by_kind(
    l4=LLAMA | {"model": "phi-4-mini"},
    h100=LLAMA,
    h200=LLAMA,
)

# 2 GiB are 16,384 tokens of 128 KiB in bfloat16, and twice as many in fp8.
SIX = {"model": "llama-3.1-8b", "context": 8192, "kv_gib": 2, "blocks": 2_000, "sooner": 1.5}
PREFIXES = by_kind(
    l4=SIX | {"model": "phi-4-mini"},
    h100=SIX,
    h200=SIX,
)


@WEIGHTS
def test_fp8_weights_decode_more(case: SimpleNamespace, perf: Perf) -> None:
    bfloat16 = vllm(case.model, max_model_len=case.context)
    fp8 = bfloat16.with_flags(quantization="fp8")
    perf.claim(
        fp8,
        bfloat16,
        random_tokens(input=64, output=128, arrivals=closed(16), requests=32),
        f"output_throughput(a) / output_throughput(b) >= {case.more}",
        mechanism=[f"kv_blocks(a) >= {case.blocks}", f"kv_blocks(b) <= {case.blocks - 1}"],
    )


@CACHE
def test_fp8_cache_holds_twice_the_tokens(case: SimpleNamespace, perf: Perf) -> None:
    # So little memory that the cache, not the arithmetic, says how many are served at once.
    bfloat16 = vllm(case.model, max_model_len=case.context, kv_cache_memory_bytes=case.kv_gib * GIB)
    fp8 = bfloat16.with_flags(kv_cache_dtype="fp8")
    crowd = random_tokens(input=256, output=512, arrivals=closed(case.together), requests=case.together)
    perf.claim(
        fp8,
        bfloat16,
        crowd,
        f"output_throughput(a) / output_throughput(b) >= {case.more}",
        mechanism=[f"kv_blocks(a) >= {case.blocks}", f"kv_blocks(b) <= {case.blocks - 1}"],
        allow={"tpot_mean": 1.5},  # more at once, each of them slower
        may_preempt=True,
    )


@PREFIXES
def test_fp8_cache_keeps_twice_the_prefixes(case: SimpleNamespace, perf: Perf) -> None:
    # Six prefixes of 4000 tokens are used in turn. Blocks in fp8 hold all of them, blocks in bfloat16 four: the least
    # recently used one is always gone.
    bfloat16 = vllm(case.model, max_model_len=case.context, kv_cache_memory_bytes=case.kv_gib * GIB)
    fp8 = bfloat16.with_flags(kv_cache_dtype="fp8")
    questions = shared_prefix(prefix=4000, suffix=64, output=4, groups=6, arrivals=closed(1), requests=36)
    perf.claim(
        fp8,
        bfloat16,
        questions,
        f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}",
        mechanism=[
            f"kv_blocks(a) >= {case.blocks}", f"kv_blocks(b) <= {case.blocks - 1}",
            "prefix_cache_hit_rate(a) >= 75%", "prefix_cache_hit_rate(b) <= 20%",
        ],
    )
