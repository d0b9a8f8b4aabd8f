"""Replicas of running services as server starts of a claim.

A session cannot start a service again. But each replica of a service is a server start of its own, on another host or
GPU. So the replicas of both sides show how much server starts differ. The sd is estimated from the replicas and from
stored sessions. Few degrees of freedom of the sd widen the interval of the ratio. Error rates:
`scripts/simulate_verdicts.py services` and docs/evidence/canaries.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum, log, sqrt

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.stats.design import effective_n
from pytest_llmperf.stats.noise_estimate import estimate_noise
from pytest_llmperf.stats.ratio import StartSd

#: Family of a metric → what each replica counts, as a sum of seconds and a count. A replica's mean shows how much the
#: medians of replicas differ, too. It does not show how much their tails differ.
_COUNTED = {"tpot": "tpot", "itl": "tpot", "itl_per_token": "tpot", "ttft": "ttft"}
#: With fewer degrees of freedom the assumed sd stays: the t quantile of one is 64 at 99.5 %.
LEAST_DF = 2


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of the two sides of a claim that answered requests.

    Args:
        a, b: the sides.
    """

    a: Measurement
    b: Measurement

    @property
    def counts(self) -> tuple[int, int]:
        """Number of replicas of A and B; 1 for a service that shows no replicas."""
        return max(1, len(_requests(self.a))), max(1, len(_requests(self.b)))

    @property
    def are_seen(self) -> bool:
        """Whether a side shows two replicas or more."""
        return max(self.counts) > 1

    @property
    def starts(self) -> tuple[float, float]:
        """Number of server starts that the replicas are worth. Unequal shares of the requests are worth fewer."""
        a, b = (effective_n(list(_requests(side).values()) or [1.0]) for side in (self.a, self.b))
        return a, b

    def start_sd(self, metric: str, given: StartSd | None) -> StartSd | None:
        """The start-to-start sd by replicas and stored sessions; `given` below `LEAST_DF` degrees of freedom.

        The stored sessions are of a whole service. A service averages over its replicas, so the variance of a replica
        is the variance of the service times the number of replicas. The larger number of both sides counts.

        Args:
            metric: a metric whose values the claim compares.
            given: the sd that the test states or that stored sessions show; None without either.
        """
        if given is not None and not given.sessions:
            return given
        spreads = [spread for side in (self.a, self.b) if (spread := _spread(side, metric)) is not None]
        sources = ["these replicas"] if spreads else []
        if given is not None:
            spreads.append((given.stored_sd**2 * max(self.starts), given.sessions - 1))
            sources.append(f"{given.sessions} stored sessions")
        if (df := sum(df for _, df in spreads)) < LEAST_DF:
            return given
        variance = fsum(variance * df for variance, df in spreads) / df
        return StartSd(sqrt(variance), f"from {' and '.join(sources)}", df)


def shows_replicas(metric: str) -> bool:
    """Whether replicas that are seen show how much they differ in this metric."""
    return find(metric).family in _COUNTED and find(metric).stat in ("mean", "p50")


def _spread(side: Measurement, metric: str) -> tuple[float, int] | None:
    """Variance of the logarithm between the replicas of a side, and its degrees of freedom; None for fewer than two
    replicas or runs. Run noise is a part of the variance."""
    if not shows_replicas(metric):
        return None
    counted = _COUNTED[str(find(metric).family)]
    readings: dict[str, list[tuple[int, float]]] = {}
    for number, run in enumerate(side.runs):
        for name, counters in run.replicas.items():
            total_s, count = counters.get(f"{counted}_s_sum"), counters.get(f"{counted}_count")
            if total_s and count:
                readings.setdefault(name, []).append((number, log(total_s / count)))
    try:
        noise = estimate_noise(list(readings.values()))
    except ValueError:
        return None
    return noise.level_sd**2, noise.session_df


def _requests(side: Measurement) -> dict[str, float]:
    """Finished requests by replica, over all runs, of the replicas that finished any."""
    totals: dict[str, float] = {}
    for run in side.runs:
        for name, counters in run.replicas.items():
            totals[name] = totals.get(name, 0.0) + (counters.get("requests_finished") or 0.0)
    return {name: total for name, total in totals.items() if total}
