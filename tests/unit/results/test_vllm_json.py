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
    exported = measurement.to_vllm_json()
    assert set(exported) >= KEYS
    for family in ("ttft", "tpot", "itl", "e2el"):
        assert {f"{stat}_{family}_ms" for stat in ("mean", "median", "std", "p99")} <= set(exported)
    json.dumps(exported, allow_nan=False)


def test_vllm_json_counts_tokens_and_throughput_of_all_runs(measurement):
    exported = measurement.to_vllm_json()
    assert (exported["num_prompts"], exported["completed"], exported["failed"]) == (4, 3, 1)
    assert exported["total_output_tokens"] == 4 + 10 + 10
    assert exported["total_input_tokens"] == 24
    duration_s = sum(metrics.value("duration_s") for metrics in measurement.metrics)
    assert exported["duration"] == pytest.approx(duration_s)
    assert exported["output_throughput"] == pytest.approx(24 / duration_s)
    assert exported["total_token_throughput"] == pytest.approx(48 / duration_s)


def test_vllm_json_latency_equals_ttft_plus_gaps(measurement):
    exported = measurement.to_vllm_json()
    for ttft, gaps, latency, tokens in zip(
        exported["ttfts"], exported["itls"], exported["latencies"], exported["output_lens"], strict=True
    ):
        assert latency - ttft == pytest.approx(sum(gaps))
        assert len(gaps) == tokens - 1


def test_statistics_are_of_the_pooled_served_requests_in_ms(measurement):
    exported = measurement.to_vllm_json()
    ttfts_ms = [40.0, 60.0, 50.0]
    assert exported["mean_ttft_ms"] == pytest.approx(fmean(ttfts_ms))
    assert exported["median_ttft_ms"] == pytest.approx(50.0)
    assert exported["std_ttft_ms"] == pytest.approx(pstdev(ttfts_ms))  # numpy's std, as that tool takes it
    assert exported["ttfts"][:2] == pytest.approx([0.040, 0.060])  # seconds


def test_unknown_token_counts_are_null_in_vllm_json(measurement_of):
    untold = [replace(make_record(i), prompt_tokens=None, output_tokens=None, chunk_tokens=None) for i in range(2)]
    exported = measurement_of(untold).to_vllm_json()
    for key in ("total_input_tokens", "total_output_tokens", "output_throughput", "total_token_throughput"):
        assert exported[key] is None
    assert exported["mean_tpot_ms"] is None
    assert exported["request_throughput"] is not None


def test_run_without_served_requests_makes_throughput_null_in_vllm_json(measurement_of):
    failed = [make_record(i, outcome=Outcome.HTTP_STATUS) for i in range(2)]
    exported = measurement_of([make_record(0)], failed).to_vllm_json()
    assert (exported["completed"], exported["failed"]) == (1, 2)
    for key in ("duration", "request_throughput", "output_throughput", "total_token_throughput"):
        assert exported[key] is None


def test_tokens_counted_from_chunks_where_usage_is_missing(measurement_of):
    exported = measurement_of([replace(make_record(0), output_tokens=None)]).to_vllm_json()
    assert exported["output_lens"] == [10]
    assert exported["total_output_tokens"] == 10
