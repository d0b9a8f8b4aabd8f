#!/usr/bin/env python3
"""How much of a decode step on several GPUs is all-reduces: kernels of vLLM's own PyTorch profiler, rank by rank.

    python scripts/trace_all_reduces.py [--kind h200] [--engine DIR] [--gpus 2 --gpus 4] [--out FILE]

Starts a server per number of GPUs, lets streams decode, and traces a moment of it. An all-reduce's kernel waits for the
slowest rank, so its time is a rank's share of waiting, too: the rank that waits least says what moving the data costs.
Tracing slows what launches kernels, hence the step's time beside it, which is to be compared with an untraced one.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmperf import EngineSpec, closed, random_tokens, vllm
from pytest_llmperf.clock import SystemClock
from pytest_llmperf.config.settings import Settings, with_engine_options
from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.engines.process.pool import EnginePool, lock_of_this_machine
from pytest_llmperf.engines.server import Server
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.session.replay import Replayer
from pytest_llmperf.session.warm_up import warm_up
from pytest_llmperf.telemetry.torch_trace import Breakdown, breakdown
from pytest_llmperf.workload import Workload

ROOT = Path(__file__).parents[1]
STREAMS = (1, 8)
TOKENS_IN, TOKENS_OUT, WARM_UP_OUT = 1024, 2048, 64
PREFILLS_S, TRACED_S, TRACE_WAIT_S = 1.5, 0.5, 120.0
MODELS = {"cpu": ("tiny", 4096), "h200": ("llama-3.1-8b", 16384)}


def traced(server: Server, replayer: Replayer, streams: int, folder: Path) -> tuple[float, list[Path]]:
    """Traces of all ranks while so many streams decode, and the run's median ITL in ms."""
    earlier = set(folder.glob("**/*.trace.json.gz"))
    warm_up(server, streaming(streams, WARM_UP_OUT), replayer)
    runs = []
    client = threading.Thread(target=lambda: runs.append(replayer.run(server, streaming(streams, TOKENS_OUT), 0)))
    client.start()
    time.sleep(PREFILLS_S)
    trace(server, TRACED_S)
    client.join()
    if not runs:
        raise RuntimeError("The run failed; its error stands above.")
    ranks = [file for file in set(folder.glob("**/*.trace.json.gz")) - earlier if "async_llm" not in file.name]
    return runs[0].metrics.require("itl_p50"), sorted(ranks)


def streaming(streams: int, output: int) -> Workload:
    return random_tokens(input=TOKENS_IN, output=output, arrivals=closed(streams), requests=streams)


def trace(server: Server, seconds: float) -> None:
    """Let the profiler run so long; it has written when this returns."""
    server.control.client.post("/start_profile", timeout=TRACE_WAIT_S).raise_for_status()
    time.sleep(seconds)
    server.control.client.post("/stop_profile", timeout=TRACE_WAIT_S).raise_for_status()


def spec(kind: str, gpus: int, folder: Path) -> EngineSpec:
    model, context = MODELS[kind]
    profiler = {"profiler": "torch", "torch_profiler_dir": str(folder), "torch_profiler_with_stack": False,
                "torch_profiler_dump_cuda_time_total": False}
    return vllm(model, max_model_len=context, tensor_parallel_size=gpus, profiler_config=profiler)


def rows(kind: str, engine: str | None, gpus: Sequence[int]) -> Iterable[str]:
    """Of the table, as they come."""
    settings = Settings() if engine is None else with_engine_options(Settings(), [f"vllm={engine}"])
    with tempfile.TemporaryDirectory() as name:
        launcher = Launcher(settings, ROOT, Path(name), kind, SystemClock(), random.Random(), lambda _status: None)
        with EnginePool(launcher, lock_of_this_machine()) as pool:
            for count in gpus:
                folder = Path(name) / f"traces-{count}"
                folder.mkdir()
                server = pool.acquire(spec(kind, count, folder).on(kind))
                replayer = Replayer(ProcessTransport(), lambda: datetime.now(UTC))
                trace(server, 0.0)  # the first one takes seconds to begin
                for streams in STREAMS:
                    itl_ms, traces = traced(server, replayer, streams, folder)
                    yield row(count, streams, itl_ms, [rank for rank in map(breakdown, traces) if rank is not None])


def row(gpus: int, streams: int, itl_ms: float, traced_ranks: Sequence[Breakdown]) -> str:
    """A table row for one load; ranges are over the ranks, from the shortest to the longest wait."""
    ranks = sorted((rank for rank in traced_ranks if rank.all_reduces), key=lambda rank: rank.all_reduce_share)
    if not ranks:
        return f"| {gpus} | {streams} | {itl_ms:.2f} | no all-reduce ran | | | | |"
    of_window = f"{ranks[0].all_reduce_share:.1%}–{ranks[-1].all_reduce_share:.1%}"
    medians_us = [rank.all_reduce_median_us or 0.0 for rank in ranks]
    each = f"{min(medians_us):.1f}–{max(medians_us):.1f}"
    idle = f"{min(rank.shares['idle'] for rank in ranks):.1%}"
    kernel = f"`{ranks[0].all_reduce_name[:60]}`"
    cells = (gpus, streams, f"{itl_ms:.2f}", of_window, each, idle, ranks[0].all_reduces, kernel)
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = ("| GPUs | streams | median ITL, ms | all-reduces' share of the time, by rank | one, median, µs "
        "| no kernel runs | all-reduces traced | kernel |\n|---|---|---|---|---|---|---|---|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(MODELS), default="cpu", help="of this machine (cpu)")
    parser.add_argument("--engine", help="environment or unpacked bundle of vLLM; default: as pytest finds it")
    parser.add_argument("--gpus", type=int, action="append", help="may be repeated; default: 2 and 4")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = [HEAD]
    for line in rows(args.kind, args.engine, args.gpus or [2, 4]):
        lines.append(line)
        print(line, flush=True)
        if args.out is not None:
            args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
