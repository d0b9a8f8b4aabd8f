"""Measure how often verdicts are wrong on the emulator, or the smallest detectable change on this machine.

With --emulate KIND the suites run thousands of times in virtual time, each time with a new noise seed. Without a
planted change each FAIL is a false alarm; with a known slowdown or fault each PASS is a miss. The command writes a page
of tables with Clopper-Pearson intervals, and a row per suite run (FILE.jsonl). After an interruption the same command
continues at the next suite run. --jobs processes share all simulations, and their number does not change the results.

    llmperf calibrate --emulate h200 --suite-runs 10000 --faults 200 --out .llmperf/calibration.md

Without --emulate the named tests run on this machine's engines, in several sessions between which nothing changes. For
each metric with a baseline comparison the command prints the sd between runs and between sessions, the smallest
detectable change, and the repeats that a change of 5 % or 10 % needs. It warns if a margin is smaller than the smallest
detectable change.

    llmperf calibrate suites/test_serving.py --sessions 5 --pytest="-m h200"
"""

from __future__ import annotations

import argparse
import shlex
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmperf.cli.output import remark, say

SUITES = ["suites"]
OUT = ".llmperf/calibration.md"
EMULATED = {"--suite-runs": 1000, "--faults": 50, "--limits": 1000, "--jobs": None, "--out": None}  # and defaults
HERE = {"--pytest": "", "--sessions": 5}
RUNS = ".llmperf/calibration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `cli.parser`."""
    add = parser.add_argument
    add("tests", nargs="*", default=SUITES, metavar="TEST", help="as pytest takes them (suites)")
    add("--emulate", metavar="KIND", help="l4, a100, h100 or h200: on the emulator, in virtual time")
    add("--suite-runs", type=int, metavar="N", help="emulated: with nothing planted (1000)")
    add("--faults", type=int, metavar="N", help="emulated: with each fault planted (50)")
    add("--limits", type=int, metavar="N", help="emulated: trials of each SLO at its limit (1000)")
    add("--jobs", type=int, metavar="N", help="emulated: processes that share the simulations (one per usable CPU)")
    add("--out", type=Path, metavar="FILE", help=f"emulated: the page ({OUT})")
    add("--pytest", metavar="OPTIONS", help="on this machine: further options for pytest, as one text")
    add("--sessions", type=int, metavar="N", help="on this machine: how often the tests run (5)")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, and say what was found.

    Raises:
        UsageError: an option of the other way to calibrate was given.
    """
    emulated = arguments.emulate is not None
    _refuse(arguments, HERE if emulated else EMULATED, emulated=emulated)
    for option, default in (EMULATED | HERE).items():
        if _given(arguments, option) is None:
            setattr(arguments, _name(option), default)
    signal.signal(signal.SIGTERM, _interrupted)
    say(_on_this_machine(arguments) if arguments.emulate is None else _emulated(arguments))
    return 0


def _refuse(arguments: argparse.Namespace, others: Mapping[str, object], *, emulated: bool) -> None:
    """An option that would be ignored is refused: the calibration that runs instead may take hours."""
    from pytest_llmperf.errors import UsageError

    given = [option for option in others if _given(arguments, option) is not None]
    if given and emulated:
        raise UsageError(
            f"{' and '.join(given)}: of calibration on this machine, and --emulate {arguments.emulate} calibrates on "
            "the emulator. How often the suites run there is --suite-runs N. For sessions of emulated tests leave out "
            f'--emulate and write --pytest="--emulate {arguments.emulate}".'
        )
    if given:
        raise UsageError(f"{' and '.join(given)}: of calibration on the emulator. Add --emulate KIND; how often the "
                         "tests run on this machine is --sessions N.")


def _given(arguments: argparse.Namespace, option: str) -> object:
    return getattr(arguments, _name(option))


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _on_this_machine(arguments: argparse.Namespace) -> str:
    from pytest_llmperf.baseline.store import Store
    from pytest_llmperf.calibration.aa_sessions import calibrate_metrics, read_sessions, run_sessions, table
    from pytest_llmperf.config.root import project_root
    from pytest_llmperf.config.settings import read_settings
    from pytest_llmperf.errors import UsageError

    if arguments.sessions < 2:
        raise UsageError(f"--sessions {arguments.sessions}: at least 2, or nothing can be said about sessions.")
    root = project_root()
    runs_dir = root / RUNS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    try:
        given = [*arguments.tests, *shlex.split(arguments.pytest)]
    except ValueError as error:
        raise UsageError(f"--pytest {arguments.pytest!r}: {error}.") from error
    folders = run_sessions(given, arguments.sessions, runs_dir, Path.cwd(), _print_line)
    calibrated, unknown = calibrate_metrics(read_sessions(folders), Store(root / read_settings(root).baselines_dir))
    return table(calibrated, unknown, len(folders))


def _emulated(arguments: argparse.Namespace) -> str:
    from pytest_llmperf.calibration.emulated import calibrate_emulated
    from pytest_llmperf.calibration.workers import usable_cores
    from pytest_llmperf.config.root import project_root
    from pytest_llmperf.plugin.collection import collect

    root = project_root()
    collected = collect(arguments.tests, arguments.emulate)
    return calibrate_emulated(
        collected.tests,
        named=arguments.tests != SUITES,
        left_out=collected.left_out,
        kind=arguments.emulate,
        suite_runs=arguments.suite_runs,
        faults=arguments.faults,
        limits=arguments.limits,
        jobs=usable_cores() if arguments.jobs is None else arguments.jobs,
        out=root / OUT if arguments.out is None else arguments.out.absolute(),
        root=root,
        command=_command(arguments),
        notify=_print_line,
    )


def _interrupted(_signal: int, _frame: object) -> None:
    """SIGTERM is Ctrl-C: the processes that run suites end too, and the journal is closed."""
    raise KeyboardInterrupt


def _command(arguments: argparse.Namespace) -> str:
    """The command line again, in full."""
    named = "" if arguments.tests == SUITES else f" {' '.join(arguments.tests)}"
    out = "" if arguments.out is None else f" --out {arguments.out}"
    return (
        f"llmperf calibrate{named} --emulate {arguments.emulate} --suite-runs {arguments.suite_runs} "
        f"--faults {arguments.faults} --limits {arguments.limits}{out}"
    )


def _print_line(line: str) -> None:
    remark(line)
