"""Search the flags that serve the highest rate within the SLOs, and prove the best of them against the default.

  llmperf tune vllm:llama-3.1-8b --try max_num_seqs=64,256 --try max_num_batched_tokens=2048,8192 \\
      --slo "ttft_p99 <= 500ms" --slo "tpot_p99 <= 40ms" --rate 16 --emulate h200 --write suites/test_tuned.py
Each setting is searched for its max_rate, the default twice. The best setting is then claimed against the default with
other seeds. --write writes this claim as a new test. A tuning that was interrupted goes on with --resume RUN.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.cli import target
from pytest_llmperf.cli.grid import combinations_of, names_of, plan_of, sweep_table
from pytest_llmperf.cli.output import remark, say
from pytest_llmperf.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmperf.session.executions import Execution
    from pytest_llmperf.session.sweep import SweepFile, SweepRow
    from pytest_llmperf.session.tuning import Tuning

NAME, FILE = "llmperf tune", "tune.jsonl"
NOT_BETTER = 1  # exit code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target.add_arguments(parser, target.STARTED, "--slo", "--metric", "--runs", "--precision", "--resume")
    parser.add_argument("--try", action="append", default=[], dest="grid", metavar="NAME=V1,V2,…",
                        help="a flag; repeated, every combination is a setting")
    parser.add_argument("--setting", action="append", default=[], metavar='"NAME=V NAME=V"',
                        help="one more setting of several flags; repeatable")
    parser.add_argument("--start-sd", type=float, metavar="SHARE",
                        help="known deviation of max_rate between server starts, e.g. 0.02 (default: 0.05)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the proven claim as a new test file")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.session.perf import Perf
    from pytest_llmperf.session.sweep import SweepFile
    from pytest_llmperf.session.tuning import check_writable_suite

    tuning = _tuning(arguments)
    if arguments.write is not None:
        check_writable_suite(arguments.write, tuning.plan.spec)
    place = target.place_of(arguments, tuning.plan.spec)
    with target.measuring(arguments, NAME, arguments.resume) as execution:
        here = execution.session.host
        file = SweepFile(execution.session.run_dir / FILE, f"{tuning}, {place.without_host}")
        _begin(execution, tuning, file, resumed=arguments.resume is not None)
        rows: list[SweepRow] = []
        try:
            for row in tuning.rows(Perf(execution), execution.session, file):
                rows.append(row)
        finally:
            if any(row.is_final for row in rows):
                table = sweep_table(rows, names_of(row.flags for row in rows), tuning.plan.columns)
                say("\n".join([*table, *_rate_lines(rows)]))
            final = sum(row.is_final and (bool(row.flags) or row.host == here) for row in rows)
            if final < tuning.size:
                remark(f"{final} of {tuning.size} settings are measured. Go on with the same command and "
                       f"--resume {execution.session.run_dir}")
        return _proven(arguments, execution, tuning, rows, place)


def _tuning(arguments: argparse.Namespace) -> Tuning:
    """What to measure.

    Raises:
        UsageError: a setting, an SLO, a metric or a number is invalid, or no setting differs from the default.
    """
    from pytest_llmperf.session.tuning import Tuning, distinct
    from pytest_llmperf.workload.arguments import number

    plan = plan_of(arguments, "tune", quick=True)
    listed = [dict(map(target.flag, shlex.split(text))) for text in arguments.setting]
    candidates = distinct(plan.spec, [*combinations_of("--try", arguments.grid), *listed])
    if not candidates:
        raise UsageError("no setting differs from the default. Name flags to try: --try max_num_seqs=64,256.")
    if arguments.start_sd is not None:
        number("--start-sd", "SHARE", arguments.start_sd, above=0, most=1)
    return Tuning(plan, candidates, arguments.start_sd)


def _begin(execution: Execution, tuning: Tuning, file: SweepFile, *, resumed: bool) -> None:
    """Begin or continue the file of rows, once nothing can be wrong that is visible without a server start.

    Raises:
        UsageError: an engine refuses a flag, or the run folder holds no tuning or another one.
    """
    from pytest_llmperf.session.arguments import check_requests
    from pytest_llmperf.session.resumption import finished_measurements

    session = execution.session
    for spec in tuning.specs:
        session.pool.check(spec.on(execution.kind))
        check_requests(spec, tuning.plan.workload, session.pool.model_of(spec))
    if resumed and not file.path.exists():
        raise UsageError(f"--resume {session.run_dir}: this run folder holds no tuning (no {FILE}). Drop --resume.")
    file.read()  # a file of another tuning is an error before the session begins
    session.folder.begin()
    file.begin()
    execution.stored += finished_measurements(session.resumed.get(NAME))


def _proven(
    arguments: argparse.Namespace, execution: Execution, tuning: Tuning, rows: Sequence[SweepRow],
    place: target.EnginePlace,
) -> int:
    """Prove the best setting and write its test, or say why nothing is written. Returns the exit code."""
    from pytest_llmperf.results.cause import NoFurtherRuns
    from pytest_llmperf.results.sentences import basis_text, estimate_text, interval_text, reason_text
    from pytest_llmperf.session.perf import Perf
    from pytest_llmperf.session.sweep import flags_text
    from pytest_llmperf.session.tuning import best_row, default_rates, middle_rate, proof_of

    rates, best = default_rates(rows, execution.session.host), best_row(rows)
    rates_text = " and ".join(f"{rate:.4g}/s" for rate in rates)
    spread = f": {max(rates) / min(rates) - 1:.1%} apart" if len(rates) > 1 else ""
    say(f"The default's searches found {rates_text}{spread}.")
    if best is None:
        say("No setting is better than the default as measured. Nothing is written.")
        return NOT_BETTER
    middle = middle_rate(best, rows, execution.session.host)
    try:
        claim = tuning.prove(Perf(execution), best.flags, middle)
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
        _write(arguments.write, tuning.suite(best.flags, proof, execution.kind, str(place), middle))
        say(f"Written: {arguments.write}. Run it: pytest {arguments.write}"
            + (f" --emulate {arguments.emulate}" if arguments.emulate else ""))
    return 0


def _write(path: Path, text: str) -> None:
    """Write a new file.

    Raises:
        UsageError: it exists by now, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"--write {path}: the test cannot be written: {error}. Repeat the command with --resume "
                         "newest and another file.") from error


def _rate_lines(rows: Sequence[SweepRow]) -> list[str]:
    """How each tried rate is known, one line per setting."""
    from pytest_llmperf.session.sweep import flags_text

    several = len({row.host for row in rows}) > 1

    def of_host(row: SweepRow) -> str:
        return f" on host {row.host}" if several else ""

    return ["Tried rates, within or over the SLOs:",
            *(f"  {flags_text(row.flags)}{of_host(row)}: {'; '.join(map(str, row.rates)) or 'none'}" for row in rows)]
