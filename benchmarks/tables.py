"""Tables of docs/evidence/load_generator.md, in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from figures import Figures

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from markdown_pages import table, with_part

__all__ = ["error_table", "machine_table", "peer_table", "target_table", "with_part"]

Runs = Mapping[tuple[str, int], Figures]
# What must hold, in milliseconds, at 1, 10, 100, 500 and 1000 streams.
TARGETS = {
    "TTFT error, median": ("ttft_p50", {1: 0.2, 10: 0.2, 100: 0.5, 500: 1.5, 1000: 4}),
    "TTFT error, p99": ("ttft_p99", {1: 2, 10: 0.5, 100: 1.5, 500: 8, 1000: 30}),
    "ITL error, p99": ("itl_p99", {1: 2, 10: 1, 100: 2, 500: 15, 1000: 30}),
    "send delay (open loop), p99": ("late_p99", {1: 1, 10: 1, 100: 1, 500: 3, 1000: 8}),
}


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def target_table(runs: Runs, levels: Sequence[int], ours: str, open_loop: str | None = None) -> str:
    """Ours against what must hold, and the server's own error; without the send delay where no open loop ran."""
    rows = []
    for what, (name, limits) in TARGETS.items():
        client = open_loop if name == "late_p99" else ours
        if client is None:
            continue
        cells = []
        for level in levels:
            figures = runs.get((client, level))
            value = None if figures is None else getattr(figures, name)
            limit = limits.get(level)
            held = "" if value is None or limit is None or value <= limit else " **missed**"
            cells.append(number(value, 3) + (f" (≤ {limit:g}){held}" if limit is not None else ""))
        rows.append([what, *cells])
    for what, name in (("server: send error, median", "server_p50"), ("server: send error, p99", "server_p99")):
        figures = [runs.get((ours, level)) for level in levels]
        rows.append([what, *(number(None if run is None else getattr(run, name), 3) for run in figures)])
    return table([f"{ours}, ms, at … streams", *map(str, levels)], rows)


def error_table(
    runs: Runs, missing: Mapping[tuple[str, int], str], levels: Sequence[int], ways: Sequence[str]
) -> str:
    """Median and p99 of the errors of ours on each way to the server, and the server's own error."""
    def row(way: str, what: str, median: str, p99: str) -> list[str]:
        pairs = ((_cell(runs, missing, way, level, median, digits=3), _cell(runs, missing, way, level, p99, digits=3))
                 for level in levels)
        return [f"{way}, {what}", *map(", ".join, pairs)]

    rows = [row(way, what, f"{name}_p50", f"{name}_p99") for what, name in (("TTFT", "ttft"), ("ITL", "itl"))
            for way in ways]
    rows.append(row(ways[0], "sends of the server", "server_p50", "server_p99"))
    return table(["median, p99 of the error, ms, at … streams", *map(str, levels)], rows)


def peer_table(
    runs: Runs, missing: Mapping[tuple[str, int], str], levels: Sequence[int], ours: str, peers: Sequence[str]
) -> str:
    """Median and p99 TTFT error of all; who did not reach the concurrency says so, and how much more exact ours is."""
    rows = []
    for client in (ours, *peers):
        for what, name in (("median", "ttft_p50"), ("p99", "ttft_p99"), ("ITL p99", "itl_p99")):
            rows.append([f"{client}, {what}", *(_cell(runs, missing, client, level, name) for level in levels)])
    ratios = []
    for level in levels:
        mine = runs.get((ours, level))
        others = [run for peer in peers if (run := runs.get((peer, level))) and run.reached >= 0.95 * level]
        best = min((run.ttft_p50 for run in others), default=None)
        ratios.append("–" if mine is None or best is None else f"{best / mine.ttft_p50:.0f} ×")
    rows.append(["best of the four that reach it ÷ ours, median TTFT", *ratios])
    return table(["error, ms, at … streams", *map(str, levels)], rows)


def _cell(runs: Runs, missing: Mapping[tuple[str, int], str], client: str, level: int, name: str,
          *, digits: int = 2) -> str:
    run = runs.get((client, level))
    if run is None:
        return missing.get((client, level), "–")
    short = "" if run.reached >= 0.95 * level else f" (at most {run.reached} streams)"
    return number(getattr(run, name), digits) + short


def machine_table(runs: Runs, levels: Sequence[int], ours: str) -> str:
    """How the load process did while it measured."""
    names = {
        "events per second": ("events_per_s", 0), "busy": ("busy", 2), "CPU per read, µs": ("cpu_us_per_read", 1),
        "loop lag p99, ms": ("lag_p99_ms", 2), "bytes read late by, p99, ms": ("read_delay_p99_ms", 2),
        "slot empty, p99, ms": ("turnaround_p99_ms", 2), "coalesced chunks, share": ("coalesced", 4),
        "peak memory, MiB": ("memory_mib", 0), "stamped by the kernel, share": ("kernel_stamped", 3),
    }  # fmt: skip
    rows = []
    for what, (name, digits) in names.items():
        figures = [runs.get((ours, level)) for level in levels]
        rows.append([what, *(number(None if run is None else run.notes[name], digits) for run in figures)])
    return table(["ours, one process, at … streams", *map(str, levels)], rows)
