"""Tensor parallelism: it serves everywhere; that it scales is judged on GPUs, where there is something to gain."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, by_kind, closed, poisson, random_tokens, vllm, with_flags

CASES = by_kind(
    a100={"model": "llama-3.1-8b", "context": 16384, "rate": 4, "faster": 1.2, "prefill": 1.3},
    h100={"model": "llama-3.1-8b", "context": 16384, "rate": 8, "faster": 1.2, "prefill": 1.3},
    h200={"model": "llama-3.1-8b", "context": 16384, "rate": 8, "faster": 1.2, "prefill": 1.3},
)


@by_kind(cpu={"model": "tiny", "context": 4096})
def test_two_ranks_serve(case: SimpleNamespace, perf: Perf) -> None:
    engine = vllm(case.model, max_model_len=case.context, tensor_parallel_size=2)
    run = perf.measure(engine, random_tokens(input=100, output=16, arrivals=closed(1), requests=12), runs=1)
    perf.check(run, "error_rate == 0")


@CASES
@pytest.mark.gpus(2)
def test_two_gpus_decode_faster_than_one(case: SimpleNamespace, perf: Perf) -> None:
    one = vllm(case.model, max_model_len=case.context)
    two = with_flags(one, tensor_parallel_size=2)
    answers = random_tokens(input=1024, output=128, arrivals=poisson(case.rate), requests=100)
    perf.claim(two, one, answers, f"tpot_mean(b) / tpot_mean(a) >= {case.faster}", baseline=True)


@CASES
@pytest.mark.gpus(4)
def test_four_gpus_prefill_faster_than_one(case: SimpleNamespace, perf: Perf) -> None:
    # All-reduces of a long prompt are megabytes each: here the link between the GPUs shows.
    one = vllm(case.model, max_model_len=case.context)
    four = with_flags(one, tensor_parallel_size=4)
    prompts = random_tokens(input=8000, output=8, arrivals=closed(1), requests=12)
    perf.claim(
        four, one, prompts, f"ttft_p50(b) / ttft_p50(a) >= {case.prefill}", baseline=True, primaries=["ttft_p50"]
    )
