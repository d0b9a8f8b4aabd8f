"""Attainment and goodput: requests that meet all given latency limits."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmperf.metrics.run import RunMetrics

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
    """Share of all requests within all limits; None where `attained` is."""
    met = attained(run, limits_ms)
    return None if met is None else sum(met) / len(met)
