"""The commands of `llmperf`, found in the folder `commands`: a new file there is a new command.

Only the module of the chosen command is imported, with everything that it needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from pytest_llmperf.cli import commands
from pytest_llmperf.version import VERSION

ONE_OF = "one of these"


def add_table(command: argparse.ArgumentParser, table: Mapping[str, Mapping[str, Any]]) -> None:
    """Add each argument of a table.

    Args:
        table: name of an argument → keywords of argparse's `add_argument`. `group` is the title of the argument's group
            in the help. A command line must have exactly one of the arguments with the group `ONE_OF`.
    """
    groups: dict[str, argparse._ActionsContainer] = {"": command}
    for name, keywords in table.items():
        title = keywords.get("group", "")
        if title not in groups:
            groups[title] = (command.add_mutually_exclusive_group(required=True) if title == ONE_OF
                             else command.add_argument_group(title))
        groups[title].add_argument(name, **{key: value for key, value in keywords.items() if key != "group"})


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """`llmperf COMMAND …`; the parsed namespace carries `command` and `run(namespace) -> exit code`.

    A module of `commands` has a docstring, whose first line is the help, `ARGUMENTS` and `run(arguments)`. `ARGUMENTS`
    is a table for `add_table`; a command with commands of its own has `add_arguments(parser)` instead.

    Args:
        chosen: the command whose arguments are added; the other commands only get their line of help. None: all
            commands.
    """
    root = argparse.ArgumentParser(prog="llmperf", description="Runs, baselines and calibration of pytest-llmperf.")
    root.add_argument("--version", action="version", version=f"pytest-llmperf {VERSION}")
    subparsers = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for found in iter_modules(commands.__path__):
        name = found.name.replace("_", "-")
        source = Path(commands.__path__[0], f"{found.name}.py").read_text(encoding="utf-8")
        command = subparsers.add_parser(name, help=source.partition("\n")[0].strip('"'),
                                        formatter_class=argparse.RawDescriptionHelpFormatter)
        if chosen in (name, None):
            module = import_module(f"{commands.__name__}.{found.name}")
            command.description = (module.__doc__ or "").strip()
            if hasattr(module, "add_arguments"):
                module.add_arguments(command)
            else:
                add_table(command, module.ARGUMENTS)
            command.set_defaults(run=module.run)
    return root
