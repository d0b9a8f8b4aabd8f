"""The commands of `llmperf`, found in the folder `commands`: a new file there is a new command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from pytest_llmperf import __version__
from pytest_llmperf.cli import commands


def parser() -> argparse.ArgumentParser:
    """`llmperf COMMAND …`; the parsed namespace carries `command` and `run(namespace) -> exit code`.

    A module of `commands` has a docstring, whose first line is the help, `add_arguments(parser)` and `run(arguments)`;
    what is heavy it imports inside `run`.
    """
    root = argparse.ArgumentParser(prog="llmperf", description="Runs, baselines and calibration of pytest-llmperf.")
    root.add_argument("--version", action="version", version=f"pytest-llmperf {__version__}")
    chosen = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in _modules():
        text = (module.__doc__ or "").strip()
        command = chosen.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return root


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for found in iter_modules(commands.__path__):
        yield found.name.replace("_", "-"), import_module(f"{commands.__name__}.{found.name}")
