"""Would this suite notice? Plant each fault of the emulator into its servers, and count the tests that notice.

  llmperf mutate suites/test_serving.py --pytest="--emulate h200"
  llmperf mutate suites --plant-flag vllm:enforce-eager --plant-flag vllm:max-num-seqs=8 --pytest="--emulate h200 -n 2"
The first session has no fault: its FAIL and ERROR are false alarms. Then each fault of the emulator, a step that is
slower by 1, 2, 5 and 10 %, and each flag of --plant-flag gets a session. A test notices a fault if it is
red in the session with the fault and not red in the first session.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from pytest_llmperf.calibration.aa_sessions import is_emulated
from pytest_llmperf.cli.output import remark, say
from pytest_llmperf.cli.runs import pytest_options
from pytest_llmperf.config.root import project_root
from pytest_llmperf.errors import UsageError
from pytest_llmperf.experiments.mutants import report, run_mutants

FOLDER = ".llmperf/mutate"


ARGUMENTS = {
    "tests": {"nargs": "*", "default": ["suites"], "metavar": "TEST", "help": "as pytest takes them (suites)"},
    "--plant-flag": {"action": "append", "default": [], "metavar": "ENGINE:FLAG[=VALUE]",
                     "help": "one more fault: this flag on each server of the engine; may be repeated"},
    "--pytest": {"metavar": "OPTIONS", "default": "", "help": "further options for pytest, as one text"},
}


def run(arguments: argparse.Namespace) -> int:
    options = pytest_options(arguments.pytest)
    if not is_emulated(options):
        raise UsageError('llmperf mutate plants faults into the emulator. Write --pytest="--emulate h200".')
    folder = project_root() / FOLDER / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    sessions = run_mutants([*arguments.tests, *options], arguments.plant_flag, folder, remark)
    for line in report(sessions):
        say(line)
    return 0
