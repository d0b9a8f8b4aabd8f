"""`llmperf tune` on the emulator, and its messages for invalid input."""

import json
import signal
import sys
from argparse import Namespace
from subprocess import PIPE, Popen, run

import pytest

from pytest_llmperf.cli import main
from pytest_llmperf.cli.commands.tune import combinations_of, settings_table
from pytest_llmperf.cli.target import EnginePlace, place_of
from pytest_llmperf.engines.spec import vllm
from pytest_llmperf.session.setting_rows import SettingRow

LOAD = ("--slo", "ttft_p50 <= 150ms", "--rate", "20", "--requests", "20", "--output", "1", "--precision", "0.2",
        "--emulate", "h200")
SMALL = ("vllm:llama-3.1-8b", "--flag", "max_model_len=4096", "--requests", "40", "--output", "8", "--emulate", "h200")
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
def test_resumed_proof_gives_the_same_verdict_without_a_search(tmp_path, capsys):
    """The first look at three pairs is open. In another order of the sides the same pairs gave a PASS."""
    tune = (*TUNE, "--try", "max_num_batched_tokens=80")
    assert main(tune) == 0
    proof = capsys.readouterr().out.splitlines()[-1]
    assert "6 pairs on 1 + 2 server starts" in proof
    for _ in range(2):
        assert main((*tune, "--resume", "newest")) == 0
        shown = capsys.readouterr()
        assert shown.out.splitlines()[-1] == proof
        assert "the SLO" not in shown.err


@pytest.mark.emulated
def test_tuning_without_better_setting_writes_no_test(tmp_path, capsys):
    assert main((*TUNE, "--try", "max_num_batched_tokens=32", "--write", WRITTEN)) == 1
    assert "No setting is better than the default as measured. Nothing is written." in capsys.readouterr().out
    assert list((tmp_path / "suites").iterdir()) == []


@pytest.mark.emulated
def test_table_of_which_no_setting_starts_gives_one_error(tmp_path, capsys):
    assert main(("tune", *SPEC, *LOAD[2:8], "--emulate", "h200", "--runs", "1", "--flag", "gpu_memory_utilization=0.03",
                 "--try", "gpu_memory_utilization=0.01,0.02")) == 2
    shown = capsys.readouterr()
    assert "llmperf tune: none of the 3 settings could be measured" in shown.err
    assert shown.err.count("weights take 15.0 GiB of each GPU") >= 1
    assert "gpu_memory_utilization=0.02: " in shown.err
    (file,) = tmp_path.glob(".llmperf/runs/*/tune.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["flags"]["gpu_memory_utilization"] for row in rows[1:]] == [0.01, 0.02]
    assert all("weights take" in row["problem"] for row in rows[1:])


@pytest.mark.emulated
def test_tuning_in_subfolder_writes_runs_to_project_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "suites")
    assert main(("tune", *SMALL, "--try", "max_num_seqs=4", "--runs", "1", "--rate", "30")) == 0
    assert list(tmp_path.glob(".llmperf/runs/*"))
    assert not (tmp_path / "suites/.llmperf").exists()  # else it would pass for a project's root from then on


@pytest.mark.emulated
def test_table_without_search_continues_after_interruption(tmp_path, capsys):
    tune = ("tune", *SMALL, "--try", "max_num_seqs=4,64", "--runs", "1", "--rate", "30", "--try",
            "max_num_batched_tokens=-1,2048")
    assert main(tune) == 0
    shown = capsys.readouterr()
    stars = [line.split()[1] for line in shown.out.splitlines() if line.startswith("*  ")]
    assert {"64", "default"} & set(stars)
    assert "Tried rates" not in shown.out
    rows = [line for line in shown.out.splitlines() if not line.startswith("[")]
    assert sum("ended before it was ready" in row for row in rows) == 2  # -1 is no budget: a row that says so
    (file,) = tmp_path.glob(".llmperf/runs/*/tune.jsonl")
    content = file.read_bytes()
    file.write_bytes(content[:-9])  # killed while the last row was written
    assert main((*tune, "--resume", "newest")) == 0
    shown = capsys.readouterr()
    assert "Pareto front" in shown.out
    assert shown.err.count("Setting: ") == 1  # only the last one was measured anew
    again = file.read_bytes().splitlines()
    assert again[:-1] == content.splitlines()[:-1]
    assert len(again) == 1 + 5


@pytest.mark.emulated
def test_tuning_without_candidate_that_starts_writes_no_test(tmp_path, capsys):
    assert main((*TUNE, "--try", "gpu_memory_utilization=0.02", "--write", WRITTEN)) == 1
    shown = capsys.readouterr().out
    assert "No available memory for the cache blocks" in shown
    assert "No setting is better than the default as measured. Nothing is written." in shown
    assert list((tmp_path / "suites").iterdir()) == []


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


@pytest.mark.parametrize(
    ("text", "values"),
    [("a=4,64", [4, 64]), ("a=true", [True]), ("a=[1,2]", [1, 2]), ("a=x,y", ["x", "y"]),
     ('a={"method": "ngram", "n": 4}', [{"method": "ngram", "n": 4}])],
)
def test_a_grid_of_one_value_is_that_value(text, values):
    assert combinations_of([text]) == [{"a": value} for value in values]


def test_combinations_vary_last_flag_fastest():
    assert combinations_of(["a=1,2", "b=x,true"]) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": True}, {"a": 2, "b": "x"}, {"a": 2, "b": True}]


def bundle(path, version):
    """An unpacked engine."""
    (path / "vllm").mkdir(parents=True)
    (path / "vllm" / "__init__.py").touch()
    (path / f"vllm-{version}.dist-info").mkdir()
    (path / f"vllm-{version}.dist-info" / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n")
    return path


def test_another_installation_or_version_is_another_place(tmp_path):
    spec = vllm("llama-3.1-8b")
    bundles = [bundle(tmp_path / "old", "0.26.0"), bundle(tmp_path / "new", "0.26.0"), bundle(tmp_path / "x", "0.27.0")]
    places = [place_of(Namespace(emulate=None, llmperf_engine=[f"vllm={bundle}"]), spec) for bundle in bundles]
    assert len(set(places)) == 3
    assert places[0].engine.startswith(f"vllm 0.26.0 at {bundles[0]}")
    assert places[2].engine.startswith(f"vllm 0.27.0 at {bundles[2]}")
    assert len({(place.hardware, place.host) for place in places}) == 1


def test_head_of_tuning_lacks_host_of_place():
    place = EnginePlace("vllm 0.26.0 at /opt/a, host 0123", "1 × NVIDIA H200, driver 570.1", "0123")
    assert str(place) == "vllm 0.26.0 at /opt/a, host 0123, 1 × NVIDIA H200, driver 570.1, host 0123"
    assert place.without_host == "vllm 0.26.0 at /opt/a, host 0123, 1 × NVIDIA H200, driver 570.1"


@pytest.mark.parametrize(("options", "words"), [
    (("--try", "max_num_seq=8"), "Did you mean max_num_seqs?"),
    (("--try", "max_num_batched_tokens=64"), "no setting differs from the default"),
    (("--try", "max_num_seqs=4,,8"), "--try max_num_seqs=4,,8: write each flag once"),
    (("--try", "max_num_seqs=4", "--try", "max_num_seqs=8"), "--try max_num_seqs=8: write each flag once"),
    (("--setting", "max_num_seqs"), "NAME=VALUE"),
    (("--try", "max_num_seqs=8", "--metric", "ttft"), "ttft_p50"),
    (("--try", "max_num_seqs=8", "--slo", "ttft <= 1ms"), "ttft_p50"),
    (("--try", "max_num_seqs=8", "--start-sd", "0"), "greater than 0"),
    (("--try", "max_num_seqs=8", "--runs", "0"), "at least one run"),
    (("--try", "max_num_seqs=8", "--emulate", "h300"), "h200"),
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


def test_test_without_a_proof_is_not_written(capsys):
    assert main(("tune", *SMALL, "--try", "max_num_seqs=4", "--write", WRITTEN)) == 2
    assert f"--write {WRITTEN}: only a proven setting can be written as a test" in capsys.readouterr().err


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
    rows = [SettingRow({"a": 1}, {}, long), SettingRow({"a": 2}, {}, long), SettingRow({"a": 3}, {}, "It died.")]
    lines = settings_table(rows, ["a"], ["max_rate"])
    assert [line.split("-  ")[-1].strip() for line in lines[1:4]] == [
        *["The server ended before it was ready: exit code 2. [1]"] * 2, "It died."]
    assert [line for line in lines if "--flag" in line] == [f"[1] {long}"]
