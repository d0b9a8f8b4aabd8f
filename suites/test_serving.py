"""Serving under a steady load: what a user of the service feels."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import EngineSpec, Perf, Server, by_kind, poisson, random_tokens, vllm

CASES = by_kind(
    l4={"model": "phi-4-mini", "context": 16384, "rate": 1, "ttft": "1s", "tpot": "60ms"},
    a100={"model": "llama-3.1-8b", "context": 16384, "rate": 5, "ttft": "500ms", "tpot": "30ms"},
    h100={"model": "llama-3.1-8b", "context": 16384, "rate": 10, "ttft": "300ms", "tpot": "20ms"},
    h200={"model": "llama-3.1-8b", "context": 16384, "rate": 10, "ttft": "300ms", "tpot": "20ms"},
)


def serving(case: SimpleNamespace) -> EngineSpec:
    return vllm(case.model, max_model_len=case.context)


@CASES
@pytest.mark.engine(serving)
def test_answers_come_in_time(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    run = perf.measure(engine, random_tokens(input=1024, output=128, arrivals=poisson(case.rate), requests=100))
    perf.check(run, f"ttft_p95 <= {case.ttft}", f"tpot_p95 <= {case.tpot}", "error_rate == 0")
