"""Results under the keys of `vllm bench serve --save-result --save-detailed`, for tools that read those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import pstdev
from typing import TYPE_CHECKING

from pytest_llmperf.metrics import RunMetrics, measure
from pytest_llmperf.metrics.families import output_tokens

if TYPE_CHECKING:
    from pytest_llmperf.model.record import RequestRecord

FAMILIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = ("p90", "p95", "p99")


def vllm_json(metrics_of_runs: Sequence[RunMetrics], conditions: Mapping[str, str]) -> dict[str, object]:
    """All runs as a single result in the format of `vllm bench serve`: durations and counts are summed, latencies
    pooled.

    Latencies count from the intended send time; `vllm bench serve` counts from the actual send time. A key with an
    unknown value holds null. The duration is null if a run served no request, because leaving the run out would improve
    the throughput. The key generated_texts is missing, because answers are not stored.
    """
    records = [record for metrics in metrics_of_runs for record in metrics.records]
    duration_s = _total([metrics.value("duration_s") for metrics in metrics_of_runs])
    served = [record for record in records if record.ok]
    prompt = _total([record.prompt_tokens for record in served])
    output = _total([output_tokens(record) for record in served])
    counts: dict[str, object] = {
        "backend": conditions.get("engine"),
        "model_id": conditions.get("model"),
        "num_prompts": len(records),
        "duration": duration_s,
        "completed": len(served),
        "failed": len(records) - len(served),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": _per(len(served), duration_s),
        "output_throughput": _per(output, duration_s),
        "total_token_throughput": _per(_total([prompt, output]), duration_s),
        "request_goodput": None,
    }
    return counts | _detail(records) | _latencies(records)


def _detail(records: list[RequestRecord]) -> dict[str, object]:
    return {
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [output_tokens(record) for record in records],
        "ttfts": [_latency_s(record, 0) for record in records],
        "itls": [[_seconds(previous, after) for previous, after in pairwise(record.arrivals_ns)] for record in records],
        "latencies": [_latency_s(record, -1) for record in records],
        "start_times": [record.intended_ns / 1e9 for record in records],
        "errors": [record.detail or "" for record in records],
    }


def _latencies(records: list[RequestRecord]) -> dict[str, object]:
    pooled = measure(records)
    statistics: dict[str, object] = {}
    for family in FAMILIES:
        values = pooled.samples(family)
        statistics[f"mean_{family}_ms"] = pooled.value(f"{family}_mean")
        statistics[f"median_{family}_ms"] = pooled.value(f"{family}_p50")
        statistics[f"std_{family}_ms"] = pstdev(values) if values else None
        statistics |= {
            f"{percentile}_{family}_ms": pooled.value(f"{family}_{percentile}") for percentile in PERCENTILES
        }
    return statistics


def _total(values: Sequence[float | None]) -> float | None:
    available_values = [value for value in values if value is not None]
    return sum(available_values) if len(available_values) == len(values) else None


def _per(count: float | None, duration_s: float | None) -> float | None:
    return None if count is None or not duration_s else count / duration_s


def _latency_s(record: RequestRecord, position: int) -> float | None:
    return _seconds(record.intended_ns, record.arrivals_ns[position]) if record.arrivals_ns else None


def _seconds(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / 1e9
