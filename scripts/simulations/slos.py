"""SLOs on simulated servers: rates of false verdicts where the truth is known, and of decisions.

The true percentiles, means and rates are read from one long simulation of the same process, and for a queue from many
simulated side by side: behind a queue at 95 % load the mean TTFT of 400,000 requests has a standard error of 4 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.metrics.run import CountedBy, RunMetrics
from pytest_llmperf.metrics.summary import STATS
from pytest_llmperf.model.record import Outcome, RequestRecord, RunRecords
from pytest_llmperf.slo.parse import parse_slo
from simulations.tables import Table, heading, row, share
from simulations.traffic import (
    RATE_PER_S,
    TTFT_S,
    TTFT_SPREAD,
    Array,
    Process,
    Queue,
    Traffic,
    heavy_tailed,
    like_neighbours,
    outages,
    slow_spells,
    stalled_requests,
    stalling_steps,
    steady,
    varying_speed,
)

TOKENS = 24
TRUTH_REQUESTS = 400_000
#: How many times longer the requests of so many server starts take.
StartFactors = Callable[[np.random.Generator, int], Array]


@dataclass(frozen=True)
class Case:
    """One SLO on one simulated server.

    Args:
        server: what the process is, for people.
        process: of the server.
        metric: that the SLO limits.
        requests, runs: of each measurement.
        period_s: correlation time of the process, or mean time between its spells; 0 where requests are independent.
        starts: of the runs, each on a start of its own; None for a common start.
        exact: the true value, where it is known without a simulation.
    """

    server: str
    process: Process
    metric: str = "ttft_mean"
    requests: int = 300
    runs: int = 3
    period_s: float = 0.0
    starts: StartFactors | None = None
    exact: float | None = None

    @property
    def periods(self) -> float:
        """Length of a run in periods; infinite if requests are independent."""
        return self.requests / RATE_PER_S / self.period_s if self.period_s else float("inf")

    @property
    def labels(self) -> tuple[str, ...]:
        return self.server, self.metric, f"{self.runs} × {self.requests}", f"{self.periods:.3g}"

    def truth(self, rng: np.random.Generator) -> float:
        """The true value of the metric in its unit."""
        if self.exact is not None:
            return self.exact
        if self.metric == "error_rate":
            return float(self.process(rng, TRUTH_REQUESTS, 1).failed.mean())
        if isinstance(self.process, Queue):
            values_s = self.process.stationary()[0]
        else:
            values_s = latencies_s(self._traffic(rng, TRUTH_REQUESTS), self.metric)
            values_s = values_s if self.starts is None else values_s * self.starts(rng, len(values_s))
        return statistic(1e3 * values_s, self.metric)

    def run(self, rng: np.random.Generator, start_factor: float = 1.0) -> RunMetrics:
        """One run with the values of the SLO."""
        traffic = self._traffic(rng, self.requests)
        return measured(replace(traffic, ttft_s=start_factor * traffic.ttft_s), self.metric)

    def sample(self, rng: np.random.Generator) -> list[RunMetrics]:
        """The runs of one measurement."""
        factors = np.ones(self.runs) if self.starts is None else self.starts(rng, self.runs)
        return [self.run(rng, float(factor)) for factor in factors]

    def _traffic(self, rng: np.random.Generator, requests: int) -> Traffic:
        return self.process(rng, requests, 1 if self.metric.startswith(("ttft", "error")) else TOKENS - 1)

    def verdicts(self, trials: int, rng: np.random.Generator, excesses: Sequence[float]) -> Counter[tuple[float, str]]:
        """How often each verdict comes at limits that the truth exceeds by these factors, over the same runs."""
        exact = self.truth(rng)
        slos = {excess: parse_slo(slo_text(self.metric, exact / excess)) for excess in excesses}
        counts: Counter[tuple[float, str]] = Counter()
        for _ in range(trials):
            sample = self.sample(rng)
            starts = [f"start {number * (self.starts is not None)}" for number in range(self.runs)]
            counts.update((excess, judge_slo(slo, sample, starts).verdict.value) for excess, slo in slos.items())
        return counts


def latencies_s(traffic: Traffic, metric: str) -> Array:
    values: Array = {"ttft": traffic.ttft_s, "itl": traffic.gaps_s, "tpot": traffic.gaps_s.mean(1)}[
        metric.rpartition("_")[0]]
    return values


def statistic(values: Array, metric: str) -> float:
    share_below = STATS[metric.rpartition("_")[2]]
    return float(values.mean() if share_below is None else np.quantile(values, share_below))


def measured(traffic: Traffic, metric: str) -> RunMetrics:
    """The run as far as a check of this metric looks at it."""
    stamps_s = np.concatenate([traffic.ttft_s[:, None], traffic.gaps_s], axis=1).cumsum(1) + traffic.intended_s[:, None]
    stamps_ns = np.rint(stamps_s * 1e9).astype(np.int64).tolist()
    due_ns = np.rint(traffic.intended_s * 1e9).astype(np.int64).tolist()
    records = RunRecords(_record(index, due, stamps, failed) for index, (due, stamps, failed)
                         in enumerate(zip(due_ns, stamps_ns, traffic.failed.tolist(), strict=True)))
    value = (float(traffic.failed.mean()) if metric == "error_rate" else
             statistic(1e3 * latencies_s(traffic, metric)[~traffic.failed], metric))
    return RunMetrics(records, {metric: value, "error_rate": float(traffic.failed.mean())}, CountedBy.CHUNKS)


def _record(index: int, due_ns: int, stamps_ns: list[int], failed: bool) -> RequestRecord:
    tokens = len(stamps_ns)
    if failed:
        return RequestRecord(index, due_ns, due_ns, due_ns + 1_000_000, Outcome.HTTP_STATUS, "503",
                             asked_output_tokens=tokens)
    return RequestRecord(index, due_ns, due_ns, stamps_ns[-1], Outcome.OK, None, tuple(stamps_ns), (1,) * tokens,
                         8, tokens, 8, tokens)


def slo_text(metric: str, limit: float) -> str:
    return f"{metric} <= {100 * limit:.9f}%" if metric == "error_rate" else f"{metric} <= {limit:.9f}ms"


#: Server → its process, its period in seconds, the metrics of its SLOs and the requests of each run. The correlation
#: times of the TTFT behind the queues are integrals of the autocorrelation over 2,000,000 simulated requests.
_TTFTS = ("ttft_p95", "ttft_p99", "ttft_mean")
_SPEEDS = ("ttft_p95", "itl_p95", "itl_p99", "tpot_p95", "tpot_mean", "ttft_p50")
_SPELLS = ("ttft_p95", "ttft_p90", "itl_p95", "tpot_p90", "tpot_mean", "ttft_p50")
SERVERS: tuple[tuple[str, Process, float, tuple[str, ...], tuple[int, ...]], ...] = (
    ("independent", steady, 0, ("ttft_p95", "ttft_p99", "itl_p99", "tpot_mean"), (300, 1000)),
    ("speed ±30 % over 1 s", varying_speed(1), 1, _SPEEDS, (300, 1000)),
    ("speed ±30 % over 10 s", varying_speed(10), 10, _SPEEDS, (300, 1000)),
    ("queue at 50 % load", Queue(0.5), 0.1, _TTFTS, (300, 1000)),
    ("queue at 70 % load", Queue(0.7), 1.0, _TTFTS, (300, 1000)),
    ("queue at 85 % load", Queue(0.85), 4.1, _TTFTS, (300, 1000)),
    ("queue at 95 % load", Queue(0.95), 38.0, ("ttft_p95", "ttft_mean"), (1000, 5000)),
    ("spells of 1 s, 3 × slower, every 10 s", slow_spells(10, 1, 3), 10, _SPELLS, (300, 1000)),
    ("outages of 0.5 s every 50 s", outages(50, 0.5), 50, ("error_rate",), (300, 1000, 5000)),
    ("1 % of the steps stall fourfold", stalling_steps(0.01, 4), 0, ("itl_p99",), (300, 1000)),
    ("1 % of the requests stall tenfold", stalled_requests(0.01, 10), 0, ("ttft_p99",), (100, 300)),
)
SLOW = tuple(Case(server, process, metric, requests, period_s=period_s)
             for server, process, period_s, metrics, lengths in SERVERS for metric in metrics for requests in lengths)
#: Correlation times in requests: 25 and 52 behind eight slots whose service times have a log-sd of 0.5 and 1.
WIDE, SKEWED = Queue(0.85, 8), Queue(0.85, 8, 1.0)
PARETO_MEAN_MS = 1e3 * TTFT_S * 3
MEANS = (
    Case("independent", steady), Case("independent", steady, runs=1),
    Case("Pareto 1.5", heavy_tailed(1.5), exact=PARETO_MEAN_MS),
    Case("Pareto 1.5", heavy_tailed(1.5), runs=1, exact=PARETO_MEAN_MS), Case("Pareto 2.5", heavy_tailed(2.5), runs=1),
    Case("3 starts, 30 % of all are 1.3 × slower", steady,
         starts=lambda rng, count: np.where(rng.random(count) < 0.3, 1.3, 1.0)),
    Case("speed ±30 % over 1 s", varying_speed(1), period_s=1),
    Case("speed ±30 % over 10 s", varying_speed(10), requests=1000, period_s=10),
    Case("spells of 1 s, 3 × slower, every 10 s", slow_spells(10, 1, 3), requests=1000, period_s=10),
    Case("4 slots at 50 % load", Queue(0.5), period_s=0.1), Case("4 slots at 70 % load", Queue(0.7), period_s=1),
    Case("4 slots at 85 % load", Queue(0.85), requests=410, period_s=4.1),
    Case("4 slots at 85 % load", Queue(0.85), requests=1000, period_s=4.1),
    Case("8 slots at 85 % load", WIDE, requests=250, period_s=2.5),
    Case("8 slots at 85 % load", WIDE, requests=620, period_s=2.5),
    Case("8 slots at 85 % load, skewed", SKEWED, requests=520, period_s=5.2),
    Case("4 slots at 95 % load", Queue(0.95), requests=5000, period_s=38),
)  # fmt: skip
ONE_RUN = tuple(
    Case(server, process, metric, requests, 1, period_s) for server, process, period_s in (
        ("independent", steady, 0.0), ("4 slots at 85 % load", Queue(0.85), 4.1),
        ("4 slots at 95 % load", Queue(0.95), 38.0), ("speed ±30 % over 10 s", varying_speed(10), 10.0))
    for metric in ("ttft_p50", "ttft_mean", "ttft_p95") for requests in (300, 1000)
)  # fmt: skip


def starts_apart(sds: float) -> StartFactors:
    """Server starts that differ by so many sds of the requests."""
    return lambda rng, count: np.exp(sds * TTFT_SPREAD * rng.standard_normal(count))


STARTS = tuple(
    Case(f"AR(1) of 0.6, starts differ by {sds:g} sd", like_neighbours(0.6), metric, requests, 5,
         starts=starts_apart(sds))
    for metric, requests in (("ttft_p95", 100), ("ttft_p95", 330), ("ttft_p99", 330)) for sds in (0.0, 0.3, 1.0)
)  # fmt: skip

#: Heading of a column → how many times the limit the truth is, and the verdict that the column counts.
FALSE = {"false PASS at the limit": (1.0, "PASS"), "false FAIL at the limit": (1.0, "FAIL"),
         "false PASS 10 % beyond": (1.1, "PASS")}
WITHIN = {f"PASS where the limit is {times:g} × the truth": (1 / times, "PASS") for times in (1.1, 1.2, 1.5, 2)}
BEYOND = {f"FAIL where the truth is {times:g} × the limit": (float(times), "FAIL") for times in (3, 10)}


def table(title: str, cases: Sequence[Case], columns: dict[str, tuple[float, str]]) -> Table:
    """A row for each case."""
    def lines(trials: int, rng: np.random.Generator) -> Iterator[str]:
        yield from heading(f"{title}, {trials} measurements", "server", "metric", "runs × requests", "run ÷ period",
                           *columns)
        for case in cases:
            counts = case.verdicts(trials, rng, list(dict.fromkeys(excess for excess, _ in columns.values())))
            yield row(*case.labels, *(share(counts[column], trials) for column in columns.values()))

    return lines


TABLES: dict[str, Table] = {
    "slow": table("SLOs on servers that change slowly", (*SLOW, *(replace(case, runs=1) for case in SLOW)),
                  FALSE | {"PASS where the limit is 2 × the truth": (0.5, "PASS")}),
    "means": table("Mean TTFT", MEANS, FALSE | WITHIN),
    "one_run": table("One run", ONE_RUN, FALSE | WITHIN | BEYOND),
    "starts_apart": table("SLOs on server starts that differ", STARTS, FALSE),
}
