"""What cannot start: an engine whose cache or model cannot hold one longest sequence says so and ends."""

from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, sglang, vllm

# A lab on a small GPU: 30,576 tokens were asked for, and the KV cache held 1,136, 71 blocks of 16. A CPU's blocks have
# 128 tokens.
LLAMA = {
    "model": "llama-3.1-8b", "length": 30_576, "blocks": 71,
    "beyond_model": 131_073,
}
CASES = by_kind(
    cpu={
        "model": "tiny", "length": 30_576, "blocks": 9, "beyond_model": 32_769,
    },
    l4=LLAMA | {"model": "phi-4-mini"},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)  # fmt: skip


@CASES
def test_length_beyond_the_kv_cache_is_refused(case: SimpleNamespace, perf: Perf) -> None:
    perf.refuses(vllm(case.model, max_model_len=case.length, num_gpu_blocks_override=case.blocks), "max_model_len")


@CASES
def test_vllm_refuses_a_length_beyond_the_model(case: SimpleNamespace, perf: Perf) -> None:
    perf.refuses(vllm(case.model, max_model_len=case.beyond_model), "max_model_len")


@CASES
def test_sglang_refuses_a_length_beyond_the_model(case: SimpleNamespace, perf: Perf) -> None:
    perf.refuses(sglang(case.model, context_length=case.beyond_model), "context_length")
