"""What is known beforehand about a metric: on which scale it is compared, how noisy it is, and what matters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import isfinite, log, log1p

from pytest_llmperf.stats.interval import factor


class Scale(Enum):
    """Where a metric's errors add up."""

    LOG = "log"
    POINTS = "points"

    def read(self, value: float | None, *, worse_when_larger: bool = True) -> float:
        """A run's value as the comparison takes it: a larger one is worse.

        Args:
            value: in the metric's unit.
            worse_when_larger: False for throughput, hit rate, acceptance.

        Raises:
            ValueError: it is missing, not finite, or not above 0 where its logarithm is needed.
        """
        if value is None or not isfinite(value):
            raise ValueError(f"a run's value is {'missing' if value is None else value}")
        if self is Scale.LOG and value <= 0:
            raise ValueError(f"a run's value is {value:g}, and only values above 0 can be compared as a ratio")
        number = log(value) if self is Scale.LOG else value
        return number if worse_when_larger else -number

    def in_unit(self, reading: float, *, worse_when_larger: bool = True) -> float:
        """The value in the metric's unit whose reading this is: the inverse of `read`."""
        number = reading if worse_when_larger else -reading
        return factor(number) if self is Scale.LOG else number

    def width(self, share: float) -> float:
        """A share of change, 0.02 for 2 % or for 2 percentage points, as a distance on this scale."""
        return log1p(share) if self is Scale.LOG else share

    def change(self, distance: float, *, worse_when_larger: bool = True) -> float:
        """A distance on this scale as the change of the metric: 0.02 for +2 %, or for +2 percentage points."""
        signed = distance if worse_when_larger else -distance
        return factor(signed) - 1 if self is Scale.LOG else signed


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior sds of a metric, with their weight.

    Args:
        run_sd: sd between runs of the same seed within a session, on the metric's scale; 0.005 is 0.5 %.
        session_sd: sd between sessions.
        df: degrees of freedom with which each prior sd enters the estimate.
        source: origin of the figures, as text for the reader.
        learnt: whether `session_sd` is what the stored sessions of the suite show (`suite_spread`).

    Raises:
        ValueError: a figure is not above 0.
    """

    run_sd: float
    session_sd: float
    df: float
    source: str
    learnt: bool = False

    def __post_init__(self) -> None:
        if min(self.run_sd, self.session_sd, self.df) <= 0:
            raise ValueError(f"a prior of {self.run_sd}, {self.session_sd} and {self.df} degrees of freedom")


#: Negligible change as a part of the tolerated change, where a test names the tolerated change alone.
NEGLIGIBLE_PART = 0.4


@dataclass(frozen=True, slots=True)
class Margins:
    """How much worse a metric may be, as shares: 0.02 is 2 %, or 2 percentage points of a share.

    Args:
        negligible: only what is proven to be worse by more fails.
        tolerated: only what is proven to be worse by less passes.

    Raises:
        ValueError: not 0 ≤ negligible < tolerated.
    """

    negligible: float
    tolerated: float

    def __post_init__(self) -> None:
        if not 0 <= self.negligible < self.tolerated:
            raise ValueError(f"margins of {self.negligible:g} (negligible) and {self.tolerated:g} (tolerated): "
                             "the first must be at least 0 and below the second")

    def on(self, scale: Scale) -> Margins:
        """As distances on a scale."""
        return Margins(scale.width(self.negligible), scale.width(self.tolerated))
