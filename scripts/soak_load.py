#!/usr/bin/env python3
"""Does the memory of a long load stay flat? The emulator and the load generator at 200 and 500 streams for 30 minutes.

    python scripts/soak_load.py --streams 200 500 --minutes 30

One replay keeps every stream busy for the whole time. Every process of the session is watched: this one, which stands
for pytest, the watchdog, the emulator and the load process. The resident memory (RSS) of each is sampled about every
five seconds. The growth is the slope of a line through the samples after the first five minutes. The exit code is 1
where a process grows by 0.1 MB/min or more, where a request fails, or where the load ends early.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import linear_regression

import markdown_pages

from pytest_llmperf import closed, random_tokens, vllm
from pytest_llmperf.config.emulation import Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.server import Server
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.process.background_thread import in_background
from pytest_llmperf.process.tree import descendants
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.replay import GAUGE_INTERVAL_S
from pytest_llmperf.telemetry.hardware import emulated_hardware

# So few blocks that the emulated prefix cache is full within the first minutes: filling it is growth, too.
ENGINE = vllm("llama-3.1-8b", max_num_seqs=1024, max_model_len=4096, num_gpu_blocks_override=4096)
OUTPUT_TOKENS = 64
STEP_TIME = "step_time=+1900%"  # two shared cores can serve every stream of steps so slow
FASTEST_ANSWER_S = 8.0  # the plan holds requests enough for answers that take no less
GAUGES_A_SAMPLE = round(5 / GAUGE_INTERVAL_S)
SETTLED_MIN = 5.0
LIMIT_MB_PER_MIN = 0.1
NAMES = {"pytest_llmperf.load.worker": "load process", "watchdog": "watchdog", "pytest_llmperf.emulator": "emulator"}
PLANNED_ENDINGS = {Ending.COMPLETE, Ending.CANCELLED, Ending.NOT_SENT}

#: Name of a process → its samples: minutes since the start of the load, and resident memory in MB.
Samples = dict[str, list[tuple[float, float]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each load in turn and print its table. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[200, 500], help="requests in flight (200 500)")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long each load lasts (30)")
    options = parser.parse_args(arguments)
    all_wrong = []
    for streams in options.streams:
        samples, endings = soak(streams, options.minutes)
        wrong = problems(samples, endings)
        print(f"{streams} streams\n", table(samples), f"\n{'FAIL: ' + '; '.join(wrong) if wrong else 'PASS'}\n",
              sep="\n", flush=True)
        all_wrong += wrong
    return int(bool(all_wrong))


def soak(streams: int, minutes: float) -> tuple[Samples, Counter[Ending]]:
    """Load an emulated H200 over HTTP, in real time. The memory of every process, and how requests ended."""
    emulation = Emulation("h200", "real", faults=(STEP_TIME,))
    with tempfile.TemporaryDirectory(prefix="llmperf-soak-") as folder:
        session = PerfSession(Settings(), Path(folder), emulated_hardware("h200", 8), lambda _: None,
                              rng=random.Random(1), emulation=emulation)
        try:
            return _loaded(session, session.pool.acquire(ENGINE.on("h200")), streams, minutes)
        finally:
            session.close()


def _loaded(session: PerfSession, server: Server, streams: int, minutes: float) -> tuple[Samples, Counter[Ending]]:
    workload = random_tokens(input=16, output=OUTPUT_TOKENS, arrivals=closed(streams),
                             requests=streams * (2 + round(60 * minutes / FASTEST_ANSWER_S)))
    plan = session.replayer.plan(server, workload.requests(0), workload.concurrency)
    cancel, samples = threading.Event(), Samples()
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
                sample(samples, at_min)

    with in_background(watch, "soak-watch"):
        # A watched session asks for the progress.
        replay = session.transport.replay(plan, cancel=cancel, progress=lambda _: None)
    return samples, Counter(exchange.ending for exchange in replay.exchanges)


def sample(samples: Samples, at_min: float) -> None:
    """Add the resident memory of this process and of all processes that it started."""
    for pid in (os.getpid(), *(stat.identity.pid for stat in descendants(os.getpid()))):
        with suppress(OSError, StopIteration):  # it has ended
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
            rss_kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            name = next((name for mark, name in NAMES.items() if mark in command), command.replace("\0", " ")[:40])
            samples.setdefault("pytest's part" if pid == os.getpid() else f"{name} {pid}", []).append(
                (at_min, rss_kib * 1.024 / 1000))


def growth(points: Sequence[tuple[float, float]]) -> float | None:
    """MB per minute after the first minutes; None for fewer than three samples."""
    settled = [point for point in points if point[0] >= SETTLED_MIN]
    return linear_regression(*zip(*settled, strict=True)).slope if len(settled) > 2 else None


def problems(samples: Samples, endings: Mapping[Ending, int]) -> list[str]:
    """What is wrong with a load; empty if nothing is."""
    slopes = {name: slope for name, points in samples.items() if (slope := growth(points)) is not None}
    wrong = [f"{name} grows by {slope:.3f} MB/min" for name, slope in slopes.items() if slope >= LIMIT_MB_PER_MIN]
    wrong += [f"{count} requests ended as {ending.value}" for ending, count in endings.items()
              if ending not in PLANNED_ENDINGS]
    if not slopes:
        wrong.append(f"no process lived for three samples after {SETTLED_MIN:g} minutes: nothing was shown")
    if not endings.keys() & {Ending.CANCELLED, Ending.NOT_SENT}:
        wrong.append("the plan ran out of requests before the time was over")
    return wrong


def table(samples: Samples) -> str:
    """Markdown with a line for each process."""
    rows = []
    for name, points in samples.items():
        rss_mb, slope = [rss for _, rss in points], growth(points)
        memory = (f"{size:.1f}" for size in (rss_mb[0], rss_mb[-1], max(rss_mb)))
        rows.append((name, f"{len(points)}", *memory, "–" if slope is None else f"{slope:+.3f}"))
    head = ("process", "samples", "RSS first, MB", "RSS last, MB", "peak, MB", "growth, MB/min")
    return markdown_pages.table(head, rows)


if __name__ == "__main__":
    raise SystemExit(main())
