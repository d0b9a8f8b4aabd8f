"""SLOs on means and medians: rates of false verdicts on slow, skewed and heavy-tailed servers.

    python scripts/simulate_verdicts.py means one_run --suites 1000

`judging.requirements.judge_slo` judges each simulated measurement once, at its exact limit. The verdicts at other
limits follow from the interval of that result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import exp

import numpy as np
from simulate_claims import heading, row

from pytest_llmperf.calibration.page import share
from pytest_llmperf.calibration.slow_servers import measured
from pytest_llmperf.calibration.traffic import (
    TTFT_S,
    TTFT_SPREAD,
    Process,
    Queue,
    Traffic,
    slow_spells,
    steady,
    varying_speed,
)
from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.stats.interval import Interval

#: Share of the starts that are slow in `Cell.slow_starts`, and how many times slower.
SLOW_SHARE, SLOWER = 0.3, 1.3
LARGE = 400_000


@dataclass(frozen=True)
class Cell:
    """One SLO on one simulated server.

    Args:
        server: what the process is, for people.
        process: of the server.
        requests, runs: of each measurement.
        slow_starts: whether each run is of a start of its own, `SLOW_SHARE` of them `SLOWER` times slower.
        metric: whose exact limit is judged.
    """

    server: str
    process: Process
    requests: int
    runs: int = 3
    slow_starts: bool = False
    metric: str = "ttft_mean"


def heavy_tailed(index: float) -> Process:
    """Independent requests whose TTFT has Pareto's distribution; the variance is infinite up to an index of 2."""
    def process(rng: np.random.Generator, requests: int, gaps: int) -> Traffic:
        traffic = steady(rng, requests, gaps)
        return replace(traffic, ttft_s=TTFT_S * (1 + rng.pareto(index, requests)))

    return process


#: Correlation times in requests: 25 and 52 behind eight slots whose service times have a log-sd of 0.5 and 1.
WIDE, WIDE_SKEWED = Queue(0.85, 8), Queue(0.85, 8, 1.0)
QUICK = (
    Cell("independent", steady, 300), Cell("independent", steady, 300, runs=1),
    Cell("Pareto 1.5", heavy_tailed(1.5), 300), Cell("Pareto 1.5", heavy_tailed(1.5), 300, runs=1),
    Cell("Pareto 2.5", heavy_tailed(2.5), 300, runs=1),
    Cell("3 starts, 30 % of all are 1.3 × slower", steady, 300, slow_starts=True),
)  # fmt: skip
MEANS = (
    *QUICK,
    Cell("speed ±30 % over 1 s, 30 periods", varying_speed(1), 300),
    Cell("speed ±30 % over 10 s, 10 periods", varying_speed(10), 1000),
    Cell("spells of 1 s, 3 × slower, every 10 s, 10 periods", slow_spells(10, 1, 3), 1000),
    Cell("4 slots at 50 % load, 300 periods", Queue(0.5), 300),
    Cell("4 slots at 70 % load, 30 periods", Queue(0.7), 300),
    Cell("4 slots at 85 % load, 10 periods", Queue(0.85), 410),
    Cell("4 slots at 85 % load, 25 periods", Queue(0.85), 1000),
    Cell("8 slots at 85 % load, 10 periods", WIDE, 250), Cell("8 slots at 85 % load, 25 periods", WIDE, 620),
    Cell("8 slots at 85 % load, skewed, 10 periods", WIDE_SKEWED, 520),
    Cell("4 slots at 95 % load, 13 periods", Queue(0.95), 5000),
)  # fmt: skip
ONE_RUN = tuple(
    Cell(server, process, requests, 1, metric=metric)
    for server, process in (("independent", steady), ("4 slots at 85 % load", Queue(0.85)),
                            ("4 slots at 95 % load", Queue(0.95)), ("speed ±30 % over 10 s", varying_speed(10)))
    for metric in ("ttft_p50", "ttft_mean", "ttft_p95") for requests in (300, 1000)
)  # fmt: skip


def exact_ms(cell: Cell) -> float:
    """The true value of the cell's metric."""
    if cell.process is steady:
        middle_ms = 1e3 * TTFT_S * (exp(TTFT_SPREAD**2 / 2) if cell.metric == "ttft_mean" else 1.0)
        if cell.metric != "ttft_p95":
            return middle_ms * (1 + SLOW_SHARE * (SLOWER - 1) if cell.slow_starts else 1.0)
    queue = isinstance(cell.process, Queue)
    values = cell.process.stationary()[0] if queue else cell.process(np.random.default_rng(0), LARGE, 1).ttft_s
    if cell.server == "Pareto 1.5":
        return 1e3 * TTFT_S * 3
    statistics = {"ttft_mean": np.mean, "ttft_p50": np.median, "ttft_p95": lambda each: np.quantile(each, 0.95)}
    return 1e3 * float(statistics[cell.metric](values))


def judged(cell: Cell, limit_ms: float, rng: np.random.Generator) -> CheckResult:
    """One measurement, judged at the limit."""
    traffic = [cell.process(rng, cell.requests, 1) for _ in range(cell.runs)]
    if cell.slow_starts:
        traffic = [replace(run, ttft_s=run.ttft_s * (SLOWER if rng.random() < SLOW_SHARE else 1)) for run in traffic]
    starts = [f"start {number}" if cell.slow_starts else "start" for number in range(cell.runs)]
    slo = parse_slo(f"{cell.metric} <= {limit_ms:.9f}ms")
    return judge_slo(slo, [measured(run, "ttft") for run in traffic], starts)


def means_table(trials: int, rng: np.random.Generator, cells: tuple[Cell, ...] = MEANS) -> Iterator[str]:
    """Mean TTFT at its exact limit, beyond the limit and within the limit."""
    yield from heading(f"Mean TTFT, {trials} measurements", "server", "runs × requests", "false PASS at the limit",
                       "false PASS 10 % beyond", "false FAIL at the limit", "PASS where the limit is 1.1 × the truth",
                       "1.2 ×", "1.5 ×")
    for cell in cells:
        exact = exact_ms(cell)
        intervals = [judged(cell, exact, rng).interval for _ in range(trials)]
        yield row(cell.server, f"{cell.runs} × {cell.requests}",
                  *(passes(intervals, times * exact) for times in (1, 1 / 1.1)),
                  counted(intervals, lambda interval, exact=exact: interval.low > exact),
                  *(passes(intervals, times * exact) for times in (1.1, 1.2, 1.5)))


def passes(intervals: list[Interval | None], limit_ms: float) -> str:
    return counted(intervals, lambda interval: interval.high <= limit_ms)


def counted(intervals: list[Interval | None], holds: Callable[[Interval], bool]) -> str:
    """How many hold; a measurement without an interval is INCONCLUSIVE."""
    return share(sum(interval is not None and holds(interval) for interval in intervals), len(intervals))


def one_run_table(trials: int, rng: np.random.Generator, cells: tuple[Cell, ...] = ONE_RUN) -> Iterator[str]:
    """A single run, at the exact limit and where the truth is many times the limit."""
    yield from heading(f"One run, {trials} measurements", "server", "metric", "requests", "false PASS at the limit",
                       "false FAIL at the limit", "PASS where the limit is twice the truth",
                       "FAIL where the truth is 3 × the limit", "10 ×")
    for cell in cells:
        exact = exact_ms(cell)
        counts = [[judged(cell, exact / times, rng).verdict.value for _ in range(trials)] for times in (1, 0.5, 3, 10)]
        yield row(cell.server, cell.metric, cell.requests, share(counts[0].count("PASS"), trials),
                  *(share(verdicts.count(wanted), trials)
                    for verdicts, wanted in zip(counts, ("FAIL", "PASS", "FAIL", "FAIL"), strict=True)))


TABLES = {"means": means_table, "one_run": one_run_table}
