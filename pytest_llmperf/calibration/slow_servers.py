"""SLOs on simulated servers whose requests are not independent (`calibration.traffic`), and how often they are wrong.

The true percentiles, means and rates are read from one long simulation of the same process, and for a queue from many
simulated side by side: behind a queue at 95 % load the mean TTFT of 400,000 requests has a standard error of 4 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_llmperf.calibration.traffic import (
    RATE_PER_S,
    Process,
    Queue,
    Traffic,
    outages,
    slow_spells,
    stalled_requests,
    stalling_steps,
    steady,
    varying_speed,
)
from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.metrics.run import CountedBy, RunMetrics
from pytest_llmperf.metrics.summary import STATS, percentile
from pytest_llmperf.model.record import Outcome, RequestRecord, RunRecords
from pytest_llmperf.slo.parse import parse_slo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

TOKENS = 24
TRUTH_REQUESTS = 400_000
#: Runs of a measurement, and how many times the limit the truth is: the exact limit, beyond it, and far within it.
RUNS, BEYOND = 3, (1.0, 1.1, 0.5)


def measured(traffic: Traffic, family: str) -> RunMetrics:
    """The run as far as a check of one latency, or of the error rate, looks at it."""
    import numpy as np

    stamps_s = np.concatenate([traffic.ttft_s[:, None], traffic.gaps_s], axis=1).cumsum(1) + traffic.intended_s[:, None]
    stamps_ns = np.rint(stamps_s * 1e9).astype(np.int64).tolist()
    due_ns = np.rint(traffic.intended_s * 1e9).astype(np.int64).tolist()
    records = RunRecords(_record(index, due, stamps, failed) for index, (due, stamps, failed)
                    in enumerate(zip(due_ns, stamps_ns, traffic.failed.tolist(), strict=True)))
    run = RunMetrics(records, {}, CountedBy.CHUNKS)
    pooled = sorted(run.samples(family))
    values: dict[str, float | None] = {
        f"{family}_{stat}": sum(pooled) / len(pooled) if share is None else percentile(pooled, share)
        for stat, share in STATS.items()}
    values["error_rate"] = float(traffic.failed.mean())
    return replace(run, values=values)


def _record(index: int, due_ns: int, stamps_ns: list[int], failed: bool) -> RequestRecord:
    tokens = len(stamps_ns)
    if failed:
        return RequestRecord(index, due_ns, due_ns, due_ns + 1_000_000, Outcome.HTTP_STATUS, "503",
                             asked_output_tokens=tokens)
    return RequestRecord(index, due_ns, due_ns, stamps_ns[-1], Outcome.OK, None, tuple(stamps_ns), (1,) * tokens,
                         8, tokens, 8, tokens)


def truth(process: Process, metric: str, rng: np.random.Generator) -> float:
    """The true value of "ttft_p99", "itl_p99", "tpot_mean", "error_rate" and their like, in the metric's unit."""
    import numpy as np

    family, _, stat = metric.rpartition("_")
    if metric == "error_rate":
        return float(process(rng, TRUTH_REQUESTS, 1).failed.mean())
    values, share = _stationary_values_s(process, family, rng), STATS[stat]
    return 1e3 * float(values.mean() if share is None else np.quantile(values, share))


def _stationary_values_s(process: Process, family: str, rng: np.random.Generator) -> Array:
    """Many values of a latency."""
    if isinstance(process, Queue) and family == "ttft":
        return process.stationary()[0]
    traffic = process(rng, TRUTH_REQUESTS, 1 if family == "ttft" else TOKENS - 1)
    values: Array = {"ttft": traffic.ttft_s, "itl": traffic.gaps_s, "tpot": traffic.gaps_s.mean(1)}[family]
    return values


@dataclass(frozen=True, slots=True)
class SlowServerCase:
    """One SLO on one simulated server.

    Args:
        server: what the process is, for people.
        process: of the server.
        metric: that the SLO limits.
        period_s: correlation time of the process, or mean time between its spells; 0 where requests are independent.
        requests: of each run, one row of the table each.
    """

    server: str
    process: Process
    metric: str
    period_s: float
    requests: tuple[int, ...] = (300, 1000)

    def name(self, requests: int, runs: int) -> str:
        """Key of one row."""
        return f"{self.server}: {self.metric}, {runs} × {requests} requests"

    def periods(self, requests: int) -> float:
        """Length of a run in periods; infinite where requests are independent."""
        return requests / RATE_PER_S / self.period_s if self.period_s else float("inf")


#: Correlation times of the TTFT behind the queues: integrals of the autocorrelation over 2,000,000 simulated requests.
CASES = (
    *(SlowServerCase("independent", steady, metric, 0) for metric in ("ttft_p95", "ttft_p99", "itl_p99", "tpot_mean")),
    *(
        SlowServerCase(f"speed ±30 % over {seconds} s", varying_speed(seconds), metric, seconds)
        for seconds in (1, 10)
        for metric in ("ttft_p95", "itl_p95", "itl_p99", "tpot_p95", "tpot_mean", "ttft_p50")
    ),
    *(
        SlowServerCase("queue at 50 % load", Queue(0.5), metric, 0.1)
        for metric in ("ttft_p95", "ttft_p99", "ttft_mean")
    ),
    *(
        SlowServerCase("queue at 70 % load", Queue(0.7), metric, 1.0)
        for metric in ("ttft_p95", "ttft_p99", "ttft_mean")
    ),
    *(
        SlowServerCase("queue at 85 % load", Queue(0.85), metric, 4.1)
        for metric in ("ttft_p95", "ttft_p99", "ttft_mean")
    ),
    *(
        SlowServerCase("queue at 95 % load", Queue(0.95), metric, 38.0, (1000, 5000))
        for metric in ("ttft_p95", "ttft_mean")
    ),
    *(
        SlowServerCase("spells of 1 s, 3 × slower, every 10 s", slow_spells(10, 1, 3), metric, 10)
        for metric in ("ttft_p95", "ttft_p90", "itl_p95", "tpot_p90", "tpot_mean", "ttft_p50")
    ),
    SlowServerCase("outages of 0.5 s every 50 s", outages(50, 0.5), "error_rate", 50, (300, 1000, 5000)),
    SlowServerCase("1 % of the steps stall fourfold", stalling_steps(0.01, 4), "itl_p99", 0),
    SlowServerCase("1 % of the requests stall tenfold", stalled_requests(0.01, 10), "ttft_p99", 0, (100, 300)),
)


def slow_names(case: SlowServerCase, requests: int) -> list[str]:
    """Keys of the rows that count the verdicts of a case, one for each of `BEYOND`."""
    return [f"{case.name(requests, RUNS)}, truth {times:g} × limit" for times in BEYOND]


def verdicts(case: SlowServerCase, requests: int, runs: int, trials: int, *, seed: int,
             beyond: Sequence[float] = BEYOND) -> list[Counter[str]]:
    """How often each verdict comes at limits that the truth exceeds.

    Args:
        case: the SLO and its server.
        requests, runs: of each trial.
        trials: independent ones.
        seed: of the simulation.
        beyond: how many times the limit the truth is; 1 is the exact limit.

    Returns:
        One counter for each of `beyond`, over the same simulated runs.
    """
    import numpy as np

    rng = np.random.default_rng((seed, requests, runs, *case.name(0, 0).encode()))
    counts: list[Counter[str]] = [Counter() for _ in beyond]
    exact = truth(case.process, case.metric, rng)
    slos = [parse_slo(_slo_text(case.metric, exact / times)) for times in beyond]
    for _ in range(trials):
        sample = [simulated_run(case, requests, rng) for _ in range(runs)]
        for slo, counter in zip(slos, counts, strict=True):
            counter[judge_slo(slo, sample, ["start"] * runs).verdict.value] += 1
    return counts


def simulated_run(case: SlowServerCase, requests: int, rng: np.random.Generator) -> RunMetrics:
    """One run of a case, as far as its SLO looks at it."""
    family = "e2el" if case.metric == "error_rate" else case.metric.rpartition("_")[0]
    return measured(case.process(rng, requests, 1 if family in ("ttft", "e2el") else TOKENS - 1), family)


def _slo_text(metric: str, limit: float) -> str:
    return f"{metric} <= {100 * limit:.9f}%" if metric == "error_rate" else f"{metric} <= {limit:.9f}ms"
