"""The commands of `llmperf`, found in the folder `commands`: a new file there is a new command.

A command may have commands of its own in the same manner (`commands.baselines`).
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from pytest_llmperf.cli import commands
from pytest_llmperf.version import VERSION


def parser() -> argparse.ArgumentParser:
    """`llmperf COMMAND …`; the parsed namespace carries `command` and `run(namespace) -> exit code`.

    A module of `commands` has a docstring, whose first line is the help, `add_arguments(parser)` and `run(arguments)`;
    what is heavy it imports inside `run`.
    """
    root = argparse.ArgumentParser(prog="llmperf", description="Runs, baselines and calibration of pytest-llmperf.")
    root.add_argument("--version", action="version", version=f"pytest-llmperf {VERSION}")
    add_commands(root.add_subparsers(dest="command", metavar="COMMAND", required=True), commands)
    return root


def add_commands(
    chosen: argparse._SubParsersAction[argparse.ArgumentParser], package: ModuleType, *, runs_as: str = "run"
) -> None:
    """One command per module of a package.

    Args:
        chosen: where they are added.
        package: its modules' names are the commands'.
        runs_as: name under which the chosen module's `run` stands in the parsed namespace.
    """
    for found in iter_modules(package.__path__):
        module = import_module(f"{package.__name__}.{found.name}")
        text = (module.__doc__ or "").strip()
        command = chosen.add_parser(
            found.name.replace("_", "-"),
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(**{runs_as: module.run})
