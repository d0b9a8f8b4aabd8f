"""Quantised weights: speed beside right answers."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, sharegpt, vllm

MODELS = "suites/models"
TASK = "suites/tasks/sums.yaml"
CHAINS = "suites/tasks/sums_chains.json"
# The model is so small that the engine's own work fills a step: fewer bits may cost time, and not right answers.
CASES = by_kind(**{kind: {"slower": 1.5, "points": 0.01} for kind in ("cpu", "h100", "h200")})
METHODS = pytest.mark.parametrize("method", ["gptq", "awq"])
AGREEING = by_kind(cpu={}, a100={}, h100={}, h200={})


def skip_emulated(perf: Perf) -> None:
    if perf.emulated:
        pytest.skip("the emulator invents its answers, so no share of them is right or wrong")


def trained(name: str) -> EngineSpec:
    return vllm(f"{MODELS}/{name}", max_model_len=512)


@CASES
@pytest.mark.parametrize("weights", ["int8", "gptq", "awq"])
def test_quantised_weights_answer_as_well(case: SimpleNamespace, perf: Perf, weights: str) -> None:
    skip_emulated(perf)
    perf.claim(
        trained(f"sums-{weights}"),
        trained("sums"),
        sharegpt(path=CHAINS, arrivals=closed(4), requests=16),
        f"tpot_mean(a) / tpot_mean(b) <= {case.slower}",
        allow={"ttft_p50": 2.0},
        guards={f"accuracy({TASK})": case.points},
    )


@CASES
def test_sums_are_right_in_part(case: SimpleNamespace, perf: Perf) -> None:
    skip_emulated(perf)
    answers = perf.accuracy(trained("sums"), TASK, at_least=0.5)
    assert answers is not None
    assert answers.share <= 0.95, f"{case.kind}: too few questions are wrong, so a loss of accuracy would not show"


@AGREEING
@METHODS
def test_four_bit_weights_choose_tokens_of_original_weights(case: SimpleNamespace, perf: Perf, method: str) -> None:
    """The original model drafts for its quantised copy: a draft is accepted where both choose the same token."""
    if perf.emulated:
        pytest.skip(f"the emulator of {case.kind} accepts drafts by a rate that the test would have to state")
    draft = {"method": "draft_model", "model": f"{MODELS}/sums", "num_speculative_tokens": 3}
    engine = trained(f"sums-{method}").with_flags(async_scheduling=False, speculative_config=draft)
    run = perf.measure(engine, sharegpt(path=CHAINS, arrivals=closed(4), requests=16))
    perf.check(run, "spec_acceptance_rate >= 90%", "error_rate == 0")
