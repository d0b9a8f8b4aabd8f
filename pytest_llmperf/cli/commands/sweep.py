"""Measure every combination of some flags; print the table and the Pareto front. An interrupted sweep goes on.

  llmperf sweep vllm:llama-3.1-8b --grid max_num_seqs=32,64,128 --grid max_num_batched_tokens=1024,4096 \\
      --rate 12 --metric ttft_p95 --metric output_throughput --emulate h200
With --slo each combination is searched for its max_rate, too. A combination that does not start is a row that says why.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli import target
from pytest_llmperf.cli.grid import combinations_of, names_of, plan_of, sweep_table
from pytest_llmperf.cli.output import remark, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target.add_arguments(parser, target.STARTED, "--metric", "--runs")
    parser.add_argument("--grid", action="append", required=True, metavar="NAME=V1,V2,…", help="a flag; repeatable")
    parser.add_argument("--slo", action="append", default=[], help="search each combination's max_rate within it")
    parser.add_argument("--file", type=Path, default=Path("sweep.jsonl"), help="results (default: sweep.jsonl)")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.session.perf import Perf
    from pytest_llmperf.session.sweep import SweepFile, check_measured, measure_setting

    settings = combinations_of("--grid", arguments.grid)
    arguments.metric = arguments.metric or ["ttft_p95", "tpot_mean"]
    plan = plan_of(arguments, "sweep")
    place = target.place_of(arguments, plan.spec)
    file = SweepFile(arguments.file, f"{plan.spec}, {plan.workload}, {list(plan.metrics)}, {arguments.slo}, "
                     f"{plan.runs} runs, {place}")
    rows = file.read()
    done = [row.flags for row in rows]
    if todo := [flags for flags in settings if flags not in done]:
        with target.measuring(arguments, "llmperf sweep") as execution:
            file.begin()
            rows += [measure_setting(Perf(execution), execution.session, file, plan, flags) for flags in todo]
    if done:
        remark(f"{len(done)} of {len(rows)} rows are {arguments.file}'s; remove it to measure them anew")
    chosen = [row for row in rows if row.flags in settings]
    check_measured(chosen)
    say("\n".join(sweep_table(chosen, names_of(settings), plan.columns)))
    return 0
