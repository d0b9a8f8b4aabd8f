"""How many blocks fit."""

import pytest

from pytest_llmperf.emulator.cost.capacity import DoesNotFit, kv_blocks, sglang_utilization
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES

LLAMA, H200 = SHAPES["llama-3.1-8b"], GPU_KINDS["h200"]


def blocks(shape=LLAMA, gpu=H200, tp=1, weights="bfloat16", kv="bfloat16", block=16, share=0.92, budget=8192, **more):
    return kv_blocks(shape, gpu, tp, weights, kv, block, share, budget, **more)


def test_emulated_block_count_equals_vllm_on_h200():
    assert blocks() == pytest.approx(57489, rel=0.003)
    assert blocks(tp=2) == pytest.approx(123188, rel=0.003)


def test_verification_of_drafts_takes_memory_of_each_sequence():
    """vLLM 0.26.0 on H200, for Llama-3.1-8B with n-gram drafts and for Phi-4-mini with suffix drafts."""
    assert blocks(drafting=1024) == pytest.approx(55846, rel=0.004)
    none, few, many = (blocks(SHAPES["phi-4-mini"], kv="fp8", share=0.9, drafting=seats) for seats in (0, 256, 512))
    assert (none - few, none - many) == pytest.approx((119997 - 118650, 119997 - 117116), rel=0.1)


def test_fp8_cache_holds_twice_as_many_tokens():
    assert blocks(kv="fp8") == pytest.approx(2 * blocks(), abs=1)


def test_more_gpus_smaller_weights_and_a_smaller_budget_leave_more():
    assert blocks(tp=2) > 2 * blocks()
    assert blocks(weights="fp8") > blocks()
    assert blocks(budget=2048) > blocks()


def test_memory_that_int4_frees_becomes_blocks():
    gptq, awq = SHAPES["llama-3.1-8b-gptq-int4"], SHAPES["llama-3.1-8b-awq-int4"]
    # 16.06 − 5.70 GB in blocks of 2 MiB; AWQ's zero points take 4 bits of each group of 128 weights.
    assert blocks(gptq) - blocks() == pytest.approx(4940, abs=1)
    assert blocks(gptq) - blocks(awq) == pytest.approx(32 * 218103808 / 128 / 2 / 2**21, abs=1)
    assert blocks(awq) > blocks(weights="fp8")


def test_kv_heads_are_copied_if_gpus_outnumber_heads():
    shape = SHAPES["qwen3-235b-a22b"]
    four, eight = (blocks(shape, tp=tp, weights="fp8") for tp in (4, 8))
    assert eight < 2 * four


def test_model_that_does_not_fit_is_refused_with_memory_sizes():
    with pytest.raises(DoesNotFit, match=r"llama-3\.1-70b in bfloat16 on 1 × h100: weights take 131\.\d GiB"):
        blocks(SHAPES["llama-3.1-70b"], GPU_KINDS["h100"])
    with pytest.raises(DoesNotFit, match=r"gptq-int4 in gptq int4 on 1 × l4: weights take 5\.3 GiB"):
        blocks(SHAPES["llama-3.1-8b-gptq-int4"], GPU_KINDS["l4"], share=0.3)


def test_sglang_memory_share_contains_weights_and_cache():
    share = sglang_utilization(H200)
    assert 0.85 < share < 0.92
    tokens = blocks(block=1, share=share, engine="sglang")
    assert tokens * 131072 + LLAMA.weight_bytes("bfloat16") < H200.memory_bytes * share
    assert sglang_utilization(GPU_KINDS["l4"], 2048) > 0.75
