"""Results under the keys of `vllm bench serve --save-result --save-detailed`, for tools that read those."""

from __future__ import annotations

from itertools import pairwise
from statistics import stdev
from typing import TYPE_CHECKING

from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.families import output_tokens

if TYPE_CHECKING:
    from pytest_llmperf.model.record import RequestRecord
    from pytest_llmperf.session.measurement import Measurement

FAMILIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = ("p90", "p95", "p99")


def vllm_json(measurement: Measurement) -> dict[str, object]:
    """The runs one after the other as one result: durations and counts add up, latencies pool.

    Latencies count from the intended send, where that tool counts from the actual one. Keys whose value is unknown
    hold null. generated_texts is left out: answers are not kept.
    """
    records = [record for metrics in measurement.metrics for record in metrics.records]
    durations_s = [metrics.value("duration_s") for metrics in measurement.metrics]
    duration_s = sum(value for value in durations_s if value is not None)
    served = [record for record in records if record.ok]
    prompt = sum(record.prompt_tokens or 0 for record in served)
    output = sum(output_tokens(record) or 0 for record in served)
    counts: dict[str, object] = {
        "backend": measurement.conditions.get("engine"),
        "model_id": measurement.conditions.get("model"),
        "num_prompts": len(records),
        "duration": duration_s,
        "completed": len(served),
        "failed": len(records) - len(served),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": _per(len(served), duration_s),
        "output_throughput": _per(output, duration_s),
        "total_token_throughput": _per(prompt + output, duration_s),
        "request_goodput": None,
    }
    return counts | _detail(records) | _latencies(records)


def _detail(records: list[RequestRecord]) -> dict[str, object]:
    return {
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [_latency_s(record, 0) for record in records],
        "itls": [[_seconds(before, after) for before, after in pairwise(record.arrivals_ns)] for record in records],
        "latencies": [_latency_s(record, -1) for record in records],
        "start_times": [record.intended_ns / 1e9 for record in records],
        "errors": [record.detail or "" for record in records],
    }


def _latencies(records: list[RequestRecord]) -> dict[str, object]:
    pooled = measure(records)
    found: dict[str, object] = {}
    for family in FAMILIES:
        values = pooled.samples(family)
        found[f"mean_{family}_ms"] = pooled.value(f"{family}_mean")
        found[f"median_{family}_ms"] = pooled.value(f"{family}_p50")
        found[f"std_{family}_ms"] = stdev(values) if len(values) > 1 else None
        found |= {f"{percentile}_{family}_ms": pooled.value(f"{family}_{percentile}") for percentile in PERCENTILES}
    return found


def _per(count: int, duration_s: float) -> float | None:
    return count / duration_s if duration_s else None


def _latency_s(record: RequestRecord, position: int) -> float | None:
    return _seconds(record.intended_ns, record.arrivals_ns[position]) if record.arrivals_ns else None


def _seconds(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / 1e9
