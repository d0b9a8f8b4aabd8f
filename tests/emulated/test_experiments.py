"""`llmperf bisect --flag` and `llmperf mutate` on the emulator, from the command line to what they print."""

import pytest

from pytest_llmperf.cli import main
from pytest_llmperf.experiments.mutants import report, run_mutants

SUITE = """
from pytest_llmperf import by_kind, closed, random_tokens, vllm

@by_kind(h200={})
def test_seats(case, perf):
    engine = vllm("llama-3.1-8b", max_model_len=8192)
    run = perf.measure(engine, random_tokens(input=500, output=60, arrivals=closed(16), requests=48))
    perf.check(run, "error_rate == 0")
    perf.compare_with_baseline(run, primaries=["itl_p50", "output_throughput"])
"""
pytestmark = [pytest.mark.emulated, pytest.mark.timeout(600)]


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_seats.py").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_bisection_names_the_first_value_with_fewer_seats_than_streams_and_resumes(project, capsys):
    command = ["bisect", "test_seats.py", "--flag=max_num_seqs=128,64,32,16,8", "--pytest=--emulate h200"]
    assert main(command) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith("culprit: max_num_seqs=8 (")
    assert "range: 128 … 8, 5 builds" in output[2]
    sessions = len(list(project.glob(".llmperf/bisect/*/sessions/*")))
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[0] == output[0]
    assert len(list(project.glob(".llmperf/bisect/*/sessions/*"))) == sessions


def test_slower_step_is_noticed_by_no_test_of_a_suite_without_baselines_and_errors_fail(project):
    sessions = run_mutants(["test_seats.py", "--emulate=h200"], ["vllm:max-num-seqs=8"], project / "out", print,
                           faults=("step_time=+10%", "errors=10%"))
    lines = list(report(sessions))
    assert lines[2].split()[:4] == ["errors=10%", "1", "of", "1"]
    assert "noticed by no test: step_time=+10%, vllm:max-num-seqs=8 (2 of 3 faults)" in lines
    assert "false alarms without a fault: none (0 of 1 tests)" in lines
    assert any(line.startswith("without a comparable baseline: ") for line in lines)
