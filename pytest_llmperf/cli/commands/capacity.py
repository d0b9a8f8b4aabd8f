"""Search the highest request rate that an engine serves within its SLOs.

Brackets the rate, then bisects; at each rate the SLO rule decides, with more runs where it stays open.
A search that was interrupted goes on with --resume RUN: the rates that it has judged are not measured again.
  llmperf capacity vllm:llama-3.1-8b --flag max_num_batched_tokens=1024 --slo "ttft_p99 <= 500ms" --emulate h200
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pytest_llmperf.cli import target
from pytest_llmperf.cli.output import say
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.report.table import aligned
from pytest_llmperf.session.bisection import SearchResult, TriedRate
from pytest_llmperf.session.capacity import Capacity, search_terms
from pytest_llmperf.session.perf import Perf
from pytest_llmperf.session.resumption import check_search

ARGUMENTS = target.arguments(target.STARTED_OR_RUNNING, "--slo", "--precision", "--resume") | {
    "--cooldown": {"type": float, "default": 5.0, "metavar": "S", "help": "between two rates (default: 5 s)"},
    "--searches": {"type": int, "default": 1, "help": "each with seeds of its own (default: 1)"},
}


def run(arguments: argparse.Namespace) -> int:
    spec, workload = target.spec_of(arguments), target.workload_of(arguments)
    # A typo costs no server start.
    terms = search_terms(arguments.slo, arguments.precision, arguments.cooldown)
    with target.measuring(arguments, "llmperf capacity", arguments.resume) as execution:
        check_search(execution.stored, f"{workload}, {terms}", str(spec))
        try:
            Perf(execution).max_rate(spec, workload, slo=arguments.slo, runs=arguments.searches,
                                     precision=arguments.precision, cooldown_s=arguments.cooldown)
        finally:  # what a search tried before it was interrupted, or before its server died, was paid for
            searches = [series for series in execution.series if isinstance(series, Capacity)]
            blocks = [search_text(result, arguments.slo) for series in searches for result in series.results]
            blocks += [tried_rates_text(series.unfinished) for series in searches if series.unfinished]
            if blocks:
                say(f"{spec}, {workload}" + (f", emulated {arguments.emulate}" if arguments.emulate else ""))
            for block in blocks:
                say("\n".join(block))
    return 0


def search_text(result: SearchResult, slos: Sequence[str]) -> list[str]:
    """Every rate that was tried, from the lowest, then the answer: the proven rate first, then what was measured."""
    proven = "no rate is" if result.proven is None else f"{result.proven:.4g}/s is"
    measured = "no rate as measured" if result.highest_within is None else f"{result.highest_within:.4g}/s as measured"
    over = "no limit found" if result.lowest_over is None else f"over at {result.lowest_over:.4g}/s"
    answer = f"max_rate: {proven} proven within {' and '.join(slos)} ({measured}, {over})."
    if result.highest_within is not None and result.highest_within != result.proven:
        answer += " To prove a higher rate, send more: --requests N."
    return [*_rates(result.points), answer]


def tried_rates_text(points: Sequence[TriedRate]) -> list[str]:
    """The same of a search that has no answer yet."""
    within = max((point.rate for point in points if point.within), default=None)
    beyond = min((point.rate for point in points if not point.within), default=None)
    bounds = [f"above {within:.4g}/s"] if within is not None else []
    bounds += [f"below {beyond:.4g}/s"] if beyond is not None else []
    return [*_rates(points), f"The search did not reach its end: max_rate lies {' and '.join(bounds)}."]


def _rates(points: Sequence[TriedRate]) -> list[str]:
    shown = list(dict.fromkeys(name for point in points for name in point.measured))
    failed = ["failed"] if any(point.failures for point in points) else []
    rows = [["rate", "verdict", "as measured", *shown, *failed]]
    for point in sorted(points, key=lambda point: point.rate):
        values = ((find(name).unit, point.measured.get(name)) for name in shown)
        cells = ["–" if value is None else unit.show(value) for unit, value in values]
        rows.append([f"{point.rate:.4g}/s", point.verdict.value, "within" if point.holds else "over", *cells,
                     *(point.failures or "none" for _ in failed)])
    return list(aligned(rows))
