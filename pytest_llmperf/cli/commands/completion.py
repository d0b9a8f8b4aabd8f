"""Print the shell's completion of llmperf, for bash, zsh or tcsh.

  llmperf completion bash > ~/.local/share/bash-completion/completions/llmperf
"""

from __future__ import annotations

import argparse

from pytest_llmperf.cli.output import say
from pytest_llmperf.cli.parser import parser
from pytest_llmperf.errors import UsageError

ARGUMENTS = {
    "shell": {"choices": ("bash", "zsh", "tcsh")},
}


def run(arguments: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise UsageError("The package shtab is missing, which writes completions: "
                         "pip install shtab.") from error
    say(shtab.complete(parser(), shell=arguments.shell))
    return 0
