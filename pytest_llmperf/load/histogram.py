"""Counts of durations in bins of 65.5 µs: constant memory, a shift and an addition per value."""

from __future__ import annotations

from array import array

BIN_BITS = 16  # of nanoseconds
BINS = 16_384  # the last one holds whatever is longer than 1.07 s


class Histogram:
    """Durations in nanoseconds, counted."""

    def __init__(self, counts: array[int] | None = None) -> None:
        self.counts = counts or array("q", bytes(8 * BINS))

    def add(self, duration_ns: int) -> None:
        """Count one; below zero counts as zero."""
        position = duration_ns >> BIN_BITS
        if not 0 <= position < BINS:
            position = 0 if position < 0 else BINS - 1
        self.counts[position] += 1

    def merge(self, other: Histogram) -> None:
        """Add the counts of another."""
        self.counts = array("q", map(int.__add__, self.counts, other.counts))

    @property
    def total(self) -> int:
        return sum(self.counts)

    def quantile_ns(self, share: float) -> int | None:
        """Upper edge of the bin that holds this quantile; None where nothing was counted."""
        wanted, seen = share * self.total, 0
        for position, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return (position + 1) << BIN_BITS
        return None
