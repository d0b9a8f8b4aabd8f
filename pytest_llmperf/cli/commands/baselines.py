"""Look at stored baselines and take measurements into them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path

from pytest_llmperf.baseline.catalog import catalog, pick
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.baseline.update_plan import Action, UpdatePlan, summary
from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.parser import add_table
from pytest_llmperf.cli.runs import RUN_HELP, named_run
from pytest_llmperf.config.root import project_root
from pytest_llmperf.config.settings import read_settings
from pytest_llmperf.errors import UsageError
from pytest_llmperf.report.text import baseline_list, baseline_text
from pytest_llmperf.results.baseline import Entry
from pytest_llmperf.results.conditions import field_rules
from pytest_llmperf.session.baseline_update import MeasuredSession, UpdateScope, read_sessions, update_baselines

LISTED = {"--kind": {"help": "hardware kind, e.g. h200 or emulated-h200 (default: every kind that has it)"}}
SHOWN = {"test": {"metavar": "TEST", "help": "a test's id, its function, or a part of it"}} | LISTED
TAKEN = {
    "run_dirs": {"nargs": "+", "metavar": "RUN", "help": RUN_HELP},
    "--new": {"action": "store_true", "help": "create missing baselines; change none that exists"},
    "--accept": {"metavar": "REASON", "help": "take in what would be refused; the reason is stored"},
    "--dry-run": {"action": "store_true", "help": "print the plan and write nothing"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_subparsers(dest="baselines_command", metavar="COMMAND", required=True)

    for action, table in ((_list, LISTED), (_show, SHOWN), (_take, TAKEN)):
        text = cleandoc(action.__doc__ or "")
        command = chosen.add_parser(action.__name__.strip("_"), help=text.partition("\n")[0], description=text,
                                    formatter_class=argparse.RawDescriptionHelpFormatter)
        command.set_defaults(run_on_baselines=action)
        add_table(command, table)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.run_on_baselines(arguments))


def _entries(arguments: argparse.Namespace) -> list[Entry]:
    root = project_root()
    return catalog(root / read_settings(root).baselines_dir, arguments.kind)


def _list(arguments: argparse.Namespace) -> int:
    """List what is stored: test, sessions, latest date, primary metrics."""
    say("\n".join(baseline_list(_entries(arguments))))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    """Show one baseline: its conditions and every metric, with the spread between its sessions."""
    for entry in pick(_entries(arguments), arguments.test):
        say("\n".join(baseline_text(entry)))
    return 0


def _take(arguments: argparse.Namespace) -> int:
    """Take run folders into baselines/, as --update-baselines takes the run that it ends.

    Run folders can come from any machine: a GPU host without a git checkout, an artefact of CI. The session.json of a
    folder names the host and the time of its session; folders of the same session are taken together. A full disk
    changes no file. The exit code is 1 if a change was refused.
    """
    root = project_root()
    settings = read_settings(root)
    sessions = read_sessions(path for folder in arguments.run_dirs for path in _run_files(named_run(folder)))
    wanted = UpdateScope("new" if arguments.new else "all", arguments.accept, field_rules(settings))
    store = Store(root / settings.baselines_dir)
    plans = update_baselines(store, sessions, wanted, lambda plans: _show_plans(sessions, plans),
                             dry_run=arguments.dry_run)
    if arguments.dry_run:
        say("Nothing was written: --dry-run.")
    return int(any(planned.count(Action.REFUSED) for planned in plans))


def _show_plans(sessions: Sequence[MeasuredSession], plans: Sequence[UpdatePlan]) -> None:
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
