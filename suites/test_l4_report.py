"""An L4 tuned in eight steps, with Phi-4-mini: each step's flags (a) against those of the step before (b).

500 requests, 365 tokens in and out ± 40 %, 50/s, at most 250 in flight. An L4 has all 250 in flight; an H200 serves the
50/s with 55 to 146. So a step may claim another thing on each GPU. docs/evidence/suite_limits.md derives the claims. A
step without a derived direction is REPORTED, and so are the metrics of the report beside a claim.
"""

from dataclasses import dataclass
from typing import Any

from pytest_llmperf import ClaimResult, EngineSpec, Measurement, Perf, by_kind, poisson, random_tokens, vllm


@dataclass(frozen=True)
class Case:
    model: str = "phi-4-mini"


ON_L4, ON_H200, ON_BOTH = by_kind(l4=Case()), by_kind(h200=Case()), by_kind(l4=Case(), h200=Case())
LOAD = random_tokens(input=(219, 511), output=(219, 511), arrivals=poisson(50).at_most(250), requests=500)
FP8 = {"kv_cache_dtype": "fp8"}
RECORDED = ("request_throughput", "output_throughput", "ttft_mean", "tpot_mean", "itl_mean")
# The report tunes throughput. TTFT is anything from one prefill to a queue of 250, and no step limits it.
PRICES = {"ttft_p50": 1000.0, "tpot_mean": 10.0}


def suffix(drafts: int) -> dict[str, object]:
    """Suffix decoding of which the engine accepts 3 tokens a step, at any number of drafts."""
    return {"speculative_config": {
        "method": "suffix", "num_speculative_tokens": drafts, "rejection_sample_method": "synthetic",
        "synthetic_acceptance_length": 3.0,
    }}  # fmt: skip


def accepted(metric: str) -> list[str]:
    return [f"{metric} >= 2.75", f"{metric} <= 3.25"]


FLAGS_OF_STEP: dict[int, dict[str, Any]] = {
    1: {"max_num_seqs": 256},
    2: {"max_num_seqs": 128},
    3: {"max_num_seqs": 128, **FP8},
    4: {"max_num_seqs": 256, **FP8},
    5: {"max_num_seqs": 256, **FP8, **suffix(16)},
    6: {"max_num_seqs": 256, **FP8, **suffix(12)},
    7: {"max_num_seqs": 512, **FP8, **suffix(12)},
    8: {"max_num_seqs": 512, **FP8, **suffix(8)},
}


def engine_of(case: Case, step: int) -> EngineSpec:
    return vllm(case.model, max_model_len=1024, gpu_memory_utilization=0.9, **FLAGS_OF_STEP[step])


def report(perf: Perf, a: Measurement | None, b: Measurement | None) -> None:
    if a is not None and b is not None:
        perf.compare(*(f"{metric}(a) / {metric}(b)" for metric in RECORDED), a=a, b=b)


def measure_step(case: Case, perf: Perf, step: int) -> tuple[Measurement, Measurement]:
    """A step and the step before, whose server runs since the test of that step; their ratios are reported."""
    b, a = (perf.measure(engine_of(case, each), LOAD, may_preempt=True) for each in (step - 1, step))
    report(perf, a, b)
    return a, b


def claim_of_step(case: Case, perf: Perf, step: int, text: str, *mechanism: str) -> ClaimResult:
    claim = perf.claim(engine_of(case, step), engine_of(case, step - 1), LOAD, text, mechanism=mechanism, allow=PRICES,
                       may_preempt=True)
    report(perf, claim.a, claim.b)
    return claim


@ON_L4
def test_step_1_defaults_overfill_memory_of_an_l4(case: Case, perf: Perf) -> None:
    run = perf.measure(engine_of(case, 1), LOAD, may_preempt=True)
    # A preempted stream waits for the end of others. A client gives up a stream that stands still for 30 s.
    perf.check(run, "preemptions >= 1", "error_rate <= 10%")


@ON_H200
def test_step_1_defaults_fit_memory_of_an_h200(case: Case, perf: Perf) -> None:
    run = perf.measure(engine_of(case, 1), LOAD, may_preempt=True)
    perf.check(run, "preemptions == 0", "error_rate == 0")


@ON_L4
def test_step_2_fewer_sequences_keep_streams_flowing(case: Case, perf: Perf) -> None:
    # Requests that fail on side B have no latency, so the recorded metrics are not compared.
    perf.claim(
        engine_of(case, 2), engine_of(case, 1), LOAD, "largest_stall_p90(b) / largest_stall_p90(a) >= 2",
        mechanism=["preemptions(a) == 0", "error_rate(a) == 0", "preemptions(b) >= 1", "error_rate(b) <= 10%"],
        allow={"ttft_p50": PRICES["ttft_p50"]}, may_preempt=True,
    )  # fmt: skip


@ON_H200
def test_step_2_fewer_sequences_are_reported(case: Case, perf: Perf) -> None:
    measure_step(case, perf, 2)


@ON_BOTH
def test_step_3_fp8_doubles_the_cache(case: Case, perf: Perf) -> None:
    a, b = measure_step(case, perf, 3)
    perf.compare("kv_blocks(a) / kv_blocks(b) >= 1.9", a=a, b=b)
    perf.check(a, "preemptions == 0", "error_rate == 0")


@ON_L4
def test_step_4_freed_memory_serves_more_sequences(case: Case, perf: Perf) -> None:
    claim_of_step(case, perf, 4, "output_throughput(a) / output_throughput(b) >= 1", "preemptions(a) == 0",
                  "preemptions(b) == 0")


@ON_H200
def test_step_4_more_sequences_are_reported(case: Case, perf: Perf) -> None:
    measure_step(case, perf, 4)


@ON_L4
def test_step_5_sixteen_drafts_cost_throughput(case: Case, perf: Perf) -> None:
    claim_of_step(case, perf, 5, "output_throughput(b) / output_throughput(a) >= 1",
                  *accepted("spec_acceptance_length(a)"))


@ON_H200
def test_step_5_sixteen_drafts_do_not_pay_in_a_crowd(case: Case, perf: Perf) -> None:
    claim_of_step(case, perf, 5, "tpot_mean(a) / tpot_mean(b) >= 1", *accepted("spec_acceptance_length(a)"))


@ON_BOTH
def test_step_6_tree_depth_limits_sixteen_drafts_to_twelve(case: Case, perf: Perf) -> None:
    """2 accepted tokens of 12 drafted are 17 %, of 16 they would be 13 %."""
    for run in measure_step(case, perf, 6):
        perf.check(run, "spec_acceptance_rate >= 15%", *accepted("spec_acceptance_length"))


@ON_BOTH
def test_step_7_seats_beyond_requests_in_flight_are_reported(case: Case, perf: Perf) -> None:
    measure_step(case, perf, 7)


@ON_L4
def test_step_8_eight_drafts_serve_more_tokens_than_twelve(case: Case, perf: Perf) -> None:
    claim_of_step(case, perf, 8, "output_throughput(a) / output_throughput(b) >= 1",
                  *accepted("spec_acceptance_length(a)"), *accepted("spec_acceptance_length(b)"))


@ON_H200
def test_step_8_eight_drafts_waste_less_than_twelve(case: Case, perf: Perf) -> None:
    claim_of_step(case, perf, 8, "tpot_mean(b) / tpot_mean(a) >= 1",
                  *accepted("spec_acceptance_length(a)"), *accepted("spec_acceptance_length(b)"))
