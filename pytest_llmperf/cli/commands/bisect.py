"""Find the build, the commit or the value of a flag that made a test slower.

  llmperf bisect suites/test_serving.py::test_steps --versions 0.31.0..0.33.0
  llmperf bisect TEST --commits v0.31.0..main --repository vllm --build 'make-env {commit} {folder}'
  llmperf bisect TEST --flag max_num_batched_tokens=512,1024,2048 --pytest="--emulate h200"
The test must call perf.compare_with_baseline. Both ends are compared first, until a verdict. Then a build is compared
with the first one in three pairs of runs (pytest --reference), and the build that decides most comes next. A build that
does not start is skipped. The same command goes on after an interruption. Exit code 1: no build is named.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from pytest_llmperf.cli.output import remark, say
from pytest_llmperf.cli.parser import ONE_OF
from pytest_llmperf.cli.runs import pytest_options
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings, with_engine_options
from pytest_llmperf.engines.process.environment import Installations
from pytest_llmperf.experiments.bisection import Bisection, measured_tests
from pytest_llmperf.experiments.builds import Candidates, commits, flag_values, versions
from pytest_llmperf.telemetry.hardware import detect

FOLDER = ".llmperf/bisect"
NOT_FOUND = 1


ARGUMENTS = {
    "test": {"metavar": "TEST", "help": "one test, as pytest takes it"},
    "--engine": {"default": "vllm", "help": "engine under test (default: vllm)"},
    "--versions": {"group": ONE_OF, "metavar": "A..B",
                   "help": "each release between two, PACKAGE==A..B, or A,B,C; the first is the good one"},
    "--commits": {"group": ONE_OF, "metavar": "GOOD..BAD",
                  "help": "each commit on the first-parent line; needs --build"},
    "--flag": {"group": ONE_OF, "metavar": "NAME=V1,V2,…", "help": "values of a flag; the first is the good one"},
    "--build": {"metavar": "COMMAND", "help": "makes an environment in {folder} from {commit} or {version} (default "
                "for --versions: a virtual environment with pip)"},
    "--repository": {"type": Path, "default": Path(), "metavar": "FOLDER",
                     "help": "clone of the engine (default: here)"},
    "--pytest": {"metavar": "OPTIONS", "default": "", "help": "further options for pytest, as one text"},
}


def run(arguments: argparse.Namespace) -> int:
    options = pytest_options(arguments.pytest)
    asked = [arguments.test, arguments.engine, arguments.versions, arguments.commits, arguments.flag, arguments.build,
             str(arguments.repository), *options]
    folder = project_root() / FOLDER / hashlib.sha256(repr(asked).encode()).hexdigest()[:12]
    candidates = _candidates(arguments, options, folder)
    finding = Bisection(arguments.test, candidates, options, folder, remark, measured_tests).run()
    say("\n".join(finding.lines()))
    return 0 if finding.found else NOT_FOUND


def _candidates(arguments: argparse.Namespace, options: list[str], folder: Path) -> Candidates:
    if arguments.versions is not None:
        return versions(arguments.versions, arguments.engine, arguments.build, folder / "builds")
    if arguments.commits is not None:
        return commits(arguments.commits, arguments.engine, arguments.build, folder / "builds", arguments.repository)
    return flag_values(arguments.flag, arguments.engine, lambda: _place(arguments.engine, options))


def _place(engine: str, options: list[str]) -> str:
    """Where the engine under test is, for a reference of the same build."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--emulate")
    parser.add_argument("--llmperf-engine", action="append", default=[])
    given, _ = parser.parse_known_args(options)
    if given.emulate is not None:
        return "emulator"
    root = project_root()
    settings = with_engine_options(read_settings(root), given.llmperf_engine)
    installations = Installations(settings.engines, root, detect().kind)
    return installations.configured_place(engine) or installations.find_environment(engine).prefix[0]
