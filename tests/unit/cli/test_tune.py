"""`llmperf tune` on the emulator, and its messages for invalid input."""

import json
import signal
import sys
from subprocess import PIPE, Popen, run

import pytest

from pytest_llmperf.cli import main
from pytest_llmperf.cli.grid import sweep_table
from pytest_llmperf.session.sweep import SweepRow

LOAD = ("--slo", "ttft_p50 <= 150ms", "--rate", "20", "--requests", "20", "--output", "1", "--precision", "0.2",
        "--emulate", "h200")
SPEC = ("vllm:llama-3.1-8b", "--flag", "max_model_len=4096", "--flag", "max_num_seqs=32",
        "--flag", "max_num_batched_tokens=64")
TUNE = ("tune", *SPEC, *LOAD)
WRITTEN = "suites/test_tuned.py"


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "suites").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.emulated
def test_killed_tuning_resumes_and_writes_a_test_that_passes(tmp_path, capsys):
    tune = (*TUNE, "--try", "max_num_batched_tokens=512", "--write", WRITTEN)
    with Popen([sys.executable, "-m", "pytest_llmperf", *tune], stdout=PIPE, stderr=PIPE, text=True) as killed:
        next(line for line in killed.stderr if "max_num_batched_tokens=512" in line)
        next(line for line in killed.stderr if "the SLO" in line)  # one rate of the second setting is judged
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
    (file,) = tmp_path.glob(".llmperf/runs/*/tune.jsonl")
    before = file.read_text()
    assert [json.loads(line)["flags"] for line in before.splitlines()[1:]] == [{}]
    assert main((*tune, "--resume", "newest")) == 0
    shown = capsys.readouterr()
    assert file.read_text().startswith(before)
    assert "Setting: default" in shown.err  # the second search of the default
    assert shown.err.count("Setting: ") == 2
    assert "The default's searches found" in shown.out
    assert "/s and " in shown.out
    assert "PASS  max_num_batched_tokens=512 (a) against the default (b)" in shown.out
    assert len(list(tmp_path.glob(".llmperf/runs/*"))) == 1
    content = (tmp_path / WRITTEN).read_text()
    repeated = run([sys.executable, "-m", "pytest", WRITTEN, "--emulate", "h200", "-q"], stdout=PIPE, text=True,
                   check=False)
    assert (repeated.returncode, "1 passed" in repeated.stdout) == (0, True), repeated.stdout
    assert main((*tune, "--resume", "newest")) == 2
    assert "overwrites no file" in capsys.readouterr().err
    assert (tmp_path / WRITTEN).read_text() == content


@pytest.mark.emulated
def test_tuning_without_better_setting_writes_no_test(tmp_path, capsys):
    assert main((*TUNE, "--try", "max_num_batched_tokens=32", "--write", WRITTEN)) == 1
    assert "No setting is better than the default as measured. Nothing is written." in capsys.readouterr().out
    assert list((tmp_path / "suites").iterdir()) == []


@pytest.mark.emulated
def test_sweep_of_which_no_setting_starts_gives_one_error(capsys):
    assert main(("sweep", *SPEC, *LOAD[2:8], "--emulate", "h200", "--runs", "1", "--grid",
                 "gpu_memory_utilization=0.01,0.02")) == 2
    shown = capsys.readouterr()
    assert "llmperf sweep: none of the " in shown.err
    assert shown.err.count("weights take 15.0 GiB of each GPU") >= 1
    assert "gpu_memory_utilization=0.02: " in shown.err


@pytest.mark.emulated
def test_default_that_cannot_be_measured_ends_tuning_and_is_resumed(tmp_path, capsys):
    tune = (*TUNE, "--flag", "gpu_memory_utilization=0.03", "--try", "gpu_memory_utilization=0.5", "--write", WRITTEN)
    for options in ((), ("--resume", "newest")):
        assert main((*tune, *options)) == 2
        shown = capsys.readouterr().err
        assert "llmperf tune: the default cannot be measured, so no setting can be proven to be better" in shown
        assert "weights take 15.0 GiB of each GPU" in shown
        assert "0 of 3 settings are measured. Go on with the same command and --resume" in shown
        assert shown.count("Setting: ") == 1
    assert list((tmp_path / "suites").iterdir()) == []


@pytest.mark.parametrize(("options", "words"), [
    (("--try", "max_num_seq=8"), "Did you mean max_num_seqs?"),
    (("--try", "max_num_batched_tokens=64"), "no setting differs from the default"),
    (("--try", "max_num_seqs=4,,8"), "--try max_num_seqs=4,,8: write each flag once"),
    (("--setting", "max_num_seqs"), "NAME=VALUE"),
    (("--try", "max_num_seqs=8", "--metric", "ttft"), "ttft_p50"),
    (("--try", "max_num_seqs=8", "--slo", "ttft <= 1ms"), "ttft_p50"),
    (("--try", "max_num_seqs=8", "--start-sd", "0"), "greater than 0"),
    (("--try", "max_num_seqs=8", "--write", "suites/tuned.py"), "pytest collects test_"),
    (("--try", "max_num_seqs=8", "--write", "none/test_tuned.py"), "there is no folder none"),
    (("--try", "max_num_seqs=8", "--resume", "newest"), "no run is stored"),
    (("--try", "max_num_seqs=8", "--workload", "poison(8)"), "did you mean poisson"),
    (("--try", "max_num_seqs=8", "--workload", "poisson(8)"), "no workload"),
    (("--try", "max_num_seqs=8", "--workload",
      "random_tokens(input=8, output=8, arrivals=closed(4), requests=8)"), "no one rate"),
])
def test_invalid_tuning_is_refused_before_anything_starts(tmp_path, capsys, options, words):
    assert main((*TUNE, *options)) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""
    assert not (tmp_path / ".llmperf" / "runs").exists()


def test_tuning_of_running_server_is_refused(capsys):
    assert main(("tune", "http://h:8000:m", "--try", "max_num_seqs=4", "--slo", "ttft_p50 <= 1ms")) == 2
    assert "ENGINE:MODEL" in capsys.readouterr().err


@pytest.mark.emulated
def test_run_folder_without_tuning_or_of_other_options_is_not_resumed(tmp_path, capsys):
    search = ("capacity", *SPEC, *LOAD)
    assert main(search) == 0
    assert main((*TUNE, "--try", "max_num_batched_tokens=512", "--resume", "newest")) == 2
    assert "holds no tuning" in capsys.readouterr().err
    assert not list(tmp_path.glob(".llmperf/runs/*/tune.jsonl"))


def test_long_problem_stands_once_below_the_table():
    long = f"The server ended before it was ready: exit code 2. These flags can be emulated: {'--flag, ' * 40}."
    rows = [SweepRow({"a": 1}, {}, long), SweepRow({"a": 2}, {}, long), SweepRow({"a": 3}, {}, "It died.")]
    lines = sweep_table(rows, ["a"], ["max_rate"])
    assert [line.split("-  ")[-1].strip() for line in lines[1:4]] == [
        *["The server ended before it was ready: exit code 2. [1]"] * 2, "It died."]
    assert [line for line in lines if "--flag" in line] == [f"[1] {long}"]
