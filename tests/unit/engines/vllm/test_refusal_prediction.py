"""Whether the longest sequence fits into the KV cache, by arithmetic."""

import pytest

from pytest_llmperf import sglang, vllm
from pytest_llmperf.session.server_gpus import predicted_refusal

GIB = 2**30


def test_length_beyond_a_stated_cache_is_predicted_to_be_refused():
    spec = vllm("llama-3.1-8b", max_model_len=30_576, kv_cache_memory_bytes=1_136 * 131_072)
    assert predicted_refusal(spec.on("h200"), None) == (
        "one sequence of 30,576 tokens needs 3.73 GiB of KV cache, and 0.139 GiB are available at most"
    )
    assert predicted_refusal(spec.with_flags(max_model_len=1_136).on("h200"), None) is None


def test_cache_is_limited_by_gpu_share_less_weights():
    spec = vllm("llama-3.1-8b", max_model_len=30_576, gpu_memory_utilization=0.8)
    assert "and 2.84 GiB are available" in (predicted_refusal(spec.on("l4"), round(22.25 * GIB)) or "")
    assert predicted_refusal(spec.on("h200"), 140 * GIB) is None
    split = spec.with_flags(tensor_parallel_size=2)
    assert predicted_refusal(split.on("l4"), round(22.25 * GIB)) is None


@pytest.mark.parametrize(("kind", "flags", "gib"), [("h200", {}, "0.139"), ("cpu", {}, "1.11"),
                                                     ("h200", {"block_size": 32}, "0.277")])
def test_cache_is_limited_by_stated_number_of_blocks(kind, flags, gib):
    spec = vllm("llama-3.1-8b", max_model_len=30_576, num_gpu_blocks_override=71, **flags)
    assert f"and {gib} GiB are available" in (predicted_refusal(spec.on(kind), None) or "")


def test_cache_of_a_cpu_is_limited_by_variable():
    spec = vllm("llama-3.1-8b", max_model_len=30_576)
    assert "and 1 GiB are available" in (predicted_refusal(spec.on("cpu"), None) or "")
    stated = spec.with_flags(kv_cache_memory_bytes=GIB // 2)
    assert "and 1 GiB are available" in (predicted_refusal(stated.on("cpu"), None) or "")
    roomy = vllm("llama-3.1-8b", max_model_len=30_576, env={"VLLM_CPU_KVCACHE_SPACE": "8"})
    assert predicted_refusal(roomy.on("cpu"), None) is None


@pytest.mark.parametrize("spec", [
    sglang("llama-3.1-8b", context_length=30_576, max_total_tokens=1_000),
    vllm("llama-3.1-8b"),
    vllm("meta-llama/Llama-3.1-8B", max_model_len=10**9, kv_cache_memory_bytes=1),
    vllm("llama-3.1-8b", max_model_len=10**9, kv_cache_memory_bytes=1, kv_cache_dtype="fp8"),
    vllm("llama-3.1-8b", max_model_len=10**9, gpu_memory_utilization=0.9),
])
def test_unknown_sizes_give_no_prediction(spec):
    assert predicted_refusal(spec.on("h200"), None) is None
