"""Compare two runs as Markdown: what got better, worse, stayed, or is unknown.

For a pull-request comment: llmperf release-report OLD.xml NEW.xml --out comment.md
For a GitHub step's summary: llmperf release-report OLD.xml NEW.xml --step-summary
A JUnit file comes from pytest --junitxml=FILE. Exit code 0, whatever it finds: it gates nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import RUN_HELP, named_run
from pytest_llmperf.errors import UsageError

SUMMARY = "GITHUB_STEP_SUMMARY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="OLD", help=f"JUnit file, or {RUN_HELP}")
    parser.add_argument("after", metavar="NEW", help=f"JUnit file, or {RUN_HELP}")
    parser.add_argument("--old-link", default="", metavar="URL", help="where the old run can be looked at")
    parser.add_argument("--new-link", default="", metavar="URL", help="where the new run can be looked at "
                        "(default: the GitHub Actions run that this is)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there instead of printing")
    parser.add_argument("--step-summary", action="store_true", help=f"also append the report to the file in ${SUMMARY}")


def run(arguments: argparse.Namespace) -> int:
    from pytest_llmperf.process.scratch import write_whole
    from pytest_llmperf.report.junit import read_release
    from pytest_llmperf.report.markdown import LinkedRun, markdown
    from pytest_llmperf.report.release import compare_runs

    summary = _summary(os.environ) if arguments.step_summary else None
    before, after = named_run(arguments.before), named_run(arguments.after)
    compared = compare_runs(read_release(before), read_release(after))
    old = LinkedRun(_name(before), arguments.old_link)
    new = LinkedRun(_name(after), arguments.new_link or this_run(os.environ))
    text = markdown(compared, old, new)
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
