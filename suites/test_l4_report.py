"""An L4 tuned in eight steps, with Phi-4-mini: each step's flags (a) against those of the step before (b).

500 requests, 365 tokens in and out ± 40 %, 50/s, at most 250 in flight. docs/evidence/suite_limits.md derives claims.
A step without a derived direction is REPORTED. The report measured 1.39 times the throughput with suffix drafts
(step 5), and 8.3 tokens a step with 16, 12 and 8 drafts alike. Acceptance depends on texts, so it is stated here.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_llmperf import EngineSpec, Perf, poisson, random_tokens, vllm

LOAD = random_tokens(input=(219, 511), output=(219, 511), arrivals=poisson(50).at_most(250), requests=500)
RECORDED = ("request_throughput", "output_throughput", "ttft_mean", "tpot_mean", "itl_mean")
# The report tunes throughput. TTFT is anything from one prefill to a queue of 250, and no step limits it.
GAIN, PRICES = "output_throughput(a) / output_throughput(b) >= 1", {"ttft_p50": 1000.0, "tpot_mean": 10.0}


def suffix(drafts: int, accepted: float = 8.3) -> dict[str, object]:
    """Suffix decoding with the report's tokens a step, the one without a draft included."""
    return {"method": "suffix", "num_speculative_tokens": drafts, "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": accepted}


def engine_of(step: int) -> EngineSpec:
    drafts = {5: 16, 6: 12, 7: 12, 8: 8}.get(step)
    flags: dict[str, Any] = {"kv_cache_dtype": "fp8"} if step >= 3 else {}
    flags |= {} if drafts is None else {"speculative_config": suffix(drafts)}
    seats = {1: 256, 2: 128, 3: 128, 7: 512, 8: 512}.get(step, 256)
    return vllm("phi-4-mini", max_model_len=1024, gpu_memory_utilization=0.9, max_num_seqs=seats, **flags)


def claim_of_step(perf: Perf, step: int, text: str, *mechanism: str, prices: Mapping[str, float] = PRICES) -> None:
    perf.claim(engine_of(step), engine_of(step - 1), LOAD, text, mechanism=mechanism, allow=prices, may_preempt=True)


@pytest.mark.l4
def test_step_1_defaults_overfill_memory_of_an_l4(perf: Perf) -> None:
    # A preempted stream waits for the end of others. A client gives up a stream that stands still for 30 s.
    perf.check(perf.measure(engine_of(1), LOAD, may_preempt=True), "preemptions >= 1", "error_rate <= 10%")


@pytest.mark.h200
def test_step_1_defaults_fit_memory_of_an_h200(perf: Perf) -> None:
    perf.check(perf.measure(engine_of(1), LOAD, may_preempt=True), "preemptions == 0", "error_rate == 0")


@pytest.mark.l4
def test_step_2_fewer_sequences_keep_streams_flowing(perf: Perf) -> None:
    # Requests that fail on side B have no TPOT.
    claim_of_step(perf, 2, "largest_stall_p90(b) / largest_stall_p90(a) >= 2",
                  "preemptions(a) == 0", "error_rate(a) == 0", "preemptions(b) >= 1", "error_rate(b) <= 10%",
                  prices={"ttft_p50": PRICES["ttft_p50"]})


@pytest.mark.l4
@pytest.mark.h200
def test_step_3_fp8_doubles_the_cache(perf: Perf) -> None:
    b, a = (perf.measure(engine_of(step), LOAD, may_preempt=True) for step in (2, 3))
    perf.compare("kv_blocks(a) / kv_blocks(b) >= 1.9", *(f"{metric}(a) / {metric}(b)" for metric in RECORDED), a=a, b=b)
    perf.check(a, "preemptions == 0", "error_rate == 0")


@pytest.mark.l4
def test_step_4_freed_memory_serves_more_sequences(perf: Perf) -> None:
    claim_of_step(perf, 4, GAIN, "preemptions(a) == 0", "preemptions(b) == 0")


@pytest.mark.l4
def test_step_5_suffix_drafts_of_the_report_raise_throughput(perf: Perf) -> None:
    claim_of_step(perf, 5, GAIN, "spec_acceptance_length(a) >= 7.8")


@pytest.mark.h200
@pytest.mark.parametrize("step", [2, 4, 5, *(pytest.param(step, marks=pytest.mark.l4) for step in (6, 7, 8))])
def test_steps_without_derived_direction_are_reported(perf: Perf, step: int) -> None:
    b, a = (perf.measure(engine_of(each), LOAD, may_preempt=True) for each in (step - 1, step))
    perf.compare(*(f"{metric}(a) / {metric}(b)" for metric in (*RECORDED, "kv_blocks")), a=a, b=b)
