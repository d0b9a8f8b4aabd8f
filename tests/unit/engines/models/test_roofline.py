"""The floor of a decode step, and the datasheets it rests on."""

import pytest

from pytest_llmperf import decode_floor_ms, endpoint, prefill_peak_per_s, sglang, vllm
from pytest_llmperf.engines.models import SHAPES, ResolvedModel
from pytest_llmperf.engines.models.roofline import latency_bound
from pytest_llmperf.errors import SpecError
from pytest_llmperf.kinds import GPU_KINDS


def test_decode_floor_reads_dense_weights_once_without_embedding():
    # Llama 3.1 8B: 8,030,261,248 parameters, of which 128,256 × 4,096 are the table; two bytes each; 4.8 TB/s.
    assert decode_floor_ms("llama-3.1-8b", "h200") == pytest.approx((8030261248 - 128256 * 4096) * 2 / 4.8e12 * 1e3)
    assert decode_floor_ms("llama-3.1-8b", "h200", gpus=2) == pytest.approx(
        decode_floor_ms("llama-3.1-8b", "h200") / 2
    )


def test_decode_floor_includes_reading_kv_cache_of_streams():
    """32 layers × key and value × 8 heads × 128 dimensions × 2 bytes = 131,072 bytes a token."""
    floors = [decode_floor_ms("llama-3.1-8b", "h200", kv_tokens=tokens) for tokens in (0, 288 * 64)]
    assert floors[1] - floors[0] == pytest.approx(288 * 64 * 131_072 / 4.8e12 * 1e3)


def test_prefill_peak_is_gpu_flops_divided_by_flops_per_token():
    # 6.98e9 parameters in the layers' matrices, two FLOPs each.
    assert prefill_peak_per_s("llama-3.1-8b", "h200") == pytest.approx(989e12 / (2 * 6.979e9), rel=1e-3)


def test_a_tied_table_is_the_output_projection():
    assert SHAPES["phi-4-mini"].decode_bytes == SHAPES["phi-4-mini"].weight_bytes()


def test_decode_floor_of_mixture_includes_only_active_experts():
    mixture = SHAPES["mixtral-8x7b"]
    assert mixture.weight_bytes() / mixture.decode_bytes == pytest.approx(3.66, abs=0.01)


def test_shipped_kinds_have_the_figures_of_the_datasheets():
    """Roofline and emulator read one table. The figures stand here again, so that a slip in the table is seen."""
    assert {name: gpu.bandwidth_bytes_per_s for name, gpu in GPU_KINDS.items()} == {
        "l4": 300e9, "a100": 2.039e12, "h100": 3.35e12, "h200": 4.8e12, "b200": 8e12, "l40s": 864e9,
        "a10": 600e9, "rtx_4090": 1.008e12, "mi300x": 5.3e12,
    }
    assert {name: (gpu.flops(2), gpu.flops(1)) for name, gpu in GPU_KINDS.items()} == {
        "l4": (121e12, 242e12), "a100": (312e12, 312e12), "h100": (989e12, 1979e12), "h200": (989e12, 1979e12),
        "b200": (2250e12, 4500e12), "l40s": (362e12, 733e12), "a10": (125e12, 125e12), "rtx_4090": (165.2e12, 330.3e12),
        "mi300x": (1307.4e12, 2614.9e12),
    }
    assert {name: (gpu.nvml_memory_gib, gpu.cuda_memory_gib) for name, gpu in GPU_KINDS.items()} == {
        "l4": (22.5, 22.03), "a100": (80.0, 79.15), "h100": (80.0, 79.19), "h200": (140.4, 139.81),
        "b200": (179.06, 178.35), "l40s": (44.99, 44.53), "a10": (22.49, 21.99), "rtx_4090": (23.99, 23.64),
        "mi300x": (191.98, 191.98),
    }


def bound_of(spec, kind="h200", **facts):
    shape = SHAPES.get(spec.model)
    return latency_bound(spec.on(kind), ResolvedModel("", "dummy", shape, spec.model), facts)


@pytest.mark.parametrize("kind", list(GPU_KINDS))
def test_latency_bound_excludes_weights_in_l2_cache(kind):
    bound = bound_of(vllm("llama-3.1-8b"), kind)
    cached_ms = GPU_KINDS[kind].cache_bytes / GPU_KINDS[kind].bandwidth_bytes_per_s * 1e3
    assert bound.step_ns / 1e6 == pytest.approx(decode_floor_ms("llama-3.1-8b", kind) - cached_ms)
    # 6.98e9 parameters in the layers' matrices, two FLOPs each.
    assert bound.prompt_token_ns == pytest.approx(2 * 6.979e9 / GPU_KINDS[kind].flops(2) * 1e9, rel=1e-3)
    assert (bound.gpus, bound.tokens_per_step) == (kind.upper(), 1)


@pytest.mark.parametrize(("spec", "step", "prompt"), [
    (vllm("llama-3.1-70b", tensor_parallel_size=4), 4, 4),
    (sglang("llama-3.1-70b", tp=4), 4, 4),
    (vllm("llama-3.1-70b", tensor_parallel_size=2, pipeline_parallel_size=2), 2, 4),  # stages follow one another
    (vllm("llama-3.1-70b", data_parallel_size=2), 1, 2),
    (vllm("mixtral-8x7b", tensor_parallel_size=2, data_parallel_size=2, enable_expert_parallel=True), 4, 4),
    (vllm("llama-3.1-70b", quantization="fp8"), 2, 1979 / 989),
])
def test_parallel_gpus_and_quantization_reduce_latency_bound(spec, step, prompt):
    alone, bound = bound_of(vllm(spec.model)), bound_of(spec)
    cached_ns = GPU_KINDS["h200"].cache_bytes / GPU_KINDS["h200"].bandwidth_bytes_per_s * 1e9
    assert bound.step_ns + cached_ns == pytest.approx((alone.step_ns + cached_ns) / step)
    assert bound.prompt_token_ns == pytest.approx(alone.prompt_token_ns / prompt)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_latency_bound_of_int4_reads_packed_weights_and_allows_8_bit_arithmetic(method):
    shape, bound = SHAPES[f"llama-3.1-8b-{method}-int4"], bound_of(vllm(f"llama-3.1-8b-{method}-int4"))
    gpu = GPU_KINDS["h200"]
    assert bound.step_ns == pytest.approx((shape.decode_bytes - gpu.cache_bytes) / gpu.bandwidth_bytes_per_s * 1e9)
    assert bound.prompt_token_ns == pytest.approx(shape.prompt_flops / gpu.flops(1) * 1e9)
    assert bound.step_ns < bound_of(vllm("llama-3.1-8b", quantization="fp8")).step_ns


@pytest.mark.parametrize(("spec", "facts", "most"), [
    (vllm("llama-3.1-8b", speculative_config={"method": "ngram", "num_speculative_tokens": 4}), {}, 5),
    (sglang("llama-3.1-8b", speculative_algorithm="EAGLE", speculative_num_draft_tokens=8), {}, 9),
    (sglang("llama-3.1-8b", speculative_algorithm="NGRAM"), {"speculative_num_draft_tokens": "12"}, 13),
])
def test_maximum_tokens_per_step_follow_speculation_flags(spec, facts, most):
    assert bound_of(spec, **facts).tokens_per_step == most


@pytest.mark.parametrize(("spec", "kind"), [
    (vllm("llama-3.1-8b"), "cpu"),
    (vllm("llama-3.1-8b"), "other-gpu"),
    (vllm("org/model"), "h200"),
    (vllm("llama-3.1-8b", quantization="awq"), "h200"),
    (vllm("llama-3.1-8b-awq-int4", quantization="awq_marlin"), "h200"),
    (vllm("llama-3.1-8b", hf_overrides={"num_hidden_layers": 2}), "h200"),
    (vllm("llama-3.1-8b", speculative_config={"method": "suffix"}), "h200"),
    (vllm("llama-3.1-8b", prefill_context_parallel_size=2), "h200"),
])
def test_latency_bound_is_unknown_for_unknown_model_gpu_or_flag(spec, kind):
    assert bound_of(spec, kind) is None


def test_endpoint_has_no_latency_bound():
    assert latency_bound(endpoint("http://h:1", model="llama-3.1-8b"), None, {}) is None


@pytest.mark.parametrize("arguments", [
    ("llama-3.1-8b", "cpu", 1), ("nobody", "h200", 1), ("tiny", "h200", 0), ("tiny", "h200", "2"),
    ("tiny", "h200", None), (["tiny"], "h200", 1), ("tiny", {"h200": 1}, 1), (None, None, 1),
])
def test_decode_floor_of_unknown_model_or_kind_is_refused(arguments):
    model, kind, gpus = arguments
    with pytest.raises(SpecError, match="decode_floor_ms"):
        decode_floor_ms(model, kind, gpus=gpus)
    if gpus == 1:
        with pytest.raises(SpecError, match="prefill_peak_per_s"):
            prefill_peak_per_s(model, kind)


def test_negative_number_of_cached_tokens_is_refused():
    with pytest.raises(SpecError, match="kv_tokens must be at least 0"):
        decode_floor_ms("llama-3.1-8b", "h200", kv_tokens=-1)
