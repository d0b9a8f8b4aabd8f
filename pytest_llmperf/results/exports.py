"""Requests of a measurement in forms of other tools: a table of pandas, and the JSON of `vllm bench serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import pstdev
from typing import TYPE_CHECKING

from pytest_llmperf.clock import milliseconds
from pytest_llmperf.errors import UsageError
from pytest_llmperf.metrics import RunMetrics, measure
from pytest_llmperf.metrics.families import output_tokens

if TYPE_CHECKING:
    import pandas as pd

    from pytest_llmperf.model.record import RequestRecord

LATENCIES = ("ttft", "tpot", "e2el", "largest_stall", "send_delay")
FAMILIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = ("p90", "p95", "p99")


def request_frame(
    seeds: Sequence[int], start_ids: Sequence[int], metrics_of_runs: Sequence[RunMetrics]
) -> pd.DataFrame:
    """One row per request; times in ms after the run's first intended send; latencies in ms, empty if unknown.

    Args:
        seeds, start_ids, metrics_of_runs: of each run.

    Raises:
        UsageError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise UsageError("A table of requests needs pandas, which is not installed: "
                         "pip install 'pytest-llmperf[pandas]'.") from error

    rows = []
    for number, (seed, start_id, metrics) in enumerate(zip(seeds, start_ids, metrics_of_runs, strict=True)):
        origin_ns = min((record.intended_ns for record in metrics.records), default=0)
        for position, record in enumerate(metrics.records):
            rows.append(
                {"run": number, "seed": seed, "start_id": start_id}
                | _facts(record, origin_ns)
                | {f"{name}_ms": _latency(metrics, name, position) for name in LATENCIES}
            )
    return pd.DataFrame(rows)


def _facts(record: RequestRecord, origin_ns: int) -> dict[str, object]:
    return {
        "index": record.index,
        "tag": record.tag,
        "outcome": record.outcome.value,
        "detail": record.detail,
        "intended_ms": milliseconds(record.intended_ns - origin_ns),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "cached_tokens": record.cached_tokens,
        "chunks": len(record.arrivals_ns),
        "coalesced_chunks": record.coalesced_chunks,
    }


def _latency(metrics: RunMetrics, family: str, position: int) -> float | None:
    column = metrics.by_request(family)
    values = column[position] if column is not None else None
    return milliseconds(values[0]) if values else None


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
