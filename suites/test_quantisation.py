"""Quantised weights: speed beside right answers."""

from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, closed, sharegpt, vllm

TASK = "suites/tasks/sums.yaml"
CHAINS = "suites/tasks/sums_chains.json"
# The model is so small that the engine's own work fills a step: 8 bits may cost time, and may not cost right answers.
CASES = by_kind(cpu={"quantised": "suites/models/sums-int8", "slower": 1.5, "points": 0.01})


@CASES
def test_eight_bit_weights_answer_as_well(case: SimpleNamespace, perf: Perf) -> None:
    plain, quantised = vllm("suites/models/sums", max_model_len=512), vllm(case.quantised, max_model_len=512)
    perf.claim(
        quantised,
        plain,
        sharegpt(path=CHAINS, arrivals=closed(4), requests=16),
        f"tpot_mean(a) / tpot_mean(b) <= {case.slower}",
        allow={"ttft_p50": 2.0},
        guards={f"accuracy({TASK})": case.points},
    )


@CASES
def test_sums_are_right_in_part(case: SimpleNamespace, perf: Perf) -> None:
    answers = perf.accuracy(vllm("suites/models/sums", max_model_len=512), TASK, at_least=0.5)
    assert case.kind == "cpu"
    assert answers is None or answers.share <= 0.95
