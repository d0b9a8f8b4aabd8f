"""Compare two runs test by test, two states of the baselines, or files of other load generators: what is proven.

For a review of baselines: llmperf diff --baselines origin/main
As Markdown for a pull request: llmperf comment NEW.xml --against OLD.xml
For results of vllm bench serve, sglang.bench_serving, AIPerf or GuideLLM: llmperf diff OLD.json… NEW.json…, with as
many files for each side, or two folders of files. Each file is one repeat, and so is each line of a JSONL file.
A JUnit file comes from pytest --junitxml=FILE. The exit code is 0 whatever it finds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_llmperf.baseline.catalog import state
from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import RUN_HELP, named_run, newest_run, run_before
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import UsageError
from pytest_llmperf.report.junit import read_release
from pytest_llmperf.report.release import compare_runs
from pytest_llmperf.report.text import changes, comparison_text
from pytest_llmperf.report.tool_comparison import compare_tool_files
from pytest_llmperf.results.tool_files import is_tool_side

ARGUMENTS = {
    "sides": {"nargs": "*", "metavar": "SIDE",
              "help": f"OLD NEW, each a JUnit file, or {RUN_HELP}; one run is compared with the run before it, and by "
              "default the two newest runs. With --baselines each is a git revision or a folder (default: HEAD and the "
              "working tree). Files of other load generators: the first half is OLD"},
    "--all": {"action": "store_true", "help": "every metric, not the primary ones alone"},
    "--baselines": {"action": "store_true", "help": "compare stored baselines"},
}


def run(arguments: argparse.Namespace) -> int:
    say(_of_baselines(arguments.sides) if arguments.baselines else _of_runs(arguments), end="")
    return 0


def _of_runs(arguments: argparse.Namespace) -> str:
    paths = [Path(side) for side in arguments.sides]
    of_tools = [path for path in paths if is_tool_side(path)]
    if of_tools:
        old, new = _halves(paths, of_tools)
        compared = compare_tool_files(old, new, others=arguments.all)
    else:
        _check_two(arguments.sides)
        before, after = _compared_runs([named_run(run) for run in arguments.sides])
        compared = compare_runs(read_release(before), read_release(after), others=arguments.all)
    return "\n\n".join(map(comparison_text, compared)) + "\n"


def _check_two(sides: Sequence[str]) -> None:
    if len(sides) > 2:
        raise UsageError(f"llmperf diff compares two sides, and {len(sides)} are named: llmperf diff OLD NEW.")


def _halves(paths: list[Path], of_tools: list[Path]) -> tuple[list[Path], list[Path]]:
    """The files of each side.

    Raises:
        UsageError: a path is no file of a load generator, or the two sides have different numbers of files.
    """
    if other := [path for path in paths if path not in of_tools]:
        if not other[0].exists():
            raise UsageError(f"{other[0]}: there is no such file or folder.")
        raise UsageError(f"{other[0]}: this is no result file of another load generator, and {of_tools[0]} is one. "
                         "Name files of one kind on both sides.")
    half, odd = divmod(len(paths), 2)
    if odd:
        raise UsageError(f"The first half of the files is compared with the second half, and {len(paths)} cannot be "
                         "halved. Name as many files for each side, or a folder for each side: llmperf diff OLD NEW.")
    return paths[:half], paths[half:]


def _compared_runs(named: list[Path]) -> tuple[Path, Path]:
    """The older and the newer run.

    Raises:
        UsageError: no older run is stored.
    """
    if len(named) == 2:
        return named[0], named[1]
    after = named[0] if named else newest_run()
    return run_before(after), after


def _of_baselines(sides: list[str]) -> str:
    _check_two(sides)
    root = project_root()
    folder = read_settings(root).baselines_dir
    # A folder is typed from where the user is.
    typed = [str(Path(side).absolute()) if Path(side).is_dir() else side for side in sides]
    old, new = (state(root, folder, place) for place in (*typed, *("HEAD", folder)[len(typed):]))
    return ("\n".join(changes(old, new)) or "no difference") + "\n"
