"""Mixtures of experts on two GPUs: whole experts on each, or a part of every expert on both."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, by_kind, closed, random_tokens, vllm

MIXTRAL = {"model": "mixtral-8x7b", "context": 8192, "together": 16, "slower": 1.4}
CASES = by_kind(a100=MIXTRAL, h100=MIXTRAL, h200=MIXTRAL)


@CASES
@pytest.mark.gpus(2)
def test_whole_experts_keep_up_with_cut_ones(case: SimpleNamespace, perf: Perf) -> None:
    if perf.emulated:
        pytest.skip("the emulator gives every GPU the same share of the tokens, which is what is in question")
    cut = vllm(case.model, max_model_len=case.context, tensor_parallel_size=2)
    whole = cut.with_flags(enable_expert_parallel=True)
    perf.claim(
        whole,
        cut,
        random_tokens(input=512, output=128, arrivals=closed(case.together), requests=3 * case.together),
        f"tpot_mean(a) / tpot_mean(b) <= {case.slower}",
        mechanism=["expert_parallel(a) == 1", "expert_parallel(b) == 0"],
        allow={"ttft_p50": 1.5},
    )
