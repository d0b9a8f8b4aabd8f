"""The /metrics pages of vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pytest_llmperf.emulator.core.counters import Counters, Gauges
from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.http.exposition import Histogram, Page
from pytest_llmperf.emulator.http.latencies import Latencies

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
_TRANSFERS: dict[str, Callable[[Counters], float]] = {
    "nixl_bytes_transferred_sum": lambda counters: counters.transferred_bytes,
    "nixl_bytes_transferred_count": lambda counters: counters.transfers,
    "nixl_xfer_time_seconds_sum": lambda counters: counters.transfer_ns / 1e9,
}
_FAILED_TRANSFERS: dict[str, Callable[[Counters], float]] = {
    "nixl_num_failed_transfers_total": lambda counters: counters.failed_transfers,
    "nixl_num_kv_expired_reqs_total": lambda _counters: 0.0,
}
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_HISTOGRAMS = {
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_latency_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_seconds",
    "request_time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "queue_time_seconds": "request_queue_time_seconds",
    "prompt_tokens_histogram": "request_prompt_tokens",
    "uncached_prompt_tokens_histogram": "request_prefill_kv_computed_tokens",
    "generation_tokens_histogram": "request_generation_tokens",
}


def metrics_page(
    launch: Launch, engines: Sequence[tuple[Counters, Gauges, Latencies]], *, started_s: float, served: int
) -> bytes:
    """The page for engines 0, 1, …

    Args:
        launch: what the server says of itself.
        started_s: when the process started, seconds since 1970.
        served: HTTP requests that were answered with a generation.
    """
    page = Page()
    page.add("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.",
             [({}, started_s)])
    (_sglang if launch.config.engine == "sglang" else _vllm)(page, launch, engines, served)
    return page.body()


def _vllm(page: Page, launch: Launch, engines: Sequence[tuple[Counters, Gauges, Latencies]], served: int) -> None:
    labels = [{"engine": str(index), "model_name": launch.served_names[0]} for index in range(len(engines))]

    def add(name: str, kind: str, text: str, values: Iterable[float | Histogram]) -> None:
        page.add(f"vllm:{name}", kind, text, zip(labels, values, strict=True))

    def add_by(label: str, name: str, text: str, values: Callable[[Counters], dict[str, int]]) -> None:
        each = [(own, values(counters)) for own, (counters, _, _) in zip(labels, engines, strict=True)]
        samples = [({**own, label: key}, value) for own, by_key in each for key, value in by_key.items()]
        page.add(f"vllm:{name}_total", "counter", text, samples)

    if launch.config.transfer is not None:
        for name, value in _TRANSFERS.items():
            add(name, "counter", "Of KV cache from another server.", [value(counters) for counters, _, _ in engines])
        add_by("source", "prompt_tokens_cached_by_source", "Cached prompt tokens by where they were.", _cached_sources)
        for name, value in _FAILED_TRANSFERS.items():
            add(name, "counter", "Of transfers that failed.", [value(counters) for counters, _, _ in engines])
    speculation = launch.config.speculation
    for name, (attribute, text) in _GAUGES.items():
        add(name, "gauge", text, [getattr(gauges, attribute) for _, gauges, _ in engines])
    for name, (attribute, text) in (_COUNTERS | (_SPECULATION if speculation else {})).items():
        add(f"{name}_total", "counter", text, [getattr(counters, attribute) for counters, _, _ in engines])
    add_by("finished_reason", "request_success", "Finished requests by reason.", _reasons)
    add_by("source", "prompt_tokens_by_source", "Prompt tokens by where their KV came from.", _sources)
    if speculation is not None:
        add_by("position", "spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by position.",
               lambda counters: {str(position): counters.spec_accepted_per_position[position]
                                 for position in range(speculation.draft_tokens)})
    for name in engines[0][2].histograms:
        add(name, "histogram", "Of finished requests, or of their tokens.",
            [latencies.histograms[name] for _, _, latencies in engines])
    add("iteration_tokens_total", "histogram", "Tokens per engine step.",
        [_iterations(counters) for counters, _, _ in engines])
    facts = _cache_facts(launch)
    page.add("vllm:cache_config_info", "gauge", "The KV cache's configuration.",
             [({"engine": label["engine"], **facts}, 1) for label in labels])
    page.add("http_requests_total", "counter", "Requests by handler.",
             [({"handler": "/v1/completions", "method": "POST", "status": "2xx"}, served)])


def _reasons(counters: Counters) -> dict[str, int]:
    return {"length": counters.finished_length, "abort": counters.finished_abort, "stop": 0, "error": 0,
            "repetition": 0}


def _sources(counters: Counters) -> dict[str, int]:
    return {
        "local_compute": counters.prompt_tokens - counters.prompt_tokens_cached,
        "local_cache_hit": counters.prompt_tokens_cached - counters.prompt_tokens_external,
        "external_kv_transfer": counters.prompt_tokens_external,
    }


def _cached_sources(counters: Counters) -> dict[str, int]:
    return {"device": counters.prompt_tokens_cached - counters.prompt_tokens_external,
            "p2p": counters.prompt_tokens_external}


def _cache_facts(launch: Launch) -> dict[str, str]:
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


def _iterations(counters: Counters) -> Histogram:
    histogram = Histogram(_ITERATION)
    for tokens, steps in counters.iteration_tokens.items():
        histogram.observe(tokens, steps)
    return histogram


def _sglang(page: Page, launch: Launch, engines: Sequence[tuple[Counters, Gauges, Latencies]], served: int) -> None:
    model = {"model_name": launch.served_names[0]}
    name = {"engine_type": "unified", **model}
    page.add("sglang:http_requests_total", "counter", "Requests that were answered with a generation.",
             [(model, served)])
    counters = [engine for engine, _, _ in engines]
    _tokenizer(page, launch, sum(counters[1:], counters[0]), name)
    for rank, (engine, gauges, _) in enumerate(engines):
        labels = {"dp_rank": str(rank), **name, "pp_rank": "0", "tp_rank": "0"}
        for metric, value in _scheduler(launch, engine, gauges).items():
            page.add(f"sglang:{metric}", "gauge", "Of the scheduler, now.", [(labels, value)])
        page.add("sglang:num_retracted_requests_total", "counter", "Sequences that lost their blocks.",
                 [(labels, engine.preemptions)])
    for metric, vllm_name in _HISTOGRAMS.items():
        page.add(f"sglang:{metric}", "histogram", "Of finished requests, or of their tokens.",
                 [({**name, "dp_rank": str(rank)}, row[2].histograms[vllm_name]) for rank, row in enumerate(engines)])


def _tokenizer(page: Page, launch: Launch, counters: Counters, name: dict[str, str]) -> None:
    """What SGLang's tokenizer process counts."""
    values = {
        "prompt_tokens": counters.prompt_tokens,
        "generation_tokens": counters.generation_tokens,
        "num_requests": counters.finished_length + counters.finished_abort,
        "num_aborted_requests": counters.finished_abort,
    }
    if launch.config.speculation is not None:
        values["spec_verify_calls"] = counters.spec_drafts
    for metric, value in values.items():
        page.add(f"sglang:{metric}_total", "counter", "Of finished requests.", [(name, value)])
    sources = {
        "device": counters.prompt_tokens_cached - counters.prompt_tokens_external,
        "host": counters.prompt_tokens_external,
        "total": counters.prompt_tokens_cached,
    }
    page.add("sglang:cached_tokens_total", "counter", "Prompt tokens that were not computed, by source.",
             [({**name, "cache_source": source}, value) for source, value in sources.items()])


def _scheduler(launch: Launch, counters: Counters, gauges: Gauges) -> dict[str, float]:
    """The gauges of SGLang's scheduler processes."""
    tokens = launch.config.num_blocks * launch.config.block_size
    values: dict[str, float] = {
        "num_running_reqs": gauges.running,
        "num_queue_reqs": gauges.waiting,
        "token_usage": gauges.kv_usage,
        "num_used_tokens": round(gauges.kv_usage * tokens),
        "max_total_num_tokens": tokens,
    }
    if launch.config.speculation is not None:
        values["spec_num_draft_tokens"] = launch.config.speculation.draft_tokens + 1  # the root of the tree is one
        if counters.spec_drafts:
            values["spec_accept_length"] = 1 + counters.spec_accepted_tokens / counters.spec_drafts
            values["spec_accept_rate"] = counters.spec_accepted_tokens / max(1, counters.spec_draft_tokens)
    return values
