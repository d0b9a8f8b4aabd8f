"""Metrics pages can be parsed, have the engines' names, and count what was counted."""

from collections import Counter

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytest_llmperf.emulator.core.counters import Counters, Gauges
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.flags.launch import machine
from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.emulator.http.metrics_page import Histogram, Latencies, Page, metrics_page

MS = 1_000_000
DRAFTS = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']


def vllm(*flags):
    return vllm_launch(["serve", "tiny", "--served-model-name", 'a "name"', *flags], machine("h200", 1), {})


def samples(page):
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("model_name",)))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def counted():
    counters = Counters(
        prompt_tokens=100, prompt_tokens_cached=48, prompt_tokens_external=16, prefix_cache_queries=100,
        prefix_cache_hits=32, generation_tokens=77, preemptions=3, finished_length=5, finished_abort=1, spec_drafts=10,
        spec_draft_tokens=30, spec_accepted_tokens=12, spec_accepted_per_position=Counter({0: 8, 1: 4}),
    )  # fmt: skip
    counters.observe_iteration(64, 4)
    return counters


def latencies():
    latencies = Latencies(8192)
    sequence = Sequence(0, (1,) * 40, 3, 0)
    sequence.first_scheduled_ns, sequence.generated, sequence.cached_tokens = 5 * MS, 3, 16
    latencies.emissions(sequence, [30 * MS, 40 * MS, 60 * MS], [1, 1, 1])
    latencies.finished(sequence, 30 * MS, 60 * MS)
    return latencies


def test_histogram_counts_values_up_to_each_bound():
    histogram = Histogram((1, 2, 5))
    for value in (1, 1.5, 2, 7):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 1), ("2.0", 3), ("5.0", 3), ("+Inf", 4)]
    assert (histogram.count, histogram.total) == (4, 11.5)


def test_many_values_at_once_are_the_same():
    values = np.random.default_rng(1).exponential(2, 500)
    once, each = Histogram((1, 2, 5)), Histogram((1, 2, 5))
    once.observe_all(values)
    for value in values:
        each.observe(float(value))
    assert once.cumulative() == each.cumulative()
    assert once.total == pytest.approx(each.total)


def test_labels_are_escaped():
    page = Page()
    page.add("a", "gauge", "text", [({"b": 'x"y\\z\n'}, 1)])
    (family,) = text_string_to_metric_families(page.body().decode())
    assert family.samples[0].labels == {"b": 'x"y\\z\n'}


@pytest.mark.parametrize(("per_token", "gaps"), [(False, 2), (True, 5)])
def test_gap_before_several_tokens_is_counted_per_chunk_or_per_token(per_token, gaps):
    """vLLM counts it once, SGLang once per token; one by one and all at once are the same."""
    once, each = Latencies(8192, per_token), Latencies(8192, per_token)
    sequence = Sequence(0, (1,), 6, 0)
    once.emissions(sequence, [10 * MS, 40 * MS, 60 * MS], [1, 3, 2])
    each.first_token(sequence, 10 * MS)
    each.gap(30 * MS, 3)
    each.gap(20 * MS, 2)
    histograms = [latencies.histograms["inter_token_latency_seconds"] for latencies in (once, each)]
    for histogram in histograms:
        assert histogram.count == gaps
        assert histogram.total == pytest.approx(0.05)
    assert histograms[0].cumulative() == histograms[1].cumulative()


def test_vllm_page_shows_all_counters():
    engines = [(counted(), Gauges(2, 1, 0.25), latencies())]
    values = samples(metrics_page(vllm(*DRAFTS), engines, started_s=7.5, served=5))
    engine = (("engine", "0"),)
    assert values["process_start_time_seconds", ()] == 7.5
    for name, value in {
        "num_requests_running": 2, "num_requests_waiting": 1, "kv_cache_usage_perc": 0.25, "prompt_tokens_total": 100,
        "prompt_tokens_cached_total": 48, "prefix_cache_queries_total": 100, "prefix_cache_hits_total": 32,
        "external_prefix_cache_hits_total": 0, "generation_tokens_total": 77, "num_preemptions_total": 3,
        "spec_decode_num_drafts_total": 10, "spec_decode_num_draft_tokens_total": 30,
        "spec_decode_num_accepted_tokens_total": 12, "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": 2, "request_queue_time_seconds_count": 1,
        "e2e_request_latency_seconds_count": 1, "iteration_tokens_total_count": 4, "iteration_tokens_total_sum": 256,
    }.items():  # fmt: skip
        assert values[f"vllm:{name}", engine] == value, name
    assert values["vllm:time_to_first_token_seconds_sum", engine] == pytest.approx(0.030)
    assert values["vllm:inter_token_latency_seconds_sum", engine] == pytest.approx(0.030)
    assert values["vllm:request_time_per_output_token_seconds_sum", engine] == pytest.approx(0.015)
    assert values["vllm:request_queue_time_seconds_sum", engine] == pytest.approx(0.005)
    assert values["vllm:request_prefill_kv_computed_tokens_sum", engine] == 24
    assert values["vllm:request_success_total", (*engine, ("finished_reason", "length"))] == 5
    assert values["vllm:prompt_tokens_by_source_total", (*engine, ("source", "local_cache_hit"))] == 32
    assert values["vllm:prompt_tokens_by_source_total", (*engine, ("source", "external_kv_transfer"))] == 16
    positions = [
        value for (name, _), value in values.items() if name == "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    ]
    assert positions == [8, 4, 0]


def test_the_configuration_is_in_labels():
    (info,) = [
        dict(labels)
        for (name, labels) in samples(
            metrics_page(
                vllm("--num-gpu-blocks-override", "77", "--max-model-len", "1k", "--no-enable-prefix-caching"),
                [(Counters(), Gauges(0, 0, 0.0), Latencies(8192))],
                started_s=0,
                served=0,
            )
        )
        if name == "vllm:cache_config_info"
    ]
    assert info["num_gpu_blocks"] == "77"
    assert info["block_size"] == "16"
    assert info["enable_prefix_caching"] == "False"
    assert info["cache_dtype"] == "auto"


def test_metrics_page_without_speculation_has_no_speculation_counters():
    values = samples(metrics_page(vllm(), [(Counters(), Gauges(0, 0, 0.0), Latencies(8192))], started_s=0, served=0))
    assert not [name for name, _ in values if "spec_decode" in name]


def test_data_parallel_engines_have_separate_labels():
    rows = [(Counters(prompt_tokens=n), Gauges(0, 0, 0.0), Latencies(8192)) for n in (3, 4)]
    values = samples(metrics_page(vllm(), rows, started_s=0, served=0))
    totals = [values["vllm:prompt_tokens_total", (("engine", str(index)),)] for index in (0, 1)]
    assert totals == [3, 4]


def test_sglang_page_shows_all_counters():
    launch = sglang_launch(["--model-path", "tiny", "--enable-metrics"], machine("h200", 1), {})
    page = metrics_page(launch, [(counted(), Gauges(2, 1, 0.25), latencies())], started_s=7.5, served=5)
    totals = {}
    for (name, labels), value in samples(page).items():
        if ("cache_source", "total") not in labels:
            totals[name] = totals.get(name, 0) + value
    assert totals["sglang:prompt_tokens_total"] == 100
    assert totals["sglang:cached_tokens_total"] == 48
    assert totals["sglang:generation_tokens_total"] == 77
    assert totals["sglang:num_running_reqs"] == 2
    assert totals["sglang:num_retracted_requests_total"] == 3
    assert totals["sglang:time_to_first_token_seconds_count"] == 1
