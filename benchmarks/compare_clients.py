"""Load generators against the server of known timing, alternating, on this machine: `make bench-clients`.

    .venv/bin/python benchmarks/compare_clients.py [--levels 1,10,100,500,1000] [--budget-s 840] [--out FILE]
    .venv/bin/python benchmarks/compare_clients.py --part routers --levels 1,10,100,500
    .venv/bin/python benchmarks/compare_clients.py --part streams --levels 2000,4000,8000

"measured" compares every load generator: ours runs before every peer, so both meet the same load of the machine. Peers
that are not installed, or for which the time has run out, are named as such. "routers" measures with ours alone,
directly and through each router, streams of 20 tokens/s. "streams" measures with ours alone many streams of 5 tokens/s.
The tables are written between two lines of FILE (docs/evidence/load_generator.md).
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import our_clients
from figures import Figures, Measured, figures
from peers import PEERS
from routed import running_routers
from tables import error_table, machine_table, peer_table, target_table, with_part
from timed import ITL_MS, TimedServer

PEER_TIMEOUT_S = 120.0
OURS, OPEN, CHAT = "ours", "ours, open loop", "ours, chat"
ROUNDS = 5  # of ours without peers
ITL_MS_OF = {"measured": ITL_MS, "routers": 50.0, "streams": 200.0}
TOKENS_OF = {"routers": 40, "streams": 25}


@dataclass
class Session:
    """What was measured so far: (client, streams) → runs, or why there is none."""

    until_s: float
    runs: dict[tuple[str, int], list[Figures]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[tuple[str, int], str] = field(default_factory=dict)

    def take(self, name: str, streams: int, server: TimedServer, measure: Callable[[], Measured]) -> None:
        """One run."""
        if time.monotonic() > self.until_s:
            self.missing[name, streams] = "no time left"
            return
        server.reset()
        try:
            sample = figures(measure(), server)
        except (subprocess.SubprocessError, OSError, LookupError, ValueError, AssertionError) as problem:
            self.missing[name, streams] = type(problem).__name__
            print(f"{streams:5} {name:24} {problem!r:.300}", flush=True)
            return
        self.runs[name, streams].append(sample)
        print(
            f"{streams:5} {name:24} TTFT {sample.ttft_p50:.3f} / {sample.ttft_p99:.3f}, ITL {sample.itl_p99:.3f} ms; "
            f"{sample.reached} streams; server {sample.server_p50:.3f} / {sample.server_p99:.3f} ms", flush=True,
        )  # fmt: skip


def one_level(session: Session, server: TimedServer, streams: int) -> None:
    """Measures each client at one number of streams, and this project's client before each peer, by both protocols."""
    requests = max(10, 3 * streams)

    def ours() -> None:
        session.take(OURS, streams, server, lambda: our_clients.closed(server, streams, requests))
        session.take(CHAT, streams, server, lambda: our_clients.closed(server, streams, requests, chat=True))

    ours()
    session.take(OPEN, streams, server, lambda: our_clients.open_loop(server, streams, requests))
    for peer in PEERS:
        if not peer.there:
            session.missing[peer.name, streams] = "not installed"
            continue
        ours()
        session.take(
            peer.name, streams, server, lambda peer=peer: peer.measure(server, streams, requests, PEER_TIMEOUT_S)
        )


def through_routers(session: Session, server: TimedServer, levels: list[int]) -> list[str]:
    """Measures directly and through each router in turn; the names of what was measured."""
    with running_routers(server) as routers:
        ways = {"direct": server.port} | routers
        for _ in range(ROUNDS):
            for streams in levels:
                for name, port in ways.items():
                    session.take(name, streams, server, lambda port=port, streams=streams: our_clients.closed(
                        server, streams, max(5, 2 * streams), tokens=TOKENS_OF["routers"], port=port))
        return list(ways)


def many_streams(session: Session, server: TimedServer, levels: list[int]) -> None:
    """Measures streams of 5 tokens/s, all of which begin at the same instant."""
    for _ in range(ROUNDS):
        for streams in levels:
            session.take(OURS, streams, server, lambda streams=streams: our_clients.closed(
                server, streams, 2 * streams, tokens=TOKENS_OF["streams"], port=server.port))


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    cpus, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{cpus} CPUs ({name}), Linux {platform.release()}, load average {load:.1f} before"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="1,10,100,500,1000")
    parser.add_argument("--budget-s", type=float, default=780.0)
    parser.add_argument("--part", choices=("measured", "routers", "streams"), default="measured")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    levels = [int(level) for level in options.levels.split(",")]
    place, session = machine(), Session(until_s=time.monotonic() + options.budget_s)
    with TimedServer(itl_ms=ITL_MS_OF[options.part]) as server:
        ways = [OURS]
        if options.part == "routers":
            ways = through_routers(session, server, levels)
        elif options.part == "streams":
            many_streams(session, server, levels)
        else:
            for streams in levels:
                one_level(session, server, streams)
    runs = {key: _typical(figures_) for key, figures_ in session.runs.items()}
    most = max(map(len, session.runs.values()), default=0)
    if options.part == "measured":
        parts = [
            f"Measured on {place}; {most} runs of ours at each level, one of every other.",
            target_table(runs, levels, OURS, OPEN),
            target_table(runs, levels, CHAT),
            peer_table(runs, session.missing, levels, OURS, [peer.name for peer in PEERS]),
            machine_table(runs, levels, OURS),
        ]
    else:
        parts = [f"Measured on {place}, {os.getloadavg()[0]:.1f} after; medians of {most} runs.",
                 error_table(runs, session.missing, levels, ways)]
    text = "\n\n".join(parts)
    print(text)
    if options.out is not None:
        options.out.write_text(with_part(options.out.read_text(encoding="utf-8"), options.part, text), encoding="utf-8")


def _typical(samples: list[Figures]) -> Figures:
    """Medians of the runs."""
    def of(name: str) -> float:
        return median(getattr(run, name) for run in samples)

    late = [run.late_p99 for run in samples if run.late_p99 is not None]
    return Figures(
        min(run.reached for run in samples), of("ttft_p50"), of("ttft_p99"), of("itl_p50"),
        of("itl_p99"), median(late) if late else None, of("server_p50"), of("server_p99"),
        {name: median(run.notes[name] for run in samples) for name in samples[0].notes},
    )  # fmt: skip


if __name__ == "__main__":
    main()
