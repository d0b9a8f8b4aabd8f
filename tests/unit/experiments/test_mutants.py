"""What `llmperf mutate` counts: tests that are red with a fault alone."""

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.cli import main
from pytest_llmperf.emulator.faults import _READERS, parse_faults
from pytest_llmperf.errors import UsageError
from pytest_llmperf.experiments import mutants
from pytest_llmperf.experiments.mutants import FAULTS, Session, report, run_mutants
from pytest_llmperf.results.check import Stated
from pytest_llmperf.results.measurement import TestResult


def ended(**verdicts):
    return {name: TestResult(name, True, None, (), (CheckResult(
        "tpot_mean <= 9ms", verdict, "tpot_mean", cause=None if verdict is Verdict.PASS else Stated("slow")),))
        for name, verdict in verdicts.items()}


def test_each_fault_of_the_emulator_is_planted_with_a_valid_value():
    assert {fault.partition("=")[0] for fault in FAULTS} == set(_READERS)
    for fault in FAULTS:
        parse_faults([fault])


def test_table_counts_tests_that_are_red_with_the_fault_alone():
    lines = list(report([
        Session("", ended(good=Verdict.PASS, blind=Verdict.PASS, noisy=Verdict.FAIL, new=Verdict.NO_BASELINE), 60),
        Session("leak", ended(good=Verdict.FAIL, blind=Verdict.PASS, noisy=Verdict.FAIL, new=Verdict.PASS), 60),
        Session("kv=-50%", ended(good=Verdict.PASS, blind=Verdict.PASS, noisy=Verdict.FAIL, new=Verdict.PASS), 60),
        Session("router=round_robin", {}, 6, "there is no router"),
    ]))
    assert lines[1].split()[:5] == ["leak", "1", "of", "4", "good:"]
    assert lines[2].split()[:4] == ["kv=-50%", "0", "of", "4"]
    assert "there is no router" in lines[3]
    assert lines[4] == "noticed by no test: kv=-50% (1 of 2 faults)"
    assert lines[5] == "tests that notice no fault: blind, noisy, new"
    assert lines[6] == "false alarms without a fault: noisy (1 of 4 tests)"
    assert lines[7].startswith("without a comparable baseline: new. Such a test notices no slower step")
    assert lines[8] == "3.1 min in 4 sessions"


@pytest.mark.parametrize("flag", ["nonsense", "vllm:", "vllm:max-num-seqs=", "nothing:max-num-seqs=1"])
def test_mistyped_planted_flag_is_refused_before_the_first_session(flag, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mutants, "run_session", lambda *_: pytest.fail("a session began"))
    assert main(["mutate", "suites", "--pytest=--emulate h200", "--plant-flag", flag]) == 2
    assert capsys.readouterr().err.startswith("llmperf mutate: ")


def test_suite_that_is_red_without_a_fault_ends_after_its_first_session(monkeypatch, tmp_path):
    sessions = []

    def session(arguments, place, root):
        sessions.append(arguments)
        (place / "run/tests").mkdir(parents=True)

    monkeypatch.setattr(mutants, "run_session", session)
    monkeypatch.setattr(mutants, "read_run", lambda run: list(ended(a=Verdict.FAIL, b=Verdict.ERROR).values()))
    with pytest.raises(UsageError, match=r"every test is red without a fault.*llmperf show .*00/run"):
        run_mutants(["suites"], [], tmp_path, lambda text: None)
    assert len(sessions) == 1
    monkeypatch.setattr(mutants, "read_run", lambda run: list(ended(a=Verdict.FAIL, b=Verdict.PASS).values()))
    assert len(run_mutants(["suites"], [], tmp_path / "2", lambda text: None, ["leak"])) == 2


@pytest.mark.parametrize(("options", "expected"), [
    ([], 'Write --pytest="--emulate h200"'), (["--pytest=--emulate 'h200"], "Close the quotes"),
])
def test_command_without_the_emulator_is_refused(options, expected, capsys):
    assert main(["mutate", "suites", *options]) == 2
    assert expected in capsys.readouterr().err
