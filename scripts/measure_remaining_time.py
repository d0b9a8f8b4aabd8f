"""Measures the error of the displayed remaining time at each tenth of emulated runs and searches.

`python scripts/measure_remaining_time.py` prints a table. In virtual time (default) the four reports a second of a load
process are rebuilt from the time of each token, at most 100 a run; with `--real` they come from load
processes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_llmperf.load.running_medians import RunningMedians
from pytest_llmperf.load.transport import Progress
from pytest_llmperf.load.virtual import VirtualTransport
from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.model.status import Measuring, SearchRest
from pytest_llmperf.session.progress import RunProgress

REPORT_NS = 250_000_000
TENTHS = range(1, 10)
SEARCH = "max_rate, 500 × 128 tokens a run"
SUITE = """
import pytest
from pytest_llmperf import closed, poisson, random_tokens, vllm

ENGINE = vllm("llama-3.1-8b", max_model_len=8192)
RUNS = {
    "closed(1), 24 × 128 tokens": (128, closed(1), 24),
    "closed(8), 120 × 128 tokens": (128, closed(8), 120),
    "closed(64), 640 × 128 tokens": (128, closed(64), 640),
    "closed(64), 256 × 512 tokens": (512, closed(64), 256),
    "closed(64), 256 × 32–512 tokens": ((32, 512), closed(64), 256),
    "closed(64), 640 × 32–512 tokens": ((32, 512), closed(64), 640),
    "poisson(8), 160 × 128 tokens": (128, poisson(8), 160),
    "poisson(30), 600 × 32–512 tokens": ((32, 512), poisson(30), 600),
}

@pytest.mark.h200
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("seed", range(5))
def test_run(perf, seed, name):
    output, arrivals, requests = RUNS[name]
    load = random_tokens(input=256, output=output, arrivals=arrivals, requests=requests, seed=100 * seed)
    run = perf.measure(ENGINE, load, runs=1)
    perf.check(run, "error_rate == 0")

@pytest.mark.h200
@pytest.mark.parametrize("limit", [25, 30, 35, 40, 50])
def test_search(perf, limit):
    load = random_tokens(input=256, output=128, arrivals=poisson(16), requests=500)
    rate = perf.max_rate(ENGINE, load, slo=f"ttft_p50 <= {limit}ms")
    perf.check(rate, "max_rate >= 1/s")
"""


@dataclass
class Estimates:
    """Estimates of one run or search.

    Args:
        points: seconds since the begin, and the least and the largest estimate of the remaining seconds.
        end_s: seconds from the begin to the end.
    """

    points: list[tuple[float, tuple[float, float] | None]] = field(default_factory=list)
    end_s: float = 0.0

    def errors(self) -> list[tuple[float, float] | None]:
        """Relative errors of the last estimates before each tenth; None where there were none."""
        return [self._error(self.end_s * tenth / 10) for tenth in TENTHS]

    def _error(self, until_s: float) -> tuple[float, float] | None:
        at_s, estimate = [(0.0, None), *(point for point in self.points if point[0] <= until_s)][-1]
        left_s = self.end_s - at_s
        return None if estimate is None else (estimate[0] / left_s - 1, estimate[1] / left_s - 1)


class Collector:
    """A pytest plugin that collects the estimates of each test, by name of the run or search."""

    def __init__(self) -> None:
        self.estimates: dict[str, list[Estimates]] = defaultdict(list)
        self.now_s: Callable[[], float] = time.monotonic

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin with the estimates of a test."""
        name = item.callspec.params.get("name", SEARCH)  # type: ignore[attr-defined]
        self._searching = name == SEARCH
        self._begin_s: float | None = None
        self._current = Estimates()
        self.estimates[name].append(self._current)

    def collect(self) -> None:
        """Collect each status of a run, and the time of the status."""
        status = RunProgress.status

        def collected(shown: RunProgress, progress: Progress, plan: LoadPlan) -> Measuring:
            result = status(shown, progress, plan)
            at_s = self.now_s()
            self._begin_s = at_s - result.elapsed_s if self._begin_s is None else self._begin_s
            rest = result.search or SearchRest(0.0, 0.0)
            known = result.left_s is not None and (result.search is not None or not self._searching)
            estimate = (result.left_s + rest.least_s, result.left_s + rest.most_s) if known else None
            self._current.points.append((at_s - self._begin_s, estimate))
            self._current.end_s = at_s - self._begin_s
            return result

        RunProgress.status = collected  # type: ignore[method-assign]

    def report_in_virtual_time(self) -> None:
        """Report four times a second of virtual time, as a load process would."""
        replay = VirtualTransport.replay

        def replayed(transport: VirtualTransport, plan: LoadPlan, *, cancel: threading.Event,
                     progress: Callable[[Progress], None] | None = None) -> Replay:
            result = replay(transport, plan, cancel=cancel)
            end_s = transport.engines[plan.host].clock.now_ns() / 1e9
            whole_ns = result.ended_ns - result.started_ns
            interval_ns = max(REPORT_NS, whole_ns // 100)
            for elapsed_ns in [*range(interval_ns, whole_ns, interval_ns), whole_ns]:
                at_s = end_s - (whole_ns - elapsed_ns) / 1e9
                self.now_s = lambda at_s=at_s: at_s  # type: ignore[misc]
                if progress is not None:
                    progress(progress_at(result, result.started_ns + elapsed_ns))
            return result

        VirtualTransport.replay = replayed  # type: ignore[method-assign, assignment]


def progress_at(replay: Replay, now_ns: int) -> Progress:
    """The report at that time; each token is one read."""
    medians, sent, reads, ended_reads, done = RunningMedians(), 0, 0, 0, 0
    for exchange in sorted(replay.exchanges, key=lambda exchange: exchange.ended_ns):
        sent += exchange.sent_ns is not None and exchange.sent_ns <= now_ns
        stamps = exchange.token_ns  # type: ignore[union-attr]
        reads += sum(stamp_ns <= now_ns for stamp_ns in stamps)
        if exchange.ended_ns <= now_ns:
            done += 1
            ended_reads += len(stamps)
            medians.add(exchange)
    return Progress(sent, done, 0, now_ns - replay.started_ns, medians.ttft_ns, medians.itl_ns, medians.durations_ns,
                    reads, ended_reads)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="real time and real load processes")
    parser.add_argument("-k", default="", help="as in pytest")
    arguments = parser.parse_args()
    collector = Collector()
    collector.collect()
    if not arguments.real:
        collector.report_in_virtual_time()
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "test_remaining_time.py"
        suite.write_text(SUITE)
        clock = "real" if arguments.real else "virtual"
        code = pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", folder, "--emulate", "h200", "-k", arguments.k,
                            "--emulate-clock", clock, str(suite)], plugins=[collector])
    columns = [f"{tenth}0 %" for tenth in TENTHS]
    print("\n| load | seconds | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 2) + "|")
    for name, estimates in collector.estimates.items():
        bounds = {f"{name}, least": 0, f"{name}, most": 1} if name == SEARCH else {name: 0}
        seconds = f"{min(each.end_s for each in estimates):.0f}–{max(each.end_s for each in estimates):.0f}"
        errors = list(zip(*(each.errors() for each in estimates), strict=True))
        for row, bound in bounds.items():
            print(f"| {row} | {seconds} | " + " | ".join(shown(tenth, bound) for tenth in errors) + " |")
    return int(code)


def shown(errors: tuple[tuple[float, float] | None, ...], bound: int) -> str:
    """The smallest and largest error of several runs, in percent, and how many had an estimate, unless all had one."""
    present = [error[bound] for error in errors if error is not None]
    if not present:
        return "–"
    count = "" if len(present) == len(errors) else f" ({len(present)} of {len(errors)})"
    low, high = f"{100 * min(present):+.0f}", f"{100 * max(present):+.0f}"
    return (low if low == high else f"{low} … {high}") + count


if __name__ == "__main__":
    sys.exit(main())
