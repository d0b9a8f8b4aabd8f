"""Attainment and goodput: requests that meet all given latency limits, and rates by window of a run."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmperf.metrics.families import output_tokens
from pytest_llmperf.metrics.run import RunMetrics, span_ns
from pytest_llmperf.model.record import RequestRecord

#: Latencies of which a request has one, so that it can meet a limit.
GOODPUT_FAMILIES = ("ttft", "tpot", "e2el", "largest_stall")


def attained(run: RunMetrics, limits_ms: Mapping[str, float]) -> tuple[bool, ...] | None:
    """Whether each request, by intended send time, was served within all limits.

    A failed request never meets a limit. A request that the client cancelled is judged by the latencies that the
    request has. A served request meets a limit on a latency that does not exist for it (TPOT
    of a single token).

    Args:
        run: metrics of one run.
        limits_ms: largest latency by sample name, of `GOODPUT_FAMILIES`.

    Returns:
        None if a limited latency is unavailable or the run has no requests.

    Raises:
        SloError: the latency sample does not exist.
    """
    columns = [(run.by_request(name), round(limit_ms * 1e6)) for name, limit_ms in limits_ms.items()]
    if not run.records or any(column is None for column, _ in columns):
        return None
    met = [not record.failed for record in run.records]
    for column, limit_ns in columns:
        for position, values_ns in enumerate(column or ()):
            met[position] &= values_ns is not None and all(value_ns <= limit_ns for value_ns in values_ns)
    return tuple(met)


def goodput(run: RunMetrics, limits_ms: Mapping[str, float]) -> float | None:
    """Served requests within all limits, per second of the run. None if `attained` is None or no request was served."""
    met, duration_s = attained(run, limits_ms), run.value("duration_s")
    if met is None or not duration_s:
        return None
    return sum(good and record.ok for good, record in zip(met, run.records, strict=True)) / duration_s


def slo_attainment(run: RunMetrics, limits_ms: Mapping[str, float]) -> float | None:
    """Share of all requests within all limits; None if `attained` is."""
    met = attained(run, limits_ms)
    return None if met is None else sum(met) / len(met)


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
