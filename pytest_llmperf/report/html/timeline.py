"""What happened during one run, as lines over time: gaps between chunks, requests in flight, and telemetry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.report.html.plot import Line
from pytest_llmperf.report.html.series import telemetry_lines
from pytest_llmperf.results.measurement import Run
from pytest_llmperf.results.requests_file import Requests, start_ns

if TYPE_CHECKING:
    from pytest_llmperf.model.record import RequestRecord

GAPS = "gap, ms"
BINS = 240
DIGITS = 4


def timeline(run: Run, requests: Requests, side: str, tone: int, *, median: bool = True) -> dict[str, list[Line]]:
    """Title of a row → its lines.

    Args:
        side: label of the measurement, with which each line's name begins.
        tone: number of the lines' colour.
        median: whether the row of gaps has the median beside the largest.
    """
    gaps = _gaps(requests.records, side, tone)
    return {GAPS: gaps if median else gaps[:1], "requests in flight": _in_flight(requests, side, tone),
            **telemetry_lines(run.telemetry, side, tone)}


def _gaps(records: Sequence[RequestRecord], side: str, tone: int) -> list[Line]:
    """Per slice of the run, when it was (s) and the largest and median gap that ended in it (ms)."""
    origin_ns = start_ns(records)
    arrivals_ns = [np.array(record.arrivals_ns) - origin_ns for record in records if len(record.arrivals_ns) > 1]
    if not arrivals_ns:
        return []
    ends_ns = np.concatenate([stamps_ns[1:] for stamps_ns in arrivals_ns])
    gaps_ns = np.concatenate([np.diff(stamps_ns) for stamps_ns in arrivals_ns])
    order = np.argsort(ends_ns, kind="stable")
    at_ns, gap_ns = ends_ns[order].astype(float), gaps_ns[order].astype(float)
    width_ns = max(at_ns[-1] / BINS, 1.0)
    slices, first = np.unique(np.minimum(at_ns // width_ns, BINS - 1), return_index=True)
    groups = np.split(gap_ns / 1e6, first[1:])
    time_s = rounded((slices + 0.5) * width_ns / 1e9)
    largest, median = np.maximum.reduceat(gap_ns / 1e6, first), [float(np.median(group)) for group in groups]
    return [Line(f"{side} largest", time_s, rounded(largest), tone),
            Line(f"{side} median", time_s, rounded(median), tone, 1)]


def _in_flight(requests: Requests, side: str, tone: int) -> list[Line]:
    """How many requests were sent and not yet ended; times count from the first intended send, as in the file."""
    if not requests.flights_ns:
        return []
    begun, ends = np.sort(np.array(requests.flights_ns).T)
    at_ns = np.linspace(0, ends[-1], BINS)
    count = np.searchsorted(begun, at_ns, "right") - np.searchsorted(ends, at_ns, "right")
    return [Line(side, rounded(at_ns / 1e9), [int(value) for value in count], tone, step=True)]


def rounded(values: Iterable[float]) -> list[float]:
    """Four significant digits: more is not seen in a chart."""
    return [float(f"{value:.{DIGITS}g}") for value in values]
