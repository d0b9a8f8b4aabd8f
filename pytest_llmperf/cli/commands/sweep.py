"""Measure every combination of some flags; print the table and the Pareto front. An interrupted sweep goes on.

  llmperf sweep vllm:llama-3.1-8b --grid max_num_seqs=32,64,128 --grid max_num_batched_tokens=1024,4096 \\
      --rate 12 --metric ttft_p95 --metric output_throughput --emulate h200
With --slo each combination is searched for its max_rate, too. A combination that does not start is a row that says why.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.cli import target
from pytest_llmperf.cli.output import remark, say
from pytest_llmperf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmperf.session.sweep import SweepRow

DEFAULT_METRICS = ("ttft_p95", "tpot_mean")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target.add_arguments(parser, target.STARTED)
    parser.add_argument("--grid", action="append", required=True, metavar="NAME=V1,V2,…", help="a flag; repeatable")
    parser.add_argument("--metric", action="append", default=[], help=f"default: {', '.join(DEFAULT_METRICS)}")
    parser.add_argument("--slo", action="append", default=[], help="search each combination's max_rate within it")
    parser.add_argument("--runs", type=int, default=3, help="of each combination (default: 3)")
    parser.add_argument("--file", type=Path, default=Path("sweep.jsonl"), help="results (default: sweep.jsonl)")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.metrics.registry import find
    from pytest_llmperf.session.capacity import search_terms
    from pytest_llmperf.session.perf import Perf
    from pytest_llmperf.session.sweep import SweepFile, SweepPlan, combinations, measure_row

    spec, workload, grid = target.spec_of(arguments), target.workload_of(arguments), grid_of(arguments.grid)
    if spec.url is not None:
        raise UsageError(f"{arguments.engine}: a sweep must start servers to change flags. Sweep ENGINE:MODEL.")
    metrics = [find(name).name for name in arguments.metric or DEFAULT_METRICS]
    if arguments.slo:
        search_terms(arguments.slo)  # a typo costs no server start
    place = target.place_of(arguments, spec)
    file = SweepFile(arguments.file, f"{spec}, {workload}, {metrics}, {arguments.slo}, {arguments.runs} runs, {place}")
    plan = SweepPlan(spec, workload, tuple(metrics), tuple(arguments.slo), arguments.runs)
    rows = file.read()
    done = [row.flags for row in rows]
    todo = [flags for flags in combinations(grid) if flags not in done]
    if todo:
        file.check_writable()
        with target.measuring(arguments, "llmperf sweep") as execution:
            perf = Perf(execution)
            for flags in todo:
                rows.append(measure_row(perf, execution.session.settings, plan, flags))
                file.append(rows[-1])
                execution.session.release_records()  # a row is judged and written
    if done:
        remark(f"{len(done)} of {len(rows)} rows are {arguments.file}'s; remove it to measure them anew")
    chosen = [row for row in rows if row.flags in list(combinations(grid))]
    say("\n".join(sweep_table(chosen, list(grid), plan.columns)))
    return 0


def grid_of(texts: list[str]) -> dict[str, list[object]]:
    """"NAME=V1,V2" as values by flag; one value alone may be JSON.

    Raises:
        UsageError: it has no such form, or a flag stands twice.
    """
    grid: dict[str, list[object]] = {}
    for text in texts:
        name, values = target.flag(text)
        if isinstance(values, str):
            values = [target.flag_value(part) for part in values.split(",")]
        listed = values if isinstance(values, list) else [values]
        if not listed or "" in listed or name in grid:
            raise UsageError(f"--grid {text}: write each flag once, as NAME=V1,V2, e.g. max_num_seqs=32,64.")
        grid[name] = list(listed)
    return grid


def sweep_table(rows: Sequence[SweepRow], names: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """The table; a star marks the Pareto front, a tilde what is not proven to be beaten."""
    from pytest_llmperf.metrics.registry import find
    from pytest_llmperf.report.table import aligned
    from pytest_llmperf.session.sweep import CONFIDENCE, standings

    table = [("", *names, *metrics, "")]
    for row, standing in zip(rows, standings(rows, metrics), strict=True):
        values = [row.metrics.get(name) for name in metrics]
        cells = ["-" if value is None else find(name).unit.show(value)
                 for name, value in zip(metrics, values, strict=True)]
        table.append((standing.value, *(str(row.flags[name]) for name in names), *cells, row.problem))
    return [
        *aligned(table),
        f"* Pareto front: no other combination has means as good in {', '.join(metrics)} and better in one",
        f"~ another combination has such means, and no difference between the two is proven ({CONFIDENCE:.0%})",
    ]
