"""The sample of a verdict: runs with their server starts and seeds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pytest_llmperf.metrics.energy import ENERGY, ENERGY_TOLERANCE
from pytest_llmperf.metrics.goodput import goodput, slo_attainment
from pytest_llmperf.metrics.registry import per_token
from pytest_llmperf.metrics.run import CountedBy, RunMetrics, span_ns, text_disagrees
from pytest_llmperf.model.record import failure_counts, reasons_text
from pytest_llmperf.results.causes.limits import TokensUnverified
from pytest_llmperf.results.check import Facts
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.stats.design import mean_repeats

T = TypeVar("T")

#: Verdicts are calibrated for slow changes whose correlation time, or mean time between spells, fits so often into a
#: run (`scripts/simulate_verdicts.py slow`).
PERIODS_PER_RUN = 10
#: Probability with which a rare kind of start or request shows in none of those that were seen.
UNSEEN = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """Runs of one workload on one engine.

    Args:
        runs: one or more runs.
        starts: server start of each run.
        seeds: seed of each run. Runs with equal seeds sent equal requests, so they count as one draw of the traffic.

    Raises:
        ValueError: there are no runs, or the numbers of runs, starts and seeds differ.
    """

    runs: Sequence[RunMetrics]
    starts: Sequence[str]
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        if not self.runs or not len(self.runs) == len(self.starts) == len(self.seeds):
            raise ValueError(f"a sample needs one start and one seed per run, got {len(self.runs)} runs, "
                             f"{len(self.starts)} starts and {len(self.seeds)} seeds")

    @property
    def start_count(self) -> int:
        return len(set(self.starts))

    @property
    def repeats(self) -> float:
        """How often the seed of a run was sent, averaged over the runs; at least 1."""
        return mean_repeats(self.seeds)

    def by_start(self, values: Sequence[T]) -> list[list[T]]:
        """The values of the runs, grouped by server start."""
        return _grouped(values, self.starts)

    def by_seed(self, values: Sequence[T]) -> list[list[T]]:
        """The values of the runs, grouped by seed."""
        return _grouped(values, self.seeds)

    @property
    def facts(self) -> Facts:
        """How many runs, seeds and server starts there are."""
        return {"runs": len(self.runs), "seeds": len(set(self.seeds)), "starts": self.start_count}

    @property
    def failures(self) -> Facts:
        """How many requests failed, and why; empty if none did."""
        counts = failure_counts(record for run in self.runs for record in run.records)
        return {"failed_requests": sum(counts.values()), "failure_reasons": reasons_text(counts)} if counts else {}

    @property
    def longest_unseen_s(self) -> float:
        """Longest period of slow spells that the runs can exclude, in seconds: a tenth of the shortest run."""
        lengths_ns = [span[1] - span[0] for run in self.runs if (span := span_ns(run.records)) is not None]
        return min(lengths_ns, default=0) / 1e9 / PERIODS_PER_RUN

    @property
    def unseen(self) -> Facts:
        """What a PASS cannot exclude: the longest period of slow spells, and the share of slow server starts."""
        starts: Facts = {"unseen_starts": unseen_share(self.start_count)} if self.start_count > 1 else {}
        return {"longest_unseen_s": self.longest_unseen_s, **starts}

    def values(self, slo: Slo) -> list[float | None]:
        """The metric of each run."""
        return values_of(slo, self.runs)


def unseen_share(seen: int) -> float:
    """Upper 95 % limit of the share of a kind of items of which none is among `seen` items: 63 % for 3, 1 % for 300."""
    return float(1 - UNSEEN ** (1 / seen))


def values_of(slo: Slo, runs: Sequence[RunMetrics]) -> list[float | None]:
    """The limited metric in each run; None for a run without the metric."""
    limits_ms = latency_limits(slo)
    if slo.metric == "goodput":
        return [goodput(run, limits_ms) for run in runs]
    if slo.metric == "slo_attainment":
        return [slo_attainment(run, limits_ms) for run in runs]
    return [run.value(slo.metric) for run in runs]


def _grouped(values: Sequence[T], keys: Sequence[Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for value, key in zip(values, keys, strict=True):
        groups.setdefault(key, []).append(value)
    return list(groups.values())


def latency_limits(slo: Slo) -> Mapping[str, float]:
    """Limits inside goodput(…) and slo_attainment(…), in milliseconds."""
    return {limit.family: limit.limit_ms for limit in slo.within}


def unverified(metrics: Iterable[str], runs: Sequence[RunMetrics], side: str = "") -> TokensUnverified | None:
    """Which metric rests on token counts that only the usage states; None if no metric does.

    Args:
        metrics: names of metrics and latency samples.
        runs: of one side.
        side: "a" or "b" of a claim.
    """
    missing = sum(run.counted_by is None for run in runs)
    if not missing or not (resting := per_token(metrics)):
        return None
    cause = TokensUnverified(resting[0], missing, len(runs), side or None)
    disagreement = next((both for run in runs if run.tokenizer and (both := text_disagrees(run.records))), None)
    if disagreement is None:
        return cause
    return replace(cause, tokenizer=runs[0].tokenizer, text_tokens=disagreement[0], usage_tokens=disagreement[1])


def energy_disagreement(metrics: Iterable[str], runs: Sequence[RunMetrics]) -> Facts:
    """The largest difference of energy counter and sampled power, if an energy is named and the difference is large."""
    gaps = [gap for run in runs if (gap := run.value("energy_gap")) is not None]
    large = bool(gaps) and max(gaps) > ENERGY_TOLERANCE and not set(ENERGY).isdisjoint(metrics)
    return {"energy_gap": max(gaps)} if large else {}


def nothing_counted(metrics: Iterable[str], runs: Sequence[RunMetrics]) -> Facts:
    """Why a ratio of the server's counters is 0 or missing; empty if it rests on something."""
    reasons = [reason for name in metrics for run in runs if (reason := run.nothing_counted(name)) is not None]
    return {"nothing_counted": f"{reasons[0]} in {len(reasons)} of {len(runs)} runs"} if reasons else {}


def counted_by_text(metrics: Iterable[str], runs: Sequence[RunMetrics]) -> Facts:
    """The name of the tokenizer, if the metrics rest on token counts and a tokenizer counted the runs; else empty."""
    names = {run.tokenizer for run in runs if run.counted_by is CountedBy.TOKENIZER}
    return {"tokenizer": ", ".join(sorted(names))} if names and per_token(metrics) else {}
