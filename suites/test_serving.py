"""Serving under a steady load: what a user of the service feels."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, Server, by_kind, poisson, random_tokens, vllm

CASES = by_kind(
    l4={"model": "phi-4-mini", "context": 16384, "rate": 1, "ttft": "1s", "tpot": "60ms", "stall": "400ms"},
    a100={"model": "llama-3.1-8b", "context": 16384, "rate": 5, "ttft": "500ms", "tpot": "30ms", "stall": "250ms"},
    h100={"model": "llama-3.1-8b", "context": 16384, "rate": 10, "ttft": "300ms", "tpot": "20ms", "stall": "52ms"},
    h200={"model": "llama-3.1-8b", "context": 16384, "rate": 10, "ttft": "300ms", "tpot": "20ms", "stall": "52ms"},
)


@CASES
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=case.context))
def test_answers_come_in_time(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    run = perf.measure(engine, random_tokens(input=1024, output=128, arrivals=poisson(case.rate), requests=100))
    perf.check(
        run,
        f"ttft_p95 <= {case.ttft}",
        f"tpot_p95 <= {case.tpot}",
        f"largest_stall_p75 <= {case.stall}",
        "error_rate == 0",
        baseline=True,
    )
