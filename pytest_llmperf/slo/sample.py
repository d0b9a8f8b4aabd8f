"""What a verdict rests on: the runs and the server starts they ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_llmperf.metrics.goodput import goodput, slo_attainment
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.run import RunMetrics
from pytest_llmperf.slo.model import Slo


@dataclass(frozen=True, slots=True)
class Sample:
    """Runs of one workload on one engine.

    Args:
        runs: one or more.
        starts: of each run a name of the server start it ran on.

    Raises:
        ValueError: no run, or another number of starts.
    """

    runs: Sequence[RunMetrics]
    starts: Sequence[str]

    def __post_init__(self) -> None:
        if not self.runs or len(self.runs) != len(self.starts):
            raise ValueError(f"{len(self.runs)} runs with {len(self.starts)} starts cannot be judged")

    @property
    def start_count(self) -> int:
        return len(set(self.starts))

    def __str__(self) -> str:
        runs = f"{len(self.runs)} run{'s' if len(self.runs) > 1 else ''}"
        if self.start_count == 1:
            return f"{runs}, conditional on this server start"
        return f"{runs} on {self.start_count} server starts"

    def values(self, slo: Slo) -> list[float | None]:
        """The metric of each run."""
        limits_ms = latency_limits(slo)
        if slo.metric == "goodput":
            return [goodput(run, limits_ms) for run in self.runs]
        if slo.metric == "slo_attainment":
            return [slo_attainment(run, limits_ms) for run in self.runs]
        return [run.value(slo.metric) for run in self.runs]


def latency_limits(slo: Slo) -> Mapping[str, float]:
    """Limits inside goodput(…) and slo_attainment(…), in milliseconds."""
    return {limit.family: limit.limit_ms for limit in slo.within}


def unavailable(metric: str, missing: int, of: int, whose: str = "") -> str:
    """Why a metric cannot be judged, and what to do."""
    where = "any run" if missing == of else f"{missing} of {of} runs"
    return (f"{metric} is unavailable in {where}{whose}: it needs {find(metric).needs}. "
            "Make that available, or drop this check")
