"""The roofline: one stream decodes as fast as its weights can be read, nearly, and never faster."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Measurement, Perf, Server, by_kind, closed, decode_floor_ms, random_tokens, vllm

# `share`: of the memory's peak bandwidth, at least; the rest is launches, attention and what surrounds a step.
DENSE = by_kind(
    l4={"model": "phi-4-mini", "context": 16384, "share": 0.7},
    a100={"model": "llama-3.1-8b", "context": 16384, "share": 0.6},
    h100={"model": "llama-3.1-8b", "context": 16384, "share": 0.6},
    h200={"model": "llama-3.1-8b", "context": 16384, "share": 0.55},
)
# 93 GB of weights fit on one H200. All experts would take 3.7 times as long to read as the two that a token passes.
MIXTURE = by_kind(h200={"model": "mixtral-8x7b", "context": 8192, "share": 0.45})


def decodes_near_the_floor(case: SimpleNamespace, engine: Server, perf: Perf) -> Measurement:
    run = perf.measure(engine, random_tokens(input=128, output=128, arrivals=closed(1), requests=12))
    floor_ms = decode_floor_ms(case.model, case.kind)
    perf.check(run, f"itl_p50 <= {floor_ms / case.share:.3f}ms", "error_rate == 0")
    fastest_ms = min(value for value in run.values("itl_p50") if value is not None)
    assert fastest_ms > floor_ms, f"{fastest_ms:.3g} ms a step is less than it takes to read the weights"
    return run


@DENSE
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=case.context))
def test_decoding_nears_the_memory_bandwidth(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    perf.compare_with_baseline(decodes_near_the_floor(case, engine, perf), primaries=["itl_p50"])


@MIXTURE
@pytest.mark.engine(lambda case: vllm(case.model, max_model_len=case.context))
def test_one_stream_reads_its_active_experts_only(case: SimpleNamespace, engine: Server, perf: Perf) -> None:
    decodes_near_the_floor(case, engine, perf)
