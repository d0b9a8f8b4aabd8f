"""The time from the first event of a run until requests are served as before the event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median

from pytest_llmperf.model.event import DISTURBED_FROM
from pytest_llmperf.model.record import RequestRecord

RECOVERY = "recovery_time"
WINDOW = 10  # requests
TOLERATED = 1.15  # the tolerated margin of a median TTFT


def recovery_time_s(
    records: Sequence[RequestRecord], counters: Mapping[str, float | None]
) -> float | None:
    """Seconds from the first event to the end of the last disturbed window; 0 if no window is disturbed.

    A window is `WINDOW` requests in a row by intended send time. A window is slow if a request failed, or if its median
    TTFT is more than 15 % above the largest median of the windows before the event. A slow window is disturbed if it is
    the first window after the event or follows another slow window: a slow window alone is noise.

    Args:
        records: ordered by intended send time.
        counters: with the time of the first event.

    Returns:
        None for a run without events, a run that has no full window before or after the event, and a run whose last
        window is disturbed.
    """
    from_s = counters.get(DISTURBED_FROM)
    if from_s is None or not records:
        return None
    event_ns = records[0].intended_ns + round(from_s * 1e9)
    earlier = [record for record in records if record.ended_ns < event_ns]
    later = [record for record in records if record.intended_ns >= event_ns]
    usual = [_ttft_ns(window) for window in _windows(earlier)]
    if not usual or len(later) < WINDOW:
        return None
    worst_ns = max(usual) * TOLERATED
    windows = _windows(later)
    slow = [_ttft_ns(window) > worst_ns for window in windows]
    disturbed = [number for number, is_slow in enumerate(slow) if is_slow and (number == 0 or slow[number - 1])]
    back = disturbed[-1] + 1 if disturbed else 0
    return (windows[back][0].intended_ns - event_ns) / 1e9 if back < len(windows) else None


def _windows(records: Sequence[RequestRecord]) -> list[Sequence[RequestRecord]]:
    return [records[first : first + WINDOW] for first in range(0, len(records) - WINDOW + 1, WINDOW)]


def _ttft_ns(window: Sequence[RequestRecord]) -> float:
    """Median TTFT; infinite if a request failed or has no first token."""
    if any(record.failed or not record.arrivals_ns for record in window):
        return inf
    return median(record.arrivals_ns[0] - record.intended_ns for record in window)
