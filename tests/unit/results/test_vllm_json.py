"""The result file of `vllm bench serve`, as other tools read it."""

import json
from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from pytest_llmperf.model.record import Outcome
from pytest_llmperf.testing.records import make_record

KEYS = {
    "backend", "model_id", "num_prompts", "duration", "completed", "failed", "total_input_tokens",
    "total_output_tokens", "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
    "input_lens", "output_lens", "ttfts", "itls", "start_times", "errors",
}  # fmt: skip


def test_vllm_json_contains_keys_of_vllm_bench(measurement):
    found = measurement.to_vllm_json()
    assert set(found) >= KEYS
    for family in ("ttft", "tpot", "itl", "e2el"):
        assert {f"{stat}_{family}_ms" for stat in ("mean", "median", "std", "p99")} <= set(found)
    json.dumps(found, allow_nan=False)


def test_vllm_json_counts_tokens_and_throughput_of_all_runs(measurement):
    found = measurement.to_vllm_json()
    assert (found["num_prompts"], found["completed"], found["failed"]) == (4, 3, 1)
    assert found["total_output_tokens"] == 4 + 10 + 10
    assert found["total_input_tokens"] == 24
    duration_s = sum(metrics.value("duration_s") for metrics in measurement.metrics)
    assert found["duration"] == pytest.approx(duration_s)
    assert found["output_throughput"] == pytest.approx(24 / duration_s)
    assert found["total_token_throughput"] == pytest.approx(48 / duration_s)


def test_vllm_json_latency_equals_ttft_plus_gaps(measurement):
    found = measurement.to_vllm_json()
    for ttft, gaps, latency, tokens in zip(
        found["ttfts"], found["itls"], found["latencies"], found["output_lens"], strict=True
    ):
        assert latency - ttft == pytest.approx(sum(gaps))
        assert len(gaps) == tokens - 1


def test_statistics_are_of_the_pooled_served_requests_in_ms(measurement):
    found = measurement.to_vllm_json()
    ttfts_ms = [40.0, 60.0, 50.0]
    assert found["mean_ttft_ms"] == pytest.approx(fmean(ttfts_ms))
    assert found["median_ttft_ms"] == pytest.approx(50.0)
    assert found["std_ttft_ms"] == pytest.approx(pstdev(ttfts_ms))  # numpy's std, as that tool takes it
    assert found["ttfts"][:2] == pytest.approx([0.040, 0.060])  # seconds


def test_unknown_token_counts_are_null_in_vllm_json(measurement_of):
    untold = [replace(make_record(i), prompt_tokens=None, output_tokens=None, chunk_tokens=None) for i in range(2)]
    found = measurement_of(untold).to_vllm_json()
    for key in ("total_input_tokens", "total_output_tokens", "output_throughput", "total_token_throughput"):
        assert found[key] is None
    assert found["mean_tpot_ms"] is None
    assert found["request_throughput"] is not None


def test_run_without_served_requests_makes_throughput_null_in_vllm_json(measurement_of):
    failed = [make_record(i, outcome=Outcome.HTTP_STATUS) for i in range(2)]
    found = measurement_of([make_record(0)], failed).to_vllm_json()
    assert (found["completed"], found["failed"]) == (1, 2)
    for key in ("duration", "request_throughput", "output_throughput", "total_token_throughput"):
        assert found[key] is None


def test_tokens_counted_from_chunks_where_usage_is_missing(measurement_of):
    found = measurement_of([replace(make_record(0), output_tokens=None)]).to_vllm_json()
    assert found["output_lens"] == [10]
    assert found["total_output_tokens"] == 10
