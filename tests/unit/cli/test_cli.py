"""`llmperf` as such; each command has its own tests."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.cli import main
from pytest_llmperf.cli.parser import parser
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.results.writer import write_test
from pytest_llmperf.slo.model import Comparison


def test_llmperf_without_command_lists_commands(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_every_command_has_help_text():
    commands = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert all(choice.help for choice in commands._choices_actions)


def test_module_prints_version():
    command = [sys.executable, "-m", "pytest_llmperf", "--version"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0
    assert completed.stdout.startswith("pytest-llmperf ")


@pytest.fixture
def show(tmp_path):
    """`llmperf show` of a run as a process of its own."""
    check = CheckResult("ttft_p50 <= 1s", Verdict.PASS, "ttft_p50", Unit.MS, Comparison.AT_MOST, 1000, 50)
    write_test(tmp_path, "tests/test_a.py::test_x", [], [check])
    command = [sys.executable, "-m", "pytest_llmperf", "show", tmp_path, "test_x"]
    buffered = {"PYTHONUNBUFFERED": ""}  # as it is for a user: what is short is written as Python exits

    def show(stdout=subprocess.PIPE, **env):
        env = os.environ | buffered | env
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=env, check=False)

    return show


def test_unencodable_characters_are_replaced_in_terminal_output(show):
    completed = show(PYTHONIOENCODING="ascii")
    assert (completed.returncode, completed.stderr) == (0, b"")
    assert b"? 1000 ms" in completed.stdout


def test_unwritable_output_exits_with_2_and_message(show):
    with Path("/dev/full").open("wb") as full:
        completed = show(full)
    assert completed.returncode == 2
    assert completed.stderr == b"llmperf show: the output cannot be written: No space left on device\n"


def test_closed_output_pipe_exits_with_141_without_message(show):
    read, write = os.pipe()
    os.close(read)
    completed = show(write)
    os.close(write)
    assert (completed.returncode, completed.stderr) == (141, b"")


def test_unparsable_pytest_options_are_refused(capsys):
    assert main(["calibrate", "--pytest", "-k 'x"]) == 2
    assert "No closing quotation" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_script_names_commands_and_options(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "report-link" in script
    assert "trace-window" in script


def test_bash_completion_contains_matching_commands(capsys, tmp_path):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "llmperf.bash").write_text(capsys.readouterr().out)
    ask = "source ./llmperf.bash; COMP_WORDS=(llmperf d); COMP_CWORD=1; _shtab_llmperf; echo ${COMPREPLY[@]}"
    offered = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert sorted(offered.split()) == ["diff", "doctor"]


def test_completion_without_shtab_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err
