"""A capacity plan for conversations: a 70B model in fp8 on an H200, and Phi-4-mini on an L4.

Ten shared starters of 3,500 to 4,000 tokens, five turns, answers of 555 to 1,008 tokens, TTFT p99 < 1000 ms and TPOT
p99 < 60 ms. docs/evidence/suite_limits.md derives the claims from the hardware, before the first run.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pytest_llmperf import (
    Arrivals,
    EngineSpec,
    Perf,
    Workload,
    by_kind,
    constant,
    exponential,
    multi_turn,
    poisson,
    vllm,
)

TURNS = 5
LIMITS = ["ttft_p99 <= 1000ms", "tpot_p99 <= 60ms"]


@dataclass(frozen=True)
class Case:
    model: str
    draft: str
    #: Conversations of five turns that begin in a second.
    rate: float
    more_blocks: float
    quantization: str | None = None
    drafted_conversations: int = 10
    drafted_turns: int = 2


H200 = Case("llama-3.1-70b", "eagle3-llama-3.1-70b", rate=0.15, more_blocks=1.1, quantization="fp8")
L4 = Case("phi-4-mini", "eagle3-phi-4-mini", rate=0.03, more_blocks=1.06, drafted_conversations=24, drafted_turns=3)
CASES = by_kind(l4=L4, h200=H200)
ON_H200 = by_kind(h200=H200)  # on an L4 the queue of few seats outlasts a client's 120 s


def plan_of(case: Case) -> EngineSpec:
    plan = vllm(case.model, max_model_len=16384, gpu_memory_utilization=0.9, max_num_batched_tokens=8192)
    return plan.with_flags(quantization=case.quantization) if case.quantization else plan


def talk(case: Case, conversations: int, *, turns: int = 2, load: float = 1.0, starters: int = 2,
         arrivals: Callable[[float], Arrivals] = poisson) -> Workload:
    """Conversations at `load` times the plan's requests/s: those of fewer turns begin more often."""
    return multi_turn(
        conversations=conversations, turns=turns, arrivals=arrivals(load * case.rate * TURNS / turns),
        starters=starters, starter=(3500, 4000), input=(8, 24), output=(555, 1008), think_s=exponential(2),
        reply="server",
    )  # fmt: skip


@ON_H200
def test_plan_serves_its_rate_within_both_limits(case: Case, perf: Perf) -> None:
    # A load beyond the plan's rate has the requests that a 99th percentile needs in less time.
    load = talk(case, 45, turns=TURNS, load=4 / 3, starters=10, arrivals=constant)
    run = perf.measure(plan_of(case), load, until=LIMITS)
    # Percentiles do not see a cache that loses answers, nor a scheduler that pauses for less than a second.
    perf.check(run, *LIMITS, "hit_rate_turn2plus >= 95%", "largest_stall_p50 <= 60ms")


@CASES
def test_small_chunks_shorten_the_stall_by_a_cold_starter(case: Case, perf: Perf) -> None:
    default = plan_of(case)
    perf.claim(
        default.with_flags(max_num_batched_tokens=2048),
        default,
        talk(case, 10, turns=1, load=0.5, starters=10),
        "largest_stall_p50(b) / largest_stall_p50(a) >= 1",
        mechanism=["chunk_budget(a) <= 2048", "chunk_budget(b) >= 8192"],
        allow={"ttft_p50": 2.0},
    )


@CASES
def test_larger_memory_share_becomes_blocks(case: Case, perf: Perf) -> None:
    large = perf.measure(plan_of(case).with_flags(gpu_memory_utilization=0.95), talk(case, 6), runs=2)
    default = perf.measure(plan_of(case), talk(case, 6), runs=2)
    perf.compare(f"kv_blocks(large) / kv_blocks(default) >= {case.more_blocks}", "ttft_p50(large) / ttft_p50(default)",
                 "tpot_mean(large) / tpot_mean(default)", large=large, default=default)
    perf.check(large, "preemptions == 0", "error_rate == 0")


@CASES
def test_eagle3_halves_tpot_at_moderate_load(case: Case, perf: Perf) -> None:
    drafts = {"method": "eagle3", "model": case.draft, "num_speculative_tokens": 3,
              "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.6}
    perf.claim(
        plan_of(case).with_flags(speculative_config=drafts),
        plan_of(case),
        talk(case, case.drafted_conversations, turns=case.drafted_turns),
        "tpot_mean(b) / tpot_mean(a) >= 1.2",
        mechanism=["spec_acceptance_length(a) >= 2.5", "spec_acceptance_length(a) <= 2.7"],
        allow={"ttft_p50": 2.0},
    )


@ON_H200
def test_few_seats_make_turns_queue(case: Case, perf: Perf) -> None:
    perf.claim(
        plan_of(case).with_flags(max_num_seqs=256),
        plan_of(case).with_flags(max_num_seqs=8),
        talk(case, 16, load=4),
        "ttft_p50(b) / ttft_p50(a) >= 5",
        mechanism=["queue_time_mean(a) <= 500ms", "queue_time_mean(b) >= 1s"],
        allow={"tpot_mean": 5.0},
    )
