"""Export a run for other tools.

pytest-benchmark  one file for `pytest-benchmark compare` and for GitHub actions that read its format.
vllm              one file per measurement, in the format of `vllm bench serve --save-result --save-detailed`.
parquet, csv      one table with a row per request, by pandas (parquet: pip install pyarrow).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import RUN_HELP, named_run, newest_run
from pytest_llmperf.report.export import export
from pytest_llmperf.results.reader import choose, read_run

ARGUMENTS = {
    "folder": {"nargs": "?", "metavar": "RUN", "help": f"{RUN_HELP} (the default)"},
    "--format": {"required": True, "metavar": "NAME", "help": "see above, or a sink of another package"},
    "--out": {"required": True, "type": Path, "metavar": "PATH", "help": "file; for vllm a folder"},
    "--test": {"metavar": "TEST", "help": "a part of a test's id: only such tests"},
}


def run(arguments: argparse.Namespace) -> int:
    folder = newest_run() if arguments.folder is None else named_run(arguments.folder)
    tests = read_run(folder)
    if arguments.test is not None:
        tests = choose(tests, arguments.test, folder)
    for path in export(tests, arguments.format, arguments.out):
        say(path)
    return 0
