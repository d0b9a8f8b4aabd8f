"""vLLM's /metrics page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_llmperf.emulator.http.exposition import Histogram, Page
from pytest_llmperf.emulator.http.latencies import ITERATION, Latencies

if TYPE_CHECKING:
    from pytest_llmperf.emulator.core.counters import Counters, Gauges
    from pytest_llmperf.emulator.flags.launch import Launch

_GAUGES = {
    "num_requests_running": ("running", "Sequences that are in the batch."),
    "num_requests_waiting": ("waiting", "Sequences that wait for a place in the batch."),
    "kv_cache_usage_perc": ("kv_usage", "Share of the KV cache that is held; 1 is all of it."),
}
_COUNTERS = {
    "prefix_cache_queries": ("prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens that were found there."),
    "external_prefix_cache_queries": ("external_queries", "Prompt tokens that were looked up beyond the GPU."),
    "external_prefix_cache_hits": ("external_hits", "Prompt tokens that were found there."),
    "num_preemptions": ("preemptions", "Sequences that lost their blocks."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of prompts that were processed."),
    "prompt_tokens_cached": ("prompt_tokens_cached", "Those that were not computed."),
    "generation_tokens": ("generation_tokens", "Generated tokens."),
}
_SPECULATION = {
    "spec_decode_num_drafts": ("spec_drafts", "Drafts that were verified."),
    "spec_decode_num_draft_tokens": ("spec_draft_tokens", "Draft tokens."),
    "spec_decode_num_accepted_tokens": ("spec_accepted_tokens", "Draft tokens that were accepted."),
}
_UNUSED_REASONS = ("stop", "error", "repetition")


def vllm_page(
    launch: Launch,
    engines: Sequence[tuple[Counters, Gauges, Latencies]],
    *,
    started_s: float,
    served: int,
) -> bytes:
    """The page for engines 0, 1, …

    Args:
        launch: what the server says of itself.
        started_s: when the process started, seconds since 1970.
        served: HTTP requests that were answered with a generation.
    """
    page = Page()
    page.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
    page.sample("process_start_time_seconds", {}, started_s)
    labels = [{"engine": str(index), "model_name": launch.served_names[0]} for index in range(len(engines))]
    for name, (attribute, text) in _GAUGES.items():
        page.family(f"vllm:{name}", "gauge", text)
        for label, (_, gauges, _) in zip(labels, engines, strict=True):
            page.sample(f"vllm:{name}", label, getattr(gauges, attribute))
    for name, (attribute, text) in (_COUNTERS | (_SPECULATION if launch.config.speculation else {})).items():
        page.family(f"vllm:{name}_total", "counter", text)
        for label, (counters, _, _) in zip(labels, engines, strict=True):
            page.sample(f"vllm:{name}_total", label, getattr(counters, attribute))
    _labelled(page, launch, labels, [counters for counters, _, _ in engines])
    for name in engines[0][2].histograms():
        page.family(f"vllm:{name}", "histogram", "Of finished requests, or of their tokens.")
        for label, (_, _, latencies) in zip(labels, engines, strict=True):
            page.histogram(f"vllm:{name}", label, latencies.histograms()[name])
    page.family("vllm:iteration_tokens_total", "histogram", "Tokens per engine step.")
    for label, (counters, _, _) in zip(labels, engines, strict=True):
        page.histogram("vllm:iteration_tokens_total", label, iterations(counters))
    page.family("vllm:cache_config_info", "gauge", "The KV cache's configuration.")
    for label in labels:
        page.sample("vllm:cache_config_info", {"engine": label["engine"], **cache_facts(launch)}, 1)
    page.family("http_requests_total", "counter", "Requests by handler.")
    page.sample("http_requests_total", {"handler": "/v1/completions", "method": "POST", "status": "2xx"}, served)
    return page.body()


def cache_facts(launch: Launch) -> dict[str, str]:
    """The labels of cache_config_info."""
    config = launch.config
    return {
        "block_size": str(config.block_size),
        "cache_dtype": str(launch.facts.get("cache_dtype", "auto")),
        "enable_prefix_caching": str(config.prefix_caching),
        "gpu_memory_utilization": str(launch.utilization),
        "kv_cache_max_concurrency": str(config.num_blocks * config.block_size / config.max_model_len),
        "kv_cache_size_tokens": str(config.num_blocks * config.block_size),
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(config.num_blocks),
        "prefix_caching_hash_algo": "sha256",
    }


def iterations(counters: Counters) -> Histogram:
    """Tokens per step as a histogram."""
    histogram = Histogram(ITERATION)
    for tokens, steps in counters.iteration_tokens.items():
        histogram.observe(tokens, steps)
    return histogram


def _labelled(page: Page, launch: Launch, labels: list[dict[str, str]], counters: list[Counters]) -> None:
    page.family("vllm:request_success_total", "counter", "Finished requests by reason.")
    for label, engine in zip(labels, counters, strict=True):
        reasons = {"length": engine.finished_length, "abort": engine.finished_abort} | dict.fromkeys(_UNUSED_REASONS, 0)
        for reason, count in reasons.items():
            page.sample("vllm:request_success_total", {**label, "finished_reason": reason}, count)
    page.family("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where their KV came from.")
    for label, engine in zip(labels, counters, strict=True):
        sources = {
            "local_compute": engine.prompt_tokens - engine.prompt_tokens_cached,
            "local_cache_hit": engine.prompt_tokens_cached - engine.prompt_tokens_external,
            "external_kv_transfer": engine.prompt_tokens_external,
        }
        for source, count in sources.items():
            page.sample("vllm:prompt_tokens_by_source_total", {**label, "source": source}, count)
    if launch.config.speculation is None:
        return
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    page.family(name, "counter", "Accepted draft tokens by position.")
    for label, engine in zip(labels, counters, strict=True):
        for position in range(launch.config.speculation.draft_tokens):
            at = engine.spec_accepted_per_position
            page.sample(name, {**label, "position": str(position)}, at[position] if position < len(at) else 0)
