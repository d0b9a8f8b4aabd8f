"""Units and directions of metrics, and how their values read."""

from __future__ import annotations

from enum import Enum


class Direction(Enum):
    """Which way is better."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


class Unit(Enum):
    """Unit of a number. Shares are stored as 0…1 and printed as percent.

    The last three are no units of metrics: `RATIO` is of one side's metric to another's, `CHANGE` is a relative change
    (0.05 for +5 %) and `POINTS` a change of a share (0.05 for +5 percentage points).
    """

    MS = "ms"
    S = "s"
    SHARE = "%"
    REQUESTS_PER_S = "requests/s"
    CONVERSATIONS_PER_S = "conversations/s"
    TOKENS_PER_S = "tokens/s"
    COUNT = ""
    TOKENS_PER_STEP = "tokens/step"
    J = "J"
    J_PER_TOKEN = "J/token"  # noqa: S105 - a unit
    COST = "per 1M tokens"
    RATIO = "×"
    CHANGE = "% change"
    POINTS = "pp"

    def show(self, value: float) -> str:
        """A value for people: "471 ms", "96.3 %", "1.35×", "+4.2 %"."""
        if self is Unit.RATIO:
            return f"{value:.3g}×"
        if self in (Unit.CHANGE, Unit.POINTS):
            return f"{100 * value:+.1f} {'%' if self is Unit.CHANGE else 'pp'}"
        return f"{self.number(value)} {self.value}".rstrip()

    def show_range(self, low: float, high: float) -> str:
        """An interval for people: "431–489 ms"; an infinite end reads "no upper limit"."""
        if self in (Unit.CHANGE, Unit.POINTS):
            return f"{self.show(low)} … {self.show(high)}"
        if high == float("inf"):
            return f"{self.show(low)} or more, no upper limit"
        return f"{self.number(low)}–{self.show(high)}"

    def number(self, value: float) -> str:
        """The value without its unit."""
        if self is Unit.RATIO:
            return f"{value:.3g}"
        scaled = value * 100 if self is Unit.SHARE else value
        return f"{scaled:.0f}" if abs(scaled) >= 1000 else f"{scaled:.4g}"
