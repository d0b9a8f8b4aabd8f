"""Request records as a pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmperf.clock import milliseconds
from pytest_llmperf.metrics import RunMetrics

if TYPE_CHECKING:
    import pandas as pd

    from pytest_llmperf.model.record import RequestRecord
    from pytest_llmperf.results.measurement import Measurement

LATENCIES = ("ttft", "tpot", "e2el", "largest_stall", "send_delay")


def request_frame(measurement: Measurement) -> pd.DataFrame:
    """One row per request; times in ms after the run's first intended send; latencies in ms, empty where unknown."""
    import pandas as pd

    rows = []
    for number, (run, metrics) in enumerate(zip(measurement.runs, measurement.metrics, strict=True)):
        origin_ns = min((record.intended_ns for record in run.records), default=0)
        for position, record in enumerate(metrics.records):
            rows.append(
                {"run": number, "seed": run.seed, "start_id": run.start_id}
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
