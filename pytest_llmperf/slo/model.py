"""Requirements as values. `str()` of each is its canonical text, which parses back to an equal value."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Literal

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.units import Unit

Side = Literal["a", "b"]

#: How a limit in each unit is written in canonical text; a share as percent.
_SUFFIX = {Unit.MS: "ms", Unit.S: "s", Unit.SHARE: "%", Unit.REQUESTS_PER_S: "/s", Unit.CONVERSATIONS_PER_S: "/s",
           Unit.TOKENS_PER_S: "/s", Unit.COUNT: "", Unit.TOKENS_PER_STEP: "", Unit.J: "J", Unit.J_PER_TOKEN: "J",
           Unit.COST: ""}


class Comparison(Enum):
    """The comparison of a value with a limit."""

    AT_MOST = "<="
    AT_LEAST = ">="
    EQUAL = "=="

    @property
    def sign(self) -> str:
        return {"<=": "≤", ">=": "≥", "==": "="}[self.value]

    def holds(self, value: float, limit: float) -> bool:
        if self is Comparison.EQUAL:
            return value == limit
        return value <= limit if self is Comparison.AT_MOST else value >= limit


@dataclass(frozen=True, slots=True)
class LatencyLimit:
    """A limit on a latency that every good request meets, as inside "goodput(ttft <= 500ms)"."""

    family: str
    limit_ms: float

    def __str__(self) -> str:
        return f"{self.family} <= {quantity(self.limit_ms, Unit.MS)}"


@dataclass(frozen=True, slots=True)
class Slo:
    """A limit on a metric of a measurement, such as `ttft_p99 <= 500ms`.

    Args:
        metric: canonical name.
        comparison: comparison of the value with the limit.
        limit: in the metric's unit.
        within: the latency limits of goodput and slo_attainment.
        text: as the user wrote it; two SLOs that mean the same are equal.
        currency: of a limit on a cost; "" for any other limit.
        phase: part of runs with events, such as "during"; "" for whole runs.
    """

    metric: str
    comparison: Comparison
    limit: float
    within: tuple[LatencyLimit, ...] = ()
    text: str = field(default="", compare=False)
    currency: str = ""
    phase: str = ""

    @property
    def named(self) -> set[str]:
        """Names in the requirement: the metric, and the latencies that goodput and slo_attainment limit."""
        return {self.metric, *(limit.family for limit in self.within)}

    def __str__(self) -> str:
        inside = f"({self.phase or ', '.join(map(str, self.within))})" if self.phase or self.within else ""
        return f"{metric_text(self.metric)}{inside} {self.comparison.value} {_limit_text(self)}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A limit on the ratio of a metric of two sides: metric(numerator) / metric(denominator) compared with `ratio`."""

    metric: str
    numerator: Side
    comparison: Comparison
    ratio: float
    text: str = field(default="", compare=False)

    @property
    def denominator(self) -> Side:
        return "a" if self.numerator == "b" else "b"

    def __str__(self) -> str:
        top, bottom = f"{self.metric}({self.numerator})", f"{self.metric}({self.denominator})"
        return f"{top} / {bottom} {self.comparison.value} {plain(self.ratio)}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of a metric of two sides, without a limit: metric(numerator) / metric(denominator)."""

    metric: str
    numerator: Side
    text: str = field(default="", compare=False)

    @property
    def denominator(self) -> Side:
        return "a" if self.numerator == "b" else "b"

    def __str__(self) -> str:
        return f"{self.metric}({self.numerator}) / {self.metric}({self.denominator})"


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A limit on a metric of one side that shows why a claim holds, e.g. cache hits; other fields as in `Slo`."""

    metric: str
    side: Side
    comparison: Comparison
    limit: float
    text: str = field(default="", compare=False)
    currency: str = ""

    def __str__(self) -> str:
        return f"{metric_text(self.metric, self.side)} {self.comparison.value} {_limit_text(self)}"


def metric_text(metric: str, side: str = "") -> str:
    """The text of a metric with a side and a pool: "prefill_tokens(a.decode)"."""
    name, _, pool = metric.partition(".")
    inside = ".".join(filter(None, (side, pool)))
    return f"{name}({inside})" if inside else name


def _limit_text(requirement: Slo | Mechanism) -> str:
    text = quantity(requirement.limit, find(requirement.metric).unit)
    return f"{text} {requirement.currency}" if requirement.currency else text


def quantity(value: float, unit: Unit) -> str:
    """Text with number and unit that parses back to exactly `value`. 0 is written without a unit."""
    if value == 0:
        return "0"
    exact = Decimal(repr(value)) * (100 if unit is Unit.SHARE else 1)
    return f"{plain(exact)}{_SUFFIX[unit]}"


def plain(value: float | Decimal) -> str:
    """Shortest decimal text without an exponent."""
    text = f"{value if isinstance(value, Decimal) else Decimal(repr(value)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
