"""Mixtures of experts on two GPUs: their speed, their memory, and the share of the busiest rank."""

from dataclasses import dataclass

import pytest

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, random_tokens, sglang, vllm


@dataclass(frozen=True)
class Case:
    #: KV blocks of 16 tokens beside half of the weights: docs/evidence/suite_limits.md.
    most_blocks: int
    model: str = "mixtral-8x7b"
    together: int = 16


@dataclass(frozen=True)
class Balance:
    model: str = "qwen3-30b-a3b"
    crowd: int = 64


CASES = by_kind(a100=Case(30_027), h100=Case(30_064), h200=Case(87_173))


def cut_experts(case: Case) -> EngineSpec:
    return vllm(case.model, max_model_len=8192, tensor_parallel_size=2)


def whole_experts(case: Case) -> EngineSpec:
    return cut_experts(case).with_flags(enable_expert_parallel=True)


@CASES
@pytest.mark.gpus(2)
@pytest.mark.not_emulated("the emulator gives every GPU the same share of the tokens, which is what is in question")
def test_whole_experts_keep_up_with_cut_ones(case: Case, perf: Perf) -> None:
    perf.claim(
        whole_experts(case),
        cut_experts(case),
        random_tokens(input=512, output=128, arrivals=closed(case.together), requests=3 * case.together),
        "tpot_mean(a) / tpot_mean(b) <= 1.4",
        mechanism=["expert_parallel(a) == 1", "expert_parallel(b) == 0"],
        allow={"ttft_p50": 1.5},
    )


@CASES
@pytest.mark.gpus(2)
def test_all_experts_occupy_memory_whole_or_cut(case: Case, perf: Perf) -> None:
    """Every expert lies in GPU memory, although a token passes two of eight. Four whole experts are as large as eight
    halves, so both placements leave the same memory, less 6 GiB for activations, CUDA graphs and NCCL."""
    crowd = random_tokens(input=512, output=64, arrivals=closed(case.together), requests=2 * case.together)
    within = [f"kv_blocks <= {case.most_blocks}", f"kv_blocks >= {case.most_blocks - 6 * 1024}"]
    halves = perf.measure(cut_experts(case), crowd, runs=2)
    perf.check(halves, *within, "expert_parallel == 0", "error_rate == 0")
    experts = perf.measure(whole_experts(case), crowd, runs=2)
    perf.check(experts, *within, "expert_parallel == 1", "error_rate == 0")
    perf.compare("kv_blocks(experts) / kv_blocks(halves) >= 0.97", "kv_blocks(experts) / kv_blocks(halves) <= 1.03",
                 experts=experts, halves=halves)


@by_kind(a100=Balance(), h100=Balance(), h200=Balance())
@pytest.mark.gpus(2)
@pytest.mark.not_emulated("the emulator has no router, and gives every GPU the same share of the tokens")
def test_tokens_of_crowd_balance_ranks_better_than_tokens_of_one_stream(case: Balance, perf: Perf) -> None:
    """The busiest of two ranks gets between half and all of the choices of experts. Random choices predict a balance of
    81 % for one token in a step and 97 % for 64. The limit lies between the two."""
    # SGLang from 0.5.18 on counts tokens by rank with this flag. Its code of Mixtral counts nothing.
    engine = sglang(case.model, context_length=8192, tp_size=2, ep_size=2,
                    expert_balancedness_report_mode="prometheus")
    alone = perf.measure(engine, random_tokens(input=64, output=128, arrivals=closed(1), requests=12))
    perf.check(alone, "expert_balance >= 50%", "expert_balance <= 92%", "expert_parallel == 1", "error_rate == 0")
    streams = random_tokens(input=64, output=128, arrivals=closed(case.crowd), requests=3 * case.crowd)
    crowd = perf.measure(engine, streams)
    perf.check(crowd, "expert_balance >= 92%", "error_rate == 0")
