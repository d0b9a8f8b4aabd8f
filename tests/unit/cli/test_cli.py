"""`llmperf` as such; each command has its own tests."""

import argparse
import subprocess
import sys

import pytest

from pytest_llmperf.cli import main
from pytest_llmperf.cli.parser import parser


def test_without_a_command_it_says_which_there_are(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_every_command_says_what_it_does():
    commands = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert all(choice.help for choice in commands._choices_actions)


def test_as_a_module():
    command = [sys.executable, "-m", "pytest_llmperf", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0
    assert told.stdout.startswith("pytest-llmperf ")


def test_options_for_pytest_that_no_shell_would_read(capsys):
    assert main(["calibrate", "--pytest", "-k 'x"]) == 2
    assert "No closing quotation" in capsys.readouterr().err
