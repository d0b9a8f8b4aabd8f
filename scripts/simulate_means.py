"""Mean TTFT against its limit: how often the interval with the skewness of slow changes is wrong, and Student's alone.

Many measurements are simulated side by side, so each row has thousands. `simulate_verdicts.py means` prints the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
from simulate_claims import heading, row

from pytest_llmperf.calibration.page import share
from pytest_llmperf.calibration.slow_servers import CASES, RUNS, SlowServerCase, truth
from pytest_llmperf.calibration.traffic import QUEUES, Queue
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.stats.mean import t_interval, wider
from pytest_llmperf.stats.segments import COSINES, slow_interval

Array = npt.NDArray[np.float64]
#: Segments of a run whose means an interval rests on, as in `judging.averages`.
SEGMENTS = 10
CONFIDENCE = 0.95
SERVERS = ("independent", "queue", "speed", "spells")


def means_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """Mean TTFT at its exact limit, beyond the limit and within the limit, without and with the skewness."""
    yield from heading(f"Mean TTFT with and without the skewness of slow changes, {RUNS} runs, {trials} measurements",
                       "server", "requests a run", "run ÷ period", "false PASS at the limit: before → after",
                       "false PASS 10 % beyond: before → after", "false FAIL at the limit: before → after",
                       "PASS where the limit is 1.2 × the truth: before → after", "distance of the upper limit, median")
    servers = {case.server: case for case in CASES if case.server.startswith(SERVERS) and "ttft" in case.metric}
    for case in servers.values():
        exact_s = truth(case.process, "ttft_mean", rng) / 1e3
        for requests in case.requests:
            intervals = [_intervals(runs) for runs in _simulated(case, requests, trials, rng)]
            yield row(case.server, requests, f"{case.periods(requests):.3g}", *_cells(intervals, exact_s))


def _simulated(case: SlowServerCase, requests: int, trials: int, rng: np.random.Generator) -> Iterator[Array]:
    """TTFTs of each measurement, runs × requests."""
    if not isinstance(case.process, Queue):
        yield from (np.stack([case.process(rng, requests, 1).ttft_s for _ in range(RUNS)]) for _ in range(trials))
        return
    unfinished_s = case.process.stationary()[1][rng.integers(QUEUES, size=RUNS * trials)]
    yield from case.process.side_by_side(rng, unfinished_s, requests).T.reshape(trials, RUNS, requests)


def _intervals(ttfts_s: Array) -> tuple[Interval, Interval]:
    """The interval of the mean without skewness, and with it."""
    by_run = ttfts_s.mean(1)
    segments = np.stack([part.mean(1) for part in np.array_split(ttfts_s, SEGMENTS, axis=1)], axis=1)
    over_runs = t_interval(by_run.tolist(), CONFIDENCE, on_log=True)
    after = slow_interval(float(by_run.mean()), segments, COSINES, CONFIDENCE)
    before = Interval(after.low, 2 * float(by_run.mean()) - after.low, CONFIDENCE)  # Student's is symmetric
    return wider(over_runs, before), wider(over_runs, after)


def _cells(intervals: list[tuple[Interval, Interval]], exact_s: float) -> Iterator[str]:
    def before_and_after(holds: Callable[[Interval], bool]) -> str:
        return " → ".join(share(sum(holds(pair[place]) for pair in intervals), len(intervals)) for place in (0, 1))

    yield before_and_after(partial(_passes, limit=exact_s))
    yield before_and_after(partial(_passes, limit=exact_s / 1.1))
    yield before_and_after(lambda interval: interval.low > exact_s)
    yield before_and_after(partial(_passes, limit=1.2 * exact_s))
    yield " → ".join(f"+{100 * np.median([pair[place].high / exact_s - 1 for pair in intervals]):.1f} %"
                     for place in (0, 1))


def _passes(interval: Interval, limit: float) -> bool:
    return interval.high <= limit


TABLES = {"means": means_table}
