"""Measure settings of flags, search the highest rate of each within the SLOs, and prove the best against the default.

  llmperf tune vllm:llama-3.1-8b --try max_num_seqs=64,256 --try max_num_batched_tokens=2048,8192 \\
      --slo "ttft_p99 <= 500ms" --slo "tpot_p99 <= 40ms" --rate 16 --emulate h200 --write suites/test_tuned.py
Each setting is searched for its max_rate, the default twice. The best setting is then claimed against the default with
other seeds. --write writes this claim as a new test. Without --slo each setting is measured at --rate, for the Pareto
front of the table. A setting that does not start is a row that says why. An interrupted tuning goes on with --resume.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

from pytest_llmperf.cli import target
from pytest_llmperf.cli.output import remark, say
from pytest_llmperf.errors import InfrastructureError, UsageError
from pytest_llmperf.judging.change import SETTINGS_CONFIDENCE
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.engine import Endpoint
from pytest_llmperf.report.table import aligned
from pytest_llmperf.results.check import NoFurtherRuns
from pytest_llmperf.results.sentences import basis_text, estimate_text, interval_text, reason_text
from pytest_llmperf.session.arguments import check_requests, check_runs
from pytest_llmperf.session.capacity import search_terms
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.perf import Perf
from pytest_llmperf.session.resumption import finished_measurements
from pytest_llmperf.session.search import (
    Search,
    best_row,
    check_measured,
    check_writable_suite,
    default_rates,
    distinct,
    middle_rate,
    proof_of,
)
from pytest_llmperf.session.setting_rows import Setting, SettingFile, SettingRow, flags_text, standings
from pytest_llmperf.workload.arguments import number

NAME, FILE = "llmperf tune", "tune.jsonl"
METRICS = ["ttft_p95", "tpot_mean"]  # of a table without searches
NOT_BETTER = 1  # exit code


ARGUMENTS = target.arguments(target.STARTED, "--metric", "--runs", "--precision", "--resume") | {
    "--slo": {"action": "append", "default": [],
              "help": 'search the highest rate within it, e.g. "ttft_p99 <= 500ms"; repeatable, all hold'},
    "--try": {"action": "append", "default": [], "dest": "grid", "metavar": "NAME=V1,V2,…",
              "help": "a flag; repeated, every combination is a setting"},
    "--setting": {"action": "append", "default": [], "metavar": '"NAME=V NAME=V"',
                  "help": "one more setting of several flags; repeatable"},
    "--start-sd": {"type": float, "metavar": "SHARE",
                   "help": "known deviation of max_rate between server starts, e.g. 0.02 (default: 0.05)"},
    "--write": {"type": Path, "metavar": "FILE", "help": "write the proven claim as a new test file"},
}


def run(arguments: argparse.Namespace) -> int:
    search = _search(arguments)
    if arguments.write is not None:
        check_writable_suite(arguments.write, search.spec)
    place = target.place_of(arguments, search.spec)
    with target.measuring(arguments, NAME, arguments.resume) as execution:
        here = execution.session.host
        file = SettingFile(execution.session.run_dir / FILE, f"{search}, {place.without_host}")
        _begin(execution, search, file, resumed=arguments.resume is not None)
        rows: list[SettingRow] = []
        try:
            for row in search.rows(Perf(execution), execution, file):
                rows.append(row)
        finally:
            if any(row.is_final for row in rows):
                table = settings_table(rows, names_of(row.flags for row in rows), search.columns)
                say("\n".join([*table, *(_rate_lines(rows) if search.slos else [])]))
            final = sum(row.is_final and (bool(row.flags) or row.host == here) for row in rows)
            if final < search.size:
                remark(f"{final} of {search.size} settings are measured. Go on with the same command and "
                       f"--resume {execution.session.run_dir}")
        if search.slos:
            return _proven(arguments, execution, search, rows, place)
        check_measured(rows)
        return 0


def _search(arguments: argparse.Namespace) -> Search:
    """What to measure.

    Raises:
        UsageError: the server runs already, so its flags cannot change; or no setting differs from the default.
        LlmperfError: a setting, an engine, a workload, a metric, an SLO or a number is invalid.
    """
    spec, workload = target.spec_of(arguments), target.workload_of(arguments)
    if isinstance(spec, Endpoint):
        raise UsageError(f"{spec.url}: llmperf tune must start servers to change flags. Write ENGINE:MODEL.")
    check_runs(arguments.runs, NAME)
    if arguments.slo:
        search_terms(arguments.slo, arguments.precision)  # a typo costs no server start
        workload.at_rate(workload.rate)  # a workload without a rate has no highest rate
    elif arguments.write is not None:
        raise UsageError(f'--write {arguments.write}: only a proven setting can be written as a test. State '
                         'the SLO: --slo "ttft_p99 <= 500ms".')
    metrics = arguments.metric or ([] if arguments.slo else METRICS)
    listed = [dict(map(target.flag, shlex.split(text))) for text in arguments.setting]
    candidates = distinct(spec, [*combinations_of(arguments.grid), *listed])
    if not candidates:
        raise UsageError("no setting differs from the default. Name flags to try: --try max_num_seqs=64,256.")
    if arguments.start_sd is not None:
        number("--start-sd", "SHARE", arguments.start_sd, above=0, most=1)
    return Search(spec, workload, candidates, tuple(arguments.slo), tuple(find(name).name for name in metrics),
                  arguments.runs, arguments.precision, arguments.start_sd)


def _begin(execution: Execution, search: Search, file: SettingFile, *, resumed: bool) -> None:
    """Begin or continue the file of rows, once nothing can be wrong that is visible without a server start.

    Raises:
        UsageError: an engine refuses a flag, or the run folder holds no tuning or another one.
    """
    session = execution.session
    for spec in search.specs:
        session.pool.check(spec.on(execution.kind))
        check_requests(spec, search.workload, session.pool.model_of(spec))
    if resumed and not file.path.exists():
        raise UsageError(f"--resume {session.run_dir}: this run folder holds no tuning (no {FILE}). Drop --resume.")
    file.read()  # a file of another tuning is an error before the session begins
    session.folder.begin()
    file.begin()
    execution.stored += finished_measurements(session.resumed.get(NAME))


def _proven(
    arguments: argparse.Namespace, execution: Execution, search: Search, rows: Sequence[SettingRow],
    place: target.EnginePlace,
) -> int:
    """Prove the best setting and write its test, or say why nothing is written. Returns the exit code."""
    rates, best = default_rates(rows, execution.session.host), best_row(rows)
    rates_text = " and ".join(f"{rate:.4g}/s" for rate in rates)
    spread = f": {max(rates) / min(rates) - 1:.1%} apart" if len(rates) > 1 else ""
    say(f"The default's searches found {rates_text}{spread}.")
    if best is None:
        say("No setting is better than the default as measured. Nothing is written.")
        return NOT_BETTER
    middle = middle_rate(best, rows, execution.session.host)
    try:
        claim = search.prove(Perf(execution), best.flags, middle)
    except (InfrastructureError, KeyboardInterrupt):
        remark(f"The proof did not reach its end. Go on with the same command and --resume {execution.session.run_dir}")
        raise
    for result in claim.results:
        numbers = filter(None, (estimate_text(result), interval_text(result), basis_text(result)))
        say(f"{result.verdict.value}  {flags_text(best.flags)} (a) against the default (b): {result.subject}: "
            f"{', '.join(numbers)}")
        if reason := reason_text(result):
            say(f"  {reason}")
    proof = proof_of(claim)
    if proof is None:
        say("No setting is proven to be better than the default. Nothing is written.")
        if any(result.facts.get("no_further_runs") == NoFurtherRuns.OUT_OF_TIME.value for result in claim.results):
            remark("The claim is not decided. To measure more of it, repeat the command with --resume newest.")
        return NOT_BETTER
    if arguments.write is not None:
        _write(arguments.write, search.suite(best.flags, proof, execution.kind, str(place), middle))
        say(f"Written: {arguments.write}. Run it: pytest {arguments.write}"
            + (f" --emulate {arguments.emulate}" if arguments.emulate else ""))
    return 0


def _write(path: Path, text: str) -> None:
    """Write a new file.

    Raises:
        UsageError: the file exists already, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"--write {path}: the test cannot be written: {error}. Repeat the command with --resume "
                         "newest and another file.") from error


def _rate_lines(rows: Sequence[SettingRow]) -> list[str]:
    """How each tried rate is known, one line per setting."""
    several = len({row.host for row in rows}) > 1

    def of_host(row: SettingRow) -> str:
        return f" on host {row.host}" if several else ""

    return ["Tried rates, within or over the SLOs:",
            *(f"  {flags_text(row.flags)}{of_host(row)}: {'; '.join(map(str, row.rates)) or 'none'}" for row in rows)]


CELL_CHARACTERS = 140


def combinations_of(texts: Sequence[str]) -> list[Setting]:
    """Every combination of "NAME=V1,V2" texts, the last flag fastest; one value alone may be JSON.

    Raises:
        UsageError: a text has no such form, or a flag stands twice.
    """
    grid: dict[str, list[object]] = {}
    for text in texts:
        name, values = target.flag(text)
        if isinstance(values, str):
            values = [target.flag_value(part) for part in values.split(",")]
        listed = values if isinstance(values, list) else [values]
        if not listed or "" in listed or name in grid:
            raise UsageError(f"--try {text}: write each flag once, as NAME=V1,V2, e.g. max_num_seqs=32,64.")
        grid[name] = list(listed)
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []


def names_of(settings: Iterable[Setting]) -> list[str]:
    """Every flag of some settings, each once."""
    return list(dict.fromkeys(name for flags in settings for name in flags))


def settings_table(rows: Sequence[SettingRow], names: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """The table; a star marks the Pareto front, a tilde what is not proven to be beaten.

    A cell has the beginning of a long problem. The whole text follows below the table, each text once.
    """
    table = [("", *names, *metrics, "")]
    whole: list[str] = []
    for row, standing in zip(rows, standings(rows, metrics), strict=True):
        values = [row.metrics.get(name) for name in metrics]
        cells = ["-" if value is None else find(name).unit.show(value)
                 for name, value in zip(metrics, values, strict=True)]
        flags = (str(row.flags.get(name, "default")) for name in names)
        problem = beginning(row.problem)
        if problem != row.problem:
            if row.problem not in whole:
                whole.append(row.problem)
            problem += f" [{whole.index(row.problem) + 1}]"
        table.append((standing.value, *flags, *cells, problem))
    return [
        *aligned(table),
        f"* Pareto front: no other setting has means as good in {', '.join(metrics)} and better in one",
        f"~ another setting has such means, and no difference between the two is proven ({SETTINGS_CONFIDENCE:.0%})",
        *(f"[{number}] {problem}" for number, problem in enumerate(whole, start=1)),
    ]


def beginning(text: str) -> str:
    """The first sentences of a text that fit into a cell of a table, or a part of the first sentence."""
    if len(text) <= CELL_CHARACTERS:
        return text
    end = text.rfind(". ", 0, CELL_CHARACTERS) + 1
    return text[:end] if end else f"{text[:CELL_CHARACTERS - 1]}…"
