"""Compare two runs test by test, two states of the baselines, or files of other load generators: what is proven.

For a pull-request comment: llmperf diff OLD.xml NEW.xml --markdown --out comment.md
For a GitHub step's summary: llmperf diff OLD.xml NEW.xml --markdown --step-summary
For a review of baselines: llmperf diff --baselines origin/main
For results of vllm bench serve, sglang.bench_serving, AIPerf or GuideLLM: llmperf diff OLD.json… NEW.json…, with as
many files for each side, or two folders of files. Each file is one repeat, and so is each line of a JSONL file.
A JUnit file comes from pytest --junitxml=FILE. The exit code is 0 whatever it finds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import RUN_HELP, named_run, newest_run, run_before
from pytest_llmperf.errors import UsageError

SUMMARY = "GITHUB_STEP_SUMMARY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sides", nargs="*", metavar="SIDE",
                        help=f"OLD NEW, each a JUnit file, or {RUN_HELP}; one run is compared with the run before it, "
                        "and by default the two newest runs. With --baselines each is a git revision or a folder "
                        "(default: HEAD and the working tree). Files of other load generators: the first half is OLD")
    parser.add_argument("--all", action="store_true", help="every metric, not the primary ones alone")
    parser.add_argument("--baselines", action="store_true", help="compare stored baselines")
    parser.add_argument("--markdown", action="store_true", help="what got better, worse, stayed, or is unknown")
    parser.add_argument("--old-link", default="", metavar="URL", help="where the old run can be looked at")
    parser.add_argument("--new-link", default="", metavar="URL", help="where the new run can be looked at "
                        "(default: the GitHub Actions run that this is)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there instead of printing")
    parser.add_argument("--step-summary", action="store_true", help=f"also append the text to the file in ${SUMMARY}")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.process.scratch import write_whole

    summary = _summary(os.environ) if arguments.step_summary else None
    text = _of_baselines(arguments.sides) if arguments.baselines else _of_runs(arguments)
    try:
        if summary is not None:
            with summary.open("a", encoding="utf-8") as file:
                file.write(text)
        if arguments.out is not None:
            write_whole(arguments.out, text.encode("utf-8", "replace"))
        elif summary is None:
            say(text, end="")
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written: {error.strerror}.") from error
    return 0


def _of_runs(arguments: argparse.Namespace) -> str:
    from pytest_llmperf.report.junit import read_release
    from pytest_llmperf.report.markdown import LinkedRun, markdown
    from pytest_llmperf.report.release import compare_runs
    from pytest_llmperf.report.terminal_text import comparison_text
    from pytest_llmperf.report.tool_comparison import compare_tool_files
    from pytest_llmperf.results.tool_files import is_tool_side

    paths = [Path(side) for side in arguments.sides]
    of_tools = [path for path in paths if is_tool_side(path)]
    if of_tools:
        old, new = _halves(paths, of_tools)
        compared = compare_tool_files(old, new, others=arguments.all)
        before, after = old[0], new[0]
    else:
        _check_two(arguments.sides)
        before, after = _compared_runs([named_run(run) for run in arguments.sides])
        compared = compare_runs(read_release(before), read_release(after), others=arguments.all)
    if not arguments.markdown:
        return "\n\n".join(map(comparison_text, compared)) + "\n"
    return markdown(compared, LinkedRun(_name(before), arguments.old_link),
                    LinkedRun(_name(after), arguments.new_link or this_run(os.environ)))


def _check_two(sides: Sequence[str]) -> None:
    if len(sides) > 2:
        raise UsageError(f"llmperf diff compares two sides, and {len(sides)} are named: llmperf diff OLD NEW.")


def _halves(paths: list[Path], of_tools: list[Path]) -> tuple[list[Path], list[Path]]:
    """The files of each side.

    Raises:
        UsageError: a path is no file of a load generator, or the two sides have different numbers of files.
    """
    if other := [path for path in paths if path not in of_tools]:
        raise UsageError(f"{other[0]}: this is no result file of another load generator, and {of_tools[0]} is one. "
                         "Name files of one kind on both sides.")
    half, odd = divmod(len(paths), 2)
    if odd:
        raise UsageError(f"{len(paths)} files are named, and the first half is compared with the second half. Name as "
                         "many files for each side, or a folder for each side: llmperf diff OLD NEW.")
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
    from pytest_llmperf.config.root import project_root
    from pytest_llmperf.config.settings import read_settings
    from pytest_llmperf.report.stored_text import changes
    from pytest_llmperf.session.baseline_states import state

    _check_two(sides)
    root = project_root()
    folder = read_settings(root).baselines_dir
    # A folder is typed from where the user is.
    typed = [str(Path(side).absolute()) if Path(side).is_dir() else side for side in sides]
    old, new = (state(root, folder, place) for place in (*typed, *("HEAD", folder)[len(typed):]))
    return ("\n".join(changes(old, new)) or "no difference") + "\n"


def _name(run: Path) -> str:
    """A file's without its suffix; a folder's whole, for v0.9.1 has none."""
    return run.resolve().name if run.is_dir() else run.stem


def this_run(env: Mapping[str, str]) -> str:
    """The page of the GitHub Actions run that this process is part of; "" elsewhere."""
    server, repository, run_id = (env.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    return f"{server}/{repository}/actions/runs/{run_id}" if server and repository and run_id else ""


def _summary(env: Mapping[str, str]) -> Path:
    if not env.get(SUMMARY):
        raise UsageError(f"--step-summary: ${SUMMARY} is not set; only a GitHub Actions step has it. Use --out FILE.")
    return Path(env[SUMMARY])
