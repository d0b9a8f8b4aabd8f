"""Simulated servers whose requests are not independent: queues, slow spells, outages, speed that varies slowly.

Each process is stationary, so its true percentiles, means and rates do not depend on the length of a run. They are
read from one long simulation of the same process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.metrics.run import CountedBy, RunMetrics
from pytest_llmperf.metrics.summary import STATS, percentile
from pytest_llmperf.model.record import Outcome, RequestRecord, RunRecords
from pytest_llmperf.slo.parse import parse_slo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

RATE_PER_S = 10.0
STEP_S = 0.02
TTFT_S = 0.1
TOKENS = 24
#: Log-sd of one request's TTFT, and of one gap, beside what the process does to all of them.
TTFT_SPREAD, GAP_SPREAD = 0.3, 0.1
#: Slots of the queue's server, and requests that are served before a run is recorded.
SLOTS, BURN_IN = 4, 4000
SERVICE_SPREAD = 0.5
TRUTH_REQUESTS = 400_000
#: Runs of a measurement, and how many times the limit the truth is: the exact limit, beyond it, and far within it.
RUNS, BEYOND = 3, (1.0, 1.1, 0.5)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a simulated server did to the requests of one run, by intended send time.

    Args:
        intended_s: when each request was due.
        ttft_s: of each request.
        gaps_s: requests × gaps between tokens.
        failed: whether each request failed.
    """

    intended_s: Array
    ttft_s: Array
    gaps_s: Array
    failed: npt.NDArray[np.bool_]


#: (random generator, number of requests, gaps of each answer) → what they saw.
Process = Callable[["np.random.Generator", int, int], Traffic]


def steady(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
    """Independent requests."""
    return _served(rng, requests, gaps)


def varying_speed(correlation_s: float, spread: float = 0.3) -> Process:
    """The logarithm of the speed is a stationary Ornstein–Uhlenbeck process.

    Args:
        correlation_s: time in which its autocorrelation falls to 1/e.
        spread: its standard deviation.
    """
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        import numpy as np
        from scipy.signal import lfilter

        intended_s, cells = _timeline(rng, requests, gaps)
        keep = float(np.exp(-STEP_S / correlation_s))
        shocks = rng.standard_normal(cells) * (1 - keep**2) ** 0.5
        shocks[0] /= (1 - keep**2) ** 0.5
        return _served(rng, requests, gaps, intended_s, np.exp(spread * lfilter([1.0], [1.0, -keep], shocks)))

    return process


def slow_spells(every_s: float, length_s: float, times: float) -> Process:
    """Spells in which everything takes `times` as long; the pauses between them are exponential.

    Args:
        every_s: mean time from one spell to the next.
        length_s: of a spell.
        times: how many times slower.
    """
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        import numpy as np

        intended_s, cells = _timeline(rng, requests, gaps)
        slow = _spells(rng, np.linspace(0, cells * STEP_S, cells), every_s, length_s)
        return _served(rng, requests, gaps, intended_s, np.where(slow, times, 1.0))

    return process


def stalling_steps(share: float, times: float) -> Process:
    """Single steps, independent of each other, that take `times` as long for every stream."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        import numpy as np

        intended_s, cells = _timeline(rng, requests, gaps)
        return _served(rng, requests, gaps, intended_s, np.where(rng.random(cells) < share, times, 1.0))

    return process


def stalled_requests(share: float, times: float) -> Process:
    """Single requests, independent of each other, whose first token takes `times` as long."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        import numpy as np

        found = _served(rng, requests, gaps)
        found.ttft_s[:] *= np.where(rng.random(requests) < share, times, 1.0)
        return found

    return process


def outages(every_s: float, length_s: float) -> Process:
    """Every request that is due in an outage fails; the pauses between outages are exponential."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        found = _served(rng, requests, gaps)
        found.failed[:] = _spells(rng, found.intended_s, every_s, length_s)
        return found

    return process


def queue(load: float) -> Process:
    """M/G/c: Poisson arrivals wait for one of `SLOTS` slots; the service time is the TTFT of an empty server."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        import numpy as np

        found = _served(rng, requests, gaps)
        before_s = found.intended_s[0] - rng.exponential(1 / RATE_PER_S, BURN_IN).cumsum()[::-1]
        due_s = np.concatenate([before_s, found.intended_s])
        service_s = load * SLOTS / RATE_PER_S * rng.lognormal(-SERVICE_SPREAD**2 / 2, SERVICE_SPREAD, len(due_s))
        found.ttft_s[:] = (_waits_s(due_s, service_s) + service_s)[BURN_IN:]
        return found

    return process


def _waits_s(due_s: Array, service_s: Array) -> list[float]:
    """First come, first served, by the slot that is free first (Kiefer and Wolfowitz, 1955)."""
    free_s = [float(due_s[0])] * SLOTS
    heapify(free_s)
    waits_s = []
    for due, service in zip(due_s.tolist(), service_s.tolist(), strict=True):
        start = max(due, free_s[0])
        heapreplace(free_s, start + service)
        waits_s.append(start - due)
    return waits_s


def _timeline(rng: np.random.Generator, requests: int, gaps: int) -> tuple[Array, int]:
    """When each request is due, and the steps of `STEP_S` until all answers have ended, however slow they were."""
    intended_s = rng.exponential(1 / RATE_PER_S, requests).cumsum()
    return intended_s, int((intended_s[-1] + 10 * (TTFT_S + gaps * STEP_S)) / STEP_S) + 1000


def _spells(rng: np.random.Generator, at_s: Array, every_s: float, length_s: float) -> npt.NDArray[np.bool_]:
    """Whether each time lies in a spell; the first time is a random one of the process."""
    import numpy as np

    count = int(2 * (at_s[-1] + 60 * every_s) / every_s) + 20
    starts_s = (rng.exponential(every_s - length_s, count) + length_s).cumsum() - 50 * every_s
    latest = starts_s.searchsorted(at_s, side="right") - 1
    return np.asarray(at_s - starts_s[latest] < length_s)


def _served(rng: np.random.Generator, requests: int, gaps: int, intended_s: Array | None = None,
            slowness: Array | None = None) -> Traffic:
    """Requests on a server whose every step of `STEP_S` has a factor; 1 where there is none."""
    import numpy as np

    due_s = rng.exponential(1 / RATE_PER_S, requests).cumsum() if intended_s is None else intended_s
    factors = np.ones(1) if slowness is None else slowness

    def factor(at_s: Array) -> Array:
        return np.asarray(factors[np.minimum((at_s / STEP_S).astype(np.int64), len(factors) - 1)])

    ttft_s = TTFT_S * rng.lognormal(0, TTFT_SPREAD, requests) * factor(due_s)
    noise = STEP_S * rng.lognormal(0, GAP_SPREAD, (gaps, requests))
    now_s = due_s + ttft_s
    gaps_s = np.empty((gaps, requests))
    for number in range(gaps):
        gaps_s[number] = noise[number] * factor(now_s)
        now_s = now_s + gaps_s[number]
    return Traffic(due_s, ttft_s, gaps_s.T, np.zeros(requests, dtype=np.bool_))


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
    gaps = {"ttft": 1, "error": 1}.get(family, TOKENS - 1)
    found = process(rng, TRUTH_REQUESTS, gaps)
    if metric == "error_rate":
        return float(found.failed.mean())
    values = {"ttft": found.ttft_s, "itl": found.gaps_s, "tpot": found.gaps_s.mean(1)}[family]
    share = STATS[stat]
    return 1e3 * float(values.mean() if share is None else np.quantile(values, share))


@dataclass(frozen=True, slots=True)
class Case:
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
    *(Case("independent", steady, metric, 0) for metric in ("ttft_p95", "ttft_p99", "itl_p99", "tpot_mean")),
    *(Case(f"speed ±30 % over {seconds} s", varying_speed(seconds), metric, seconds)
      for seconds in (1, 10) for metric in ("ttft_p95", "itl_p95", "itl_p99", "tpot_p95", "tpot_mean", "ttft_p50")),
    *(Case("queue at 50 % load", queue(0.5), metric, 0.1) for metric in ("ttft_p95", "ttft_p99", "ttft_mean")),
    *(Case("queue at 70 % load", queue(0.7), metric, 1.0) for metric in ("ttft_p95", "ttft_p99", "ttft_mean")),
    *(Case("queue at 85 % load", queue(0.85), metric, 4.1) for metric in ("ttft_p95", "ttft_p99", "ttft_mean")),
    *(Case("queue at 95 % load", queue(0.95), metric, 38.0, (1000, 5000)) for metric in ("ttft_p95", "ttft_mean")),
    *(Case("spells of 1 s, 3 × slower, every 10 s", slow_spells(10, 1, 3), metric, 10)
      for metric in ("ttft_p95", "ttft_p90", "itl_p95", "tpot_p90", "tpot_mean", "ttft_p50")),
    Case("outages of 0.5 s every 50 s", outages(50, 0.5), "error_rate", 50, (300, 1000, 5000)),
    Case("1 % of the steps stall fourfold", stalling_steps(0.01, 4), "itl_p99", 0),
    Case("1 % of the requests stall tenfold", stalled_requests(0.01, 10), "ttft_p99", 0, (100, 300)),
)


def slow_names(case: Case, requests: int) -> list[str]:
    """Keys of the rows that count the verdicts of a case, one for each of `BEYOND`."""
    return [f"{case.name(requests, RUNS)}, truth {times:g} × limit" for times in BEYOND]


def verdicts(case: Case, requests: int, runs: int, trials: int, *, seed: int,
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
    found: list[Counter[str]] = [Counter() for _ in beyond]
    exact = truth(case.process, case.metric, rng)
    slos = [parse_slo(_slo_text(case.metric, exact / times)) for times in beyond]
    for _ in range(trials):
        sample = [simulated_run(case, requests, rng) for _ in range(runs)]
        for slo, counter in zip(slos, found, strict=True):
            counter[judge_slo(slo, sample, ["start"] * runs).verdict.value] += 1
    return found


def simulated_run(case: Case, requests: int, rng: np.random.Generator) -> RunMetrics:
    """One run of a case, as far as its SLO looks at it."""
    family = "e2el" if case.metric == "error_rate" else case.metric.rpartition("_")[0]
    return measured(case.process(rng, requests, 1 if family in ("ttft", "e2el") else TOKENS - 1), family)


def _slo_text(metric: str, limit: float) -> str:
    return f"{metric} <= {100 * limit:.9f}%" if metric == "error_rate" else f"{metric} <= {limit:.9f}ms"
