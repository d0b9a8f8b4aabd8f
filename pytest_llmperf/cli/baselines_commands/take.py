"""Take run folders into baselines/, as --update-baselines takes the run that it ends.

Run folders can come from any machine: a GPU host without a git checkout, an artefact of CI. The session.json of a
folder names the host and the time of its session; folders of the same session are taken together. The command writes
all printed changes or none. The exit code is 1 if a change was refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_llmperf.baseline.store import Store
from pytest_llmperf.baseline.summary import summary
from pytest_llmperf.baseline.update_plan import Action, UpdatePlan
from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.runs import RUN_HELP, named_run
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import UsageError
from pytest_llmperf.results.conditions import field_rules
from pytest_llmperf.session.baseline_update import MeasuredSession, UpdateScope, read_sessions, update_baselines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dirs", nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--new", action="store_true", help="create missing baselines; change none that exists")
    parser.add_argument("--accept", metavar="REASON", help="take in what would be refused; the reason is stored")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")


def run(arguments: argparse.Namespace) -> int:
    root = project_root()
    settings = read_settings(root)
    sessions = read_sessions(path for folder in arguments.run_dirs for path in _run_files(named_run(folder)))
    wanted = UpdateScope("new" if arguments.new else "all", arguments.accept, field_rules(settings))
    store = Store(root / settings.baselines_dir)
    plans = update_baselines(store, sessions, wanted, lambda plans: _show(sessions, plans), dry_run=arguments.dry_run)
    if arguments.dry_run:
        say("Nothing was written: --dry-run.")
    return int(any(planned.count(Action.REFUSED) for planned in plans))


def _show(sessions: Sequence[MeasuredSession], plans: Sequence[UpdatePlan]) -> None:
    for session, planned in zip(sessions, plans, strict=True):
        origin = session.provenance
        say(f"session {origin.session}, measured on host {origin.host} at commit {origin.commit or 'unknown'}")
        say(summary(planned), flush=True)


def _run_files(folder: Path) -> list[Path]:
    paths = sorted((folder / "tests").glob("*.json"))
    if not paths:
        raise UsageError(
            f"{folder} holds no results: there is no {folder / 'tests'} with JSON files. Name the folder of one pytest "
            "run: ls .llmperf/runs"
        )
    return paths
