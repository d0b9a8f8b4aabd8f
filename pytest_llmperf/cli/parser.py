"""The commands of `llmperf`, found in the folder `commands`: a new file there is a new command.

Only the module of the chosen command is imported, with everything that it needs.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from pytest_llmperf.cli import commands
from pytest_llmperf.version import VERSION


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """`llmperf COMMAND …`; the parsed namespace carries `command` and `run(namespace) -> exit code`.

    A module of `commands` has a docstring, whose first line is the help, `add_arguments(parser)` and `run(arguments)`.

    Args:
        chosen: the command whose arguments are read; every other command has its help alone. None: all commands.
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
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return root
