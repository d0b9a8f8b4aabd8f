#!/usr/bin/env python3
"""Does the memory of a long load stay flat? The emulator and the load generator at 200 and 500 streams for 30 minutes.

    python scripts/soak_load.py --streams 200 500 --minutes 30

One replay keeps every stream busy for the whole time. Every process of the session is watched: this one, which stands
for pytest, the watchdog, the emulator and the load process. The resident memory (RSS) of each is sampled about every
five seconds. The growth is the slope of a line through the samples after `--settle` minutes. The exit code is 1 where a
process grows by `--limit` MB/min or more, where a request fails, or where the load ends early.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression

from pytest_llmperf import closed, random_tokens, vllm
from pytest_llmperf.config.emulation import Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.server import Server
from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.process.background_thread import in_background
from pytest_llmperf.process.tree import descendants
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.replay import GAUGE_INTERVAL_S
from pytest_llmperf.telemetry.hardware import emulated_hardware

# So few blocks that the emulated prefix cache is full within the first minutes: filling it is growth, too.
ENGINE = vllm("llama-3.1-8b", max_num_seqs=1024, max_model_len=4096, num_gpu_blocks_override=4096)
OUTPUT_TOKENS = 64
FASTEST_ANSWER_S = 8.0  # the plan holds requests enough for answers that take no less
GAUGES_A_SAMPLE = round(5 / GAUGE_INTERVAL_S)
NAMES = {"pytest_llmperf.load.worker": "load process", "watchdog": "watchdog", "pytest_llmperf.emulator": "emulator"}
PLANNED_ENDINGS = (Ending.COMPLETE, Ending.CANCELLED, Ending.NOT_SENT)


@dataclass(slots=True)
class Process:
    """The resident memory of one process over time."""

    name: str
    at_min: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)

    def growth(self, settle_min: float) -> float | None:
        """MB per minute after `settle_min`; None for fewer than three samples."""
        points = [(at, rss) for at, rss in zip(self.at_min, self.rss_mb, strict=True) if at >= settle_min]
        return linear_regression(*zip(*points, strict=True)).slope if len(points) > 2 else None


@dataclass(frozen=True, slots=True)
class Soaked:
    """One load.

    Args:
        streams: requests in flight.
        minutes: that the load lasted.
        chunks_per_s: over all streams.
        processes: that were watched.
        endings: how requests ended that neither completed nor were given up at the planned end, and how many.
        exhausted: whether the plan ran out of requests before the time was over.
    """

    streams: int
    minutes: float
    chunks_per_s: float
    processes: tuple[Process, ...]
    endings: Counter[str]
    exhausted: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the loads one after the other, print the table; the exit code."""
    options = _parser().parse_args(arguments)
    all_held = True
    for streams in options.streams:
        soaked = soak(streams, options.minutes, options.step_time)
        print("\n".join(table(soaked, options.settle, options.limit)), flush=True)
        all_held = all_held and not problems(soaked, options.settle, options.limit)
    return 0 if all_held else 1


def soak(streams: int, minutes: float, step_time: str) -> Soaked:
    """Load an emulated H200 over HTTP, in real time, and watch every process."""
    emulation = Emulation("h200", "real", faults=(f"step_time={step_time}",))
    with tempfile.TemporaryDirectory(prefix="llmperf-soak-") as folder:
        session = PerfSession(Settings(), Path(folder), emulated_hardware("h200", 8), lambda _: None,
                              rng=random.Random(1), emulation=emulation)
        try:
            server = session.pool.acquire(ENGINE.on("h200"))
            return _loaded(session, server, streams, minutes)
        finally:
            session.close()


def _loaded(session: PerfSession, server: Server, streams: int, minutes: float) -> Soaked:
    workload = random_tokens(input=16, output=OUTPUT_TOKENS, arrivals=closed(streams),
                             requests=streams * (2 + round(60 * minutes / FASTEST_ANSWER_S)))
    replayer = session.replayer(None, gauges=False, keep=())
    plan = replayer.plan(server, workload.requests(0), workload.concurrency)
    cancel, processes = threading.Event(), dict[int, Process]()
    began_s = time.monotonic()

    def watch(done: threading.Event) -> None:
        gauges = 0
        while not done.wait(GAUGE_INTERVAL_S):
            server.counters.gauges()  # as a test does that samples them
            gauges += 1
            at_min = (time.monotonic() - began_s) / 60
            if at_min >= minutes:
                cancel.set()
            elif gauges % GAUGES_A_SAMPLE == 0:
                _sample(processes, at_min)

    with in_background(watch, "soak-watch"):
        endings, chunks, elapsed_s = _replayed(session, plan, cancel)
    other = Counter({ending.value: n for ending, n in endings.items() if ending not in PLANNED_ENDINGS})
    return Soaked(streams, elapsed_s / 60, chunks / elapsed_s, tuple(processes.values()), other,
                  exhausted=not cancel.is_set())


def _replayed(session: PerfSession, plan: LoadPlan, cancel: threading.Event) -> tuple[Counter[Ending], int, float]:
    """How requests ended, how many content chunks came, and in which time."""
    def ignore(progress: Progress) -> None:  # asked for, as a watched session does
        del progress

    replay = session.transport.replay(plan, cancel=cancel, progress=ignore)
    endings, chunks = Counter[Ending](), 0
    for exchange in replay.exchanges:
        endings[exchange.ending] += 1
        chunks += len(getattr(exchange, "read_ns", ()))
    return endings, chunks, (replay.ended_ns - replay.started_ns) / 1e9


def _sample(processes: dict[int, Process], at_min: float) -> None:
    for pid in (os.getpid(), *(stat.identity.pid for stat in descendants(os.getpid()))):
        with suppress(OSError, StopIteration):  # it has ended
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
            rss_kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
            process = processes.setdefault(pid, Process(_name_of(pid)))
            process.at_min.append(at_min)
            process.rss_mb.append(rss_kib * 1.024 / 1000)


def _name_of(pid: int) -> str:
    if pid == os.getpid():
        return "pytest's part"
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return next((name for mark, name in NAMES.items() if mark in command), command.replace("\0", " ")[:40])


def problems(soaked: Soaked, settle_min: float, limit: float) -> list[str]:
    """What is wrong with this load; empty where nothing is."""
    grown = [(process, process.growth(settle_min)) for process in soaked.processes]
    watched = [(process, growth) for process, growth in grown if growth is not None]
    growths = [f"{process.name} grows by {growth:.3f} MB/min" for process, growth in watched if growth >= limit]
    growths += [f"{count} requests ended as {ending}" for ending, count in soaked.endings.items()]
    if not watched:
        growths.append(f"no process lived for three samples after {settle_min:g} minutes: nothing was shown")
    if soaked.exhausted:
        growths.append(f"the plan ran out of requests after {soaked.minutes:.1f} minutes")
    return growths


def table(soaked: Soaked, settle_min: float, limit: float) -> list[str]:
    """Markdown, a line a process, and whether the limit was kept."""
    lines = [f"{soaked.streams} streams, {soaked.minutes:.1f} min, {soaked.chunks_per_s:,.0f} reads/s", "",
             "| process | samples | RSS first, MB | RSS last, MB | peak, MB | growth after "
             f"{settle_min:g} min, MB/min |", "|---|---|---|---|---|---|"]
    for process in soaked.processes:
        growth, rss = process.growth(settle_min), process.rss_mb
        shown = "–" if growth is None else f"{growth:+.3f}"
        lines.append(f"| {process.name} | {len(rss)} | {rss[0]:.1f} | {rss[-1]:.1f} | {max(rss):.1f} | {shown} |")
    growing = problems(soaked, settle_min, limit)
    return [
        *lines,
        "",
        f"FAIL: {'; '.join(growing)}" if growing else f"PASS: every process grows by less than {limit:g} MB/min",
        "",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[200, 500], help="requests in flight (200 500)")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long each load lasts (30)")
    parser.add_argument("--settle", type=float, default=5.0, help="minutes before growth counts (5)")
    parser.add_argument("--limit", type=float, default=0.1, help="growth that no process may reach, MB/min (0.1)")
    parser.add_argument("--step-time", default="+1900%", help="slows the emulated steps, so that two shared cores can "
                        "serve every stream (+1900%%)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
