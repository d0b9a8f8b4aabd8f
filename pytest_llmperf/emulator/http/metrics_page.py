"""The /metrics pages of vLLM and SGLang: histograms of latencies and counts, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as List
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from pytest_llmperf.emulator.core.counters import Counters, Gauges
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.flags.launch import Launch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
_MOST_LATER = 1024
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
                640, 2560)  # fmt: skip
_BETWEEN_TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_SIZES = [m * 10**e for e in range(10) for m in (1, 2, 5)]
# By vLLM's names; sizes in tokens end at the longest sequence.
_BOUNDS = {
    "time_to_first_token_seconds": _FIRST_TOKEN,
    "inter_token_latency_seconds": _BETWEEN_TOKENS,
    "request_time_per_output_token_seconds": _BETWEEN_TOKENS,
    "e2e_request_latency_seconds": _REQUEST,
    "request_queue_time_seconds": _REQUEST,
    "request_inference_time_seconds": _REQUEST,
    "request_prefill_time_seconds": _REQUEST,
    "request_decode_time_seconds": _REQUEST,
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "request_prefill_kv_computed_tokens": _SIZES,
    "request_prompt_tokens": _SIZES,
    "request_generation_tokens": _SIZES,
    "request_max_num_generation_tokens": _SIZES,
    "request_params_max_tokens": _SIZES,
}
_S = 1e-9
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


class Histogram:
    """A Prometheus histogram: for each bound the number of values up to it, and the sum of all values.

    Args:
        bounds: upper bounds of the bins, ascending, without +Inf.
    """

    def __init__(self, bounds: List[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._later: list[npt.NDArray[np.float64]] = []

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def observe_all(self, values: npt.NDArray[np.float64]) -> None:
        """Observes many values. The result equals single observations, except for the rounding of the sum. The values
        are sorted into bins when the histogram is read."""
        self._later.append(values)
        if len(self._later) == _MOST_LATER:
            self._sort_in()

    @property
    def count(self) -> int:
        self._sort_in()
        return sum(self._counts)

    @property
    def total(self) -> float:
        self._sort_in()
        return self._sum

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound as text, how many values were at most that), the last one +Inf."""
        self._sort_in()
        return list(zip(_shown_bounds(self._bounds), accumulate(self._counts), strict=True))

    def _sort_in(self) -> None:
        if not self._later:
            return
        values = np.concatenate(self._later)
        self._later.clear()
        bin_counts = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
        self._counts = [count + more for count, more in zip(self._counts, bin_counts.tolist(), strict=True)]
        self._sum += float(values.sum())


class Page:
    """Collects families and writes them in order."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float | Histogram]]) -> None:
        """Write a family. The name of a counter ends with `_total` here as in its samples."""
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for labels, value in samples:
            if isinstance(value, Histogram):
                self._histogram(name, labels, value)
            else:
                self._lines.append(f"{name}{_shown(labels)} {float(value)!r}")

    def _histogram(self, name: str, labels: Labels, histogram: Histogram) -> None:
        label_text = _shown(labels)[1:-1]
        begin = f"{name}_bucket{{{label_text}{',' if label_text else ''}le=\""
        self._lines += [f'{begin}{bound}"}} {float(count)!r}' for bound, count in histogram.cumulative()]
        for ending, value in (("count", histogram.count), ("sum", histogram.total)):
            self._lines.append(f"{name}_{ending}{_shown(labels)} {float(value)!r}")

    def body(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


@lru_cache(maxsize=256)
def _shown_bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*(repr(float(bound)) for bound in bounds), "+Inf")


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Latencies:
    """Histograms of one engine, in seconds or tokens.

    Args:
        max_model_len: the largest bound for tokens.
        per_token: an emission of n tokens counts as n gaps of equal length, as in SGLang; otherwise as one.

    Attributes:
        histograms: by vLLM's names.
    """

    def __init__(self, max_model_len: int, per_token: bool = False) -> None:
        self._per_token = per_token
        self.histograms = {
            name: Histogram([bound for bound in bounds if bounds is not _SIZES or bound <= max_model_len])
            for name, bounds in _BOUNDS.items()
        }

    def first_token(self, sequence: Sequence, at_ns: int) -> None:
        self.histograms["time_to_first_token_seconds"].observe((at_ns - sequence.arrived_ns) * _S)

    def gap(self, gap_ns: int, tokens: int) -> None:
        """Observes the gap between two emissions of a sequence; `tokens` is the number of tokens in the second."""
        if self._per_token:
            self.histograms["inter_token_latency_seconds"].observe(gap_ns / tokens * _S, tokens)
        else:
            self.histograms["inter_token_latency_seconds"].observe(gap_ns * _S)

    def emissions(self, sequence: Sequence, at_ns: list[int], counts: list[int]) -> None:
        """Observes all emissions of a sequence, from its first token on."""
        self.first_token(sequence, at_ns[0])
        gaps_s = np.diff(np.array(at_ns)) * _S
        if self._per_token and max(counts) > 1:
            gaps_s = np.repeat(gaps_s / counts[1:], counts[1:])
        self.histograms["inter_token_latency_seconds"].observe_all(gaps_s)

    def finished(self, sequence: Sequence, first_ns: int, last_ns: int) -> None:
        """Observes the latencies of a sequence that generated all its tokens."""
        scheduled = sequence.arrived_ns if sequence.first_scheduled_ns is None else sequence.first_scheduled_ns
        values = {
            "e2e_request_latency_seconds": (last_ns - sequence.arrived_ns) * _S,
            "request_queue_time_seconds": (scheduled - sequence.arrived_ns) * _S,
            "request_inference_time_seconds": (last_ns - scheduled) * _S,
            "request_prefill_time_seconds": (first_ns - scheduled) * _S,
            "request_decode_time_seconds": (last_ns - first_ns) * _S,
            "request_time_per_output_token_seconds": (last_ns - first_ns) * _S / max(1, sequence.generated - 1),
            "request_num_preemptions": sequence.preemptions,
            "request_prefill_kv_computed_tokens": sequence.prompt_length - (sequence.cached_tokens or 0),
            "request_prompt_tokens": sequence.prompt_length,
            "request_generation_tokens": sequence.generated,
            "request_max_num_generation_tokens": sequence.max_tokens,
            "request_params_max_tokens": sequence.max_tokens,
        }
        for name, value in values.items():
            self.histograms[name].observe(value)


def metrics_page(
    launch: Launch, engines: List[tuple[Counters, Gauges, Latencies]], *, started_s: float, served: int
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


def _vllm(page: Page, launch: Launch, engines: List[tuple[Counters, Gauges, Latencies]], served: int) -> None:
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


def _sglang(page: Page, launch: Launch, engines: List[tuple[Counters, Gauges, Latencies]], served: int) -> None:
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
