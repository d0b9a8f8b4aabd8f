"""SGLang's /metrics page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_llmperf.emulator.http.exposition import Page
from pytest_llmperf.emulator.http.latencies import Latencies

if TYPE_CHECKING:
    from pytest_llmperf.emulator.core.counters import Counters, Gauges
    from pytest_llmperf.emulator.flags.launch import Launch

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


def sglang_page(
    launch: Launch,
    engines: Sequence[tuple[Counters, Gauges, Latencies]],
    *,
    started_s: float,
    served: int,
) -> bytes:
    """The page; arguments as those of vllm_page."""
    page = Page()
    page.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
    page.sample("process_start_time_seconds", {}, started_s)
    page.family("sglang:http_requests_total", "counter", "Requests that were answered with a generation.")
    page.sample("sglang:http_requests_total", {"model_name": launch.served_names[0]}, served)
    counters = [engine for engine, _, _ in engines]
    whole = sum(counters[1:], counters[0])
    _finished(page, launch, whole)
    for index, (engine, gauges, _) in enumerate(engines):
        _scheduler(page, launch, index, engine, gauges)
    name = {"engine_type": "unified", "model_name": launch.served_names[0]}
    for metric, attribute in _HISTOGRAMS.items():
        page.family(f"sglang:{metric}", "histogram", "Of finished requests, or of their tokens.")
        for index, (_, _, latencies) in enumerate(engines):
            page.histogram(f"sglang:{metric}", {**name, "dp_rank": str(index)}, getattr(latencies, attribute))
    return page.body()


def _finished(page: Page, launch: Launch, counters: Counters) -> None:
    """What SGLang's tokenizer process counts."""
    name = {"engine_type": "unified", "model_name": launch.served_names[0]}
    requests = counters.finished_length + counters.finished_abort
    values: dict[str, float] = {
        "prompt_tokens_total": counters.prompt_tokens,
        "generation_tokens_total": counters.generation_tokens,
        "num_requests_total": requests,
        "num_aborted_requests_total": counters.finished_abort,
    }
    if launch.config.speculation is not None:
        values["spec_verify_calls_total"] = counters.spec_drafts
    for metric, value in values.items():
        page.family(f"sglang:{metric}", "counter", "Of finished requests.")
        page.sample(f"sglang:{metric}", name, value)
    page.family("sglang:cached_tokens_total", "counter", "Prompt tokens that were not computed, by source.")
    device = counters.prompt_tokens_cached - counters.prompt_tokens_external
    for source, value in {"device": device, "host": counters.prompt_tokens_external}.items():
        page.sample("sglang:cached_tokens_total", {**name, "cache_source": source}, value)
    total = {**name, "cache_source": "total"}
    page.sample("sglang:cached_tokens_total", total, counters.prompt_tokens_cached)


def _scheduler(page: Page, launch: Launch, rank: int, counters: Counters, gauges: Gauges) -> None:
    """The metrics page of SGLang's scheduler processes."""
    name = {"dp_rank": str(rank), "engine_type": "unified", "model_name": launch.served_names[0], "pp_rank": "0",
            "tp_rank": "0"}  # fmt: skip
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
    if launch.config.speculation is not None and counters.spec_drafts:
        values["spec_accept_length"] = 1 + counters.spec_accepted_tokens / counters.spec_drafts
        values["spec_accept_rate"] = counters.spec_accepted_tokens / max(1, counters.spec_draft_tokens)
    for metric, value in values.items():
        page.family(f"sglang:{metric}", "gauge", "Of the scheduler, now.")
        page.sample(f"sglang:{metric}", name, value)
    page.family("sglang:num_retracted_requests_total", "counter", "Sequences that lost their blocks.")
    page.sample("sglang:num_retracted_requests_total", name, counters.preemptions)
