"""A run's throughput in equal stretches of its time: the only replicates that a single run has."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmperf.metrics.families import output_tokens
from pytest_llmperf.metrics.goodput import attained
from pytest_llmperf.metrics.run import RunMetrics, span_ns
from pytest_llmperf.model.record import RequestRecord


def window_rates(run: RunMetrics, name: str, limits_ms: Mapping[str, float],
                 windows: int = 10) -> tuple[float, ...] | None:
    """The metric per window of the run, per second. The mean of the windows is the metric of the run.

    A request counts in the window of its last content chunk.

    Args:
        run: metrics of one run.
        name: request_throughput, output_throughput, total_token_throughput or goodput.
        limits_ms: latency limits of goodput, by latency sample. Other metrics ignore them.
        windows: number of windows.

    Returns:
        None if the metric is unavailable or has a different name.
    """
    weights = _weights(run, name, limits_ms)
    served = [record for record in run.records if record.ok and record.arrivals_ns]
    if weights is None or not served:
        return None
    start_ns, end_ns = span_ns(run.records) or (0, 0)
    length_ns = end_ns - start_ns
    if not length_ns:
        return None
    sums = [0] * windows
    for record in served:
        at = (record.arrivals_ns[-1] - start_ns) * windows // length_ns
        sums[min(windows - 1, at)] += weights[record.index]
    return tuple(weight * windows * 1e9 / length_ns for weight in sums)


def _weights(run: RunMetrics, name: str, limits_ms: Mapping[str, float]) -> dict[int, int] | None:
    """What each request's completion adds to the metric, by its index."""
    if name == "goodput":
        met = attained(run, limits_ms)
        return None if met is None else {record.index: int(good) for record, good in zip(run.records, met, strict=True)}
    counted = {record.index: _tokens(record, name) for record in run.records if record.ok}
    available_counts = {index: count for index, count in counted.items() if count is not None}
    return available_counts if len(available_counts) == len(counted) else None


def _tokens(record: RequestRecord, name: str) -> int | None:
    output = output_tokens(record)
    prompt = record.prompt_tokens
    both = None if output is None or prompt is None else output + prompt
    return {"request_throughput": 1, "output_throughput": output, "total_token_throughput": both}.get(name)
