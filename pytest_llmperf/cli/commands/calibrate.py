"""Measure the noise of this machine: false alarms and the smallest detectable change.

The named tests run in several sessions between which nothing changes. For each metric with a baseline comparison the
command prints the sd between runs and between sessions, the smallest detectable change, and the repeats that a change
of 5 % or 10 % needs. It warns if a margin is smaller than the smallest detectable change, and counts the sessions with
a FAIL or an ERROR.

    llmperf calibrate suites/test_serving.py --sessions 5 --pytest="-m h200"

On the emulator: --pytest="--emulate h200". Each session has noise of its own.
"""

from __future__ import annotations

import argparse
import signal
from datetime import UTC, datetime
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.calibration.aa_sessions import (
    alarm_text,
    calibrate_metrics,
    compared_measurements,
    run_sessions,
    table,
    tests_of,
)
from pytest_llmperf.cli.output import remark, say
from pytest_llmperf.cli.runs import pytest_options
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import UsageError

RUNS = ".llmperf/calibration"


ARGUMENTS = {
    "tests": {"nargs": "*", "default": ["suites"], "metavar": "TEST", "help": "as pytest takes them (suites)"},
    "--pytest": {"metavar": "OPTIONS", "default": "", "help": "further options for pytest, as one text"},
    "--sessions": {"type": int, "default": 5, "metavar": "N", "help": "how often the tests run (5)"},
}


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, and say what was found.

    Raises:
        UsageError: fewer than two sessions, or `--pytest` cannot be split.
    """
    if arguments.sessions < 2:
        raise UsageError(f"--sessions {arguments.sessions}: at least 2, or nothing can be said about sessions.")
    given = [*arguments.tests, *pytest_options(arguments.pytest)]
    signal.signal(signal.SIGTERM, _interrupted)
    root = project_root()
    runs_dir = root / RUNS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    folders = run_sessions(given, arguments.sessions, runs_dir, Path.cwd(), remark)
    sessions = [tests_of(folder) for folder in folders]
    say(alarm_text(sessions))
    store = Store(root / read_settings(root).baselines_dir)
    calibrated, unknown = calibrate_metrics(compared_measurements(sessions), store)
    say("\n" + table(calibrated, unknown, len(folders)))
    return 0


def _interrupted(_signal: int, _frame: object) -> None:
    """SIGTERM acts as Ctrl-C: the running session ends its servers."""
    raise KeyboardInterrupt
