"""Write a run as a comment: red tests with the sizes of changes, differences of the build, commands to measure again.

    llmperf comment .llmperf/junit.xml >> "$GITHUB_STEP_SUMMARY"
    llmperf comment .llmperf/junit.xml --post github

Without --post it prints Markdown. With --post it writes one comment per hardware kind and pull request, which each push
updates, and a status check of the commit: red if a test of RUN is red, or worse than in BASE. GitHub: GITHUB_TOKEN or
GH_TOKEN with pull-requests: write and statuses: write. GitLab: GITLAB_TOKEN with the scope "api". In GitHub Actions and
GitLab CI nothing else is needed; Jenkins and Buildkite need --repository. The exit code is 0 whatever the run says.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.review_service import SERVICES, place_of, post, this_job
from pytest_llmperf.cli.runs import RUN_HELP, named_run, newest_run
from pytest_llmperf.report.comment import CommentedRun, comment, compared_with, options_of
from pytest_llmperf.report.html.session_facts import session_facts
from pytest_llmperf.report.junit import read_release
from pytest_llmperf.report.tool_comparison import compare_tool_files
from pytest_llmperf.results.reader import read_session
from pytest_llmperf.results.tool_files import is_tool_side

ARGUMENTS = {
    "run_named": {"nargs": "?", "metavar": "RUN", "help": f"a JUnit file, or {RUN_HELP} (the default)"},
    "--against": {"metavar": "BASE",
                  "help": "a run to compare with, metric by metric, also files of another load generator (default: the "
                  "comparisons with stored baselines that RUN has made)"},
    "--post": {"choices": sorted(SERVICES), "help": "post the comment and the status check"},
    "--api": {"metavar": "URL", "help": "base of the service's API (default: of the CI job)"},
    "--repository": {"metavar": "NAME", "help": "OWNER/NAME, or GitLab's id (default: of the CI job)"},
    "--request": {"metavar": "NUMBER", "help": "pull or merge request (default: of the CI job)"},
    "--commit": {"metavar": "SHA", "help": "commit of the status check (default: of the CI job)"},
    "--link": {"default": "", "metavar": "URL", "help": "page of the run (default: the CI job)"},
    "--report-link": {"default": "", "metavar": "URL", "help": "page of the HTML report"},
}


def run(arguments: argparse.Namespace) -> int:
    path = newest_run() if arguments.run_named is None else named_run(arguments.run_named)
    place = None if arguments.post is None else place_of(arguments, os.environ)
    of_tool = is_tool_side(path) and arguments.against is not None
    compared = compare_tool_files([Path(arguments.against)], [path]) if of_tool else []
    tests = [each.after for each in compared if each.after is not None] if of_tool else read_release(path)
    folders = sorted({test.folder for test in tests if test.folder is not None})
    link, report = this_job(os.environ, folders[0] if folders else None)
    commented = CommentedRun(
        _name(path), tests, session_facts(folders, tests), options_of(read_session(folders[0])) if folders else (),
        link=arguments.link or link, report=arguments.report_link or report,
    )
    if of_tool:
        commented = replace(commented, base=_name(Path(arguments.against)), compared=compared)
    elif arguments.against is not None:
        base = named_run(arguments.against)
        commented = compared_with(commented, _name(base), read_release(base))
    text = comment(commented)
    if place is None:
        say(text, end="")
    else:
        say(post(place, commented, text))
    return 0


def _name(run: Path) -> str:
    """The name of a file without its suffix, or of a folder; the folder v0.9.1 has no suffix."""
    return run.resolve().name if run.is_dir() else run.stem
