"""Units and directions of metrics, and how their values read."""

from __future__ import annotations

from enum import Enum


class Direction(Enum):
    """Which way is better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Unit(Enum):
    """What a metric's value counts. Shares are stored as 0…1 and read as percent."""

    MS = "ms"
    S = "s"
    SHARE = "%"
    REQUESTS_PER_S = "requests/s"
    TOKENS_PER_S = "tokens/s"
    COUNT = ""
    TOKENS_PER_STEP = "tokens/step"

    def show(self, value: float) -> str:
        """A value for people: "471 ms", "96.3 %"."""
        return f"{self.number(value)} {self.value}".rstrip()

    def show_range(self, low: float, high: float) -> str:
        """An interval for people: "431–489 ms"; an infinite end reads "no upper limit"."""
        if high == float("inf"):
            return f"{self.show(low)} or more, no upper limit"
        return f"{self.number(low)}–{self.show(high)}"

    def number(self, value: float) -> str:
        scaled = value * 100 if self is Unit.SHARE else value
        return f"{scaled:.0f}" if abs(scaled) >= 1000 else f"{scaled:.4g}"
