"""Measure every combination of some flags; print the table and the Pareto front. An interrupted sweep goes on.

  llmperf sweep vllm:llama-3.1-8b --grid max_num_seqs=32,64,128 --grid max_num_batched_tokens=1024,4096 \\
      --rate 12 --metric ttft_p95 --metric output_throughput --emulate h200
With --slo each combination is searched for its max_rate, too. A combination that does not start is a row that says why.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli import target
from pytest_llmperf.cli.grid import check_started, grid_of, sweep_table
from pytest_llmperf.cli.output import remark, say

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
    from pytest_llmperf.session.sweep import SweepFile, SweepPlan, check_measured, combinations, measure_setting

    spec, workload, grid = target.spec_of(arguments), target.workload_of(arguments), grid_of("--grid", arguments.grid)
    check_started(spec, "sweep")
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
            rows += [measure_setting(Perf(execution), execution.session, file, plan, flags) for flags in todo]
    if done:
        remark(f"{len(done)} of {len(rows)} rows are {arguments.file}'s; remove it to measure them anew")
    chosen = [row for row in rows if row.flags in list(combinations(grid))]
    check_measured(chosen)
    say("\n".join(sweep_table(chosen, list(grid), plan.columns)))
    return 0
