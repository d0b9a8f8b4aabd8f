"""Mixtures of experts on two GPUs: their speed, their memory, and the share of the busiest rank."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, by_kind, closed, random_tokens, sglang, vllm

MIXTRAL = {"model": "mixtral-8x7b", "context": 8192, "together": 16, "slower": 1.4}
CASES = by_kind(a100=MIXTRAL, h100=MIXTRAL, h200=MIXTRAL)
# Memory of one GPU as CUDA reports it.
MEMORY = by_kind(
    a100=MIXTRAL | {"memory_gib": 79.15},
    h100=MIXTRAL | {"memory_gib": 79.19},
    h200=MIXTRAL | {"memory_gib": 139.81},
)
ALL_EXPERTS_GIB = 86.99  # 46.70 billion parameters in bfloat16; the 12.88 billion that a token passes take 23.99 GiB
BESIDE_GIB = 6  # for activations, CUDA graphs and NCCL
# SGLang from 0.5.18 on counts tokens by rank with the flag below. Its code of Mixtral counts nothing.
BALANCE = {"model": "qwen3-30b-a3b", "context": 8192, "crowd": 64}
BALANCES = by_kind(a100=BALANCE, h100=BALANCE, h200=BALANCE)


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


@MEMORY
@pytest.mark.gpus(2)
def test_all_experts_occupy_memory_whole_or_cut(case: SimpleNamespace, perf: Perf) -> None:
    """Every expert lies in GPU memory, although a token passes two of eight.

    vLLM takes 92 % of each GPU. Half of all weights are 43.5 GiB. A block of 16 tokens is 1 MiB on each of two GPUs.
    So at most 1024 × (0.92 × memory − 43.5) blocks fit: 87,173 on an H200. Beside the active experts alone 119,429
    would fit. Four whole experts are as large as eight halves, so both placements leave the same memory.
    """
    cut = vllm(case.model, max_model_len=case.context, tensor_parallel_size=2)
    whole = cut.with_flags(enable_expert_parallel=True)
    crowd = random_tokens(input=512, output=64, arrivals=closed(case.together), requests=2 * case.together)
    most = 1024 * (0.92 * case.memory_gib - ALL_EXPERTS_GIB / 2)
    within = [f"kv_blocks <= {most:.0f}", f"kv_blocks >= {most - 1024 * BESIDE_GIB:.0f}"]
    halves = perf.measure(cut, crowd, runs=2)
    perf.check(halves, *within, "expert_parallel == 0", "error_rate == 0")
    experts = perf.measure(whole, crowd, runs=2)
    perf.check(experts, *within, "expert_parallel == 1", "error_rate == 0")
    perf.compare(*(f"kv_blocks(experts) / kv_blocks(halves) {limit}" for limit in (">= 0.97", "<= 1.03")),
                 experts=experts, halves=halves)


@BALANCES
@pytest.mark.gpus(2)
def test_tokens_of_crowd_balance_ranks_better_than_tokens_of_one_stream(case: SimpleNamespace, perf: Perf) -> None:
    """More tokens in a step give the two ranks more equal shares.

    Each token chooses 8 of 128 experts, of which each rank holds 64. The busiest of two ranks gets between half and all
    of the choices, so the balance is between 50 and 100 %. The largest sum is at most the sum of the largest shares, so
    the balance of many tokens is at least that of each alone. Dummy weights choose at random: the hypergeometric
    distribution predicts 81 % for one token in a step and 97 % for 64. The limit lies between the two.
    """
    if perf.emulated:
        pytest.skip("the emulator has no router, and gives every GPU the same share of the tokens")
    engine = sglang(
        case.model, context_length=case.context, tp_size=2, ep_size=2, expert_balancedness_report_mode="prometheus"
    )
    stream = random_tokens(input=64, output=128, arrivals=closed(1), requests=12)
    alone = perf.measure(engine, stream)
    perf.check(alone, "expert_balance >= 50%", "expert_balance <= 92%", "expert_parallel == 1", "error_rate == 0")
    streams = random_tokens(input=64, output=128, arrivals=closed(case.crowd), requests=3 * case.crowd)
    crowd = perf.measure(engine, streams)
    perf.check(crowd, "expert_balance >= 92%", "error_rate == 0")
