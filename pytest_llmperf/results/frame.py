"""Request records as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_llmperf.clock import milliseconds
from pytest_llmperf.errors import UsageError
from pytest_llmperf.metrics import RunMetrics

if TYPE_CHECKING:
    import pandas as pd

    from pytest_llmperf.model.record import RequestRecord

LATENCIES = ("ttft", "tpot", "e2el", "largest_stall", "send_delay")


def request_frame(
    seeds: Sequence[int], start_ids: Sequence[int], metrics_of_runs: Sequence[RunMetrics]
) -> pd.DataFrame:
    """One row per request; times in ms after the run's first intended send; latencies in ms, empty where unknown.

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
