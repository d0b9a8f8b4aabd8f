"""`llmperf fit`: coefficients of a host from its run folders, and what is refused."""

import json
import shutil
import subprocess
import sys

import pytest

from pytest_llmperf.calibration.host_fit import HostFit
from pytest_llmperf.cli import main
from pytest_llmperf.cli.commands import fit

SUITE = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

LOADS = [(1, 64, 16), (4, 256, 8), (12, 128, 8), (24, 256, 6), (2, 800, 8), (8, 64, 16), (16, 256, 8), (1, 512, 16)]

@pytest.mark.h100
@pytest.mark.parametrize("load", LOADS)
def test_load(load, perf):
    clients, prompt, tokens = load
    perf.measure(vllm("llama-3.1-8b", max_model_len=4096),
                 random_tokens(input=prompt, output=tokens, arrivals=closed(clients), requests=2 * clients + 4), runs=1)
"""
pytestmark = pytest.mark.emulated


def emulated(folder, *options):
    """The output of the suite on an emulated h100."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--emulate", "h100", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The project of a host whose steps take a quarter longer, with a run folder."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (folder / "test_it.py").write_text(SUITE)
    emulated(folder, "--emulate-fault", "step_time=+25%")
    return folder


@pytest.fixture
def project(measured, tmp_path, monkeypatch):
    """A copy of it, as the current directory."""
    copy = shutil.copytree(measured, tmp_path / "project")
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def slow_host(project):
    """The run folder."""
    (folder,) = project.glob(".llmperf/runs/*")
    return folder


@pytest.fixture
def refused(project, capsys):
    """The message of a refused fit, which stores nothing."""

    def message(*folders, kind="h100"):
        assert main(["fit", *map(str, folders), "--kind", kind]) == 2
        assert not (project / "baselines").exists()
        return capsys.readouterr().err

    return message


def changed(folder, old, new, files="tests/*.json"):
    """A copy of a run folder with a text replaced in each file."""
    copy = folder.with_name(f"{folder.name}-{len(list(folder.parent.iterdir()))}")
    shutil.copytree(folder, copy)
    for path in copy.glob(files):
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    return copy


def test_fitted_host_is_emulated_from_then_on(slow_host, project, capsys):
    assert main(["fit", str(slow_host), "--kind", "h100"]) == 0
    assert "mean TPOT of 8 measurements outside the fit" in capsys.readouterr().out
    stored = json.loads((project / "baselines/emulator-h100.json").read_text())
    assert stored["held_out_after"] < 0.5 * stored["held_out_before"]
    output = emulated(project, "-k", "load0", "-rA")
    assert f"fitted by {project / 'baselines/emulator-h100.json'}" in output
    assert "emulated h100: fitted on the runs of a host (llmperf fit)" in output


def test_runs_that_do_not_belong_together_are_refused(slow_host, refused):
    assert "was measured on emulated h100, not on h200" in refused(slow_host, kind="h200")
    assert "there is no such GPU kind" in refused(slow_host, kind="h20")
    assert "the runs are of several engine versions: " in refused(slow_host, changed(slow_host, "+emulated", "+other"))
    other = changed(slow_host, '"virtual"', '"0123456789ab"', "session.json")
    assert "the runs are of several hosts: 0123456789ab, virtual" in refused(slow_host, other)


def test_runs_that_tell_nothing_of_the_steps_are_refused(slow_host, refused):
    hits = changed(slow_host, '"prefix_cache_hit_rate": 0.0', '"prefix_cache_hit_rate": 0.5')
    assert "0 measurements can be fitted, and at least 8 are needed; 8 left out: prefix hits" in refused(hits)
    other = changed(slow_host, '"engine": "vllm"', '"engine": "other"')
    assert "8 left out: an engine without an emulator" in refused(other)
    for path in sorted(slow_host.glob("tests/*.json"))[1:]:
        path.unlink()
    assert "1 measurements can be fitted, and at least 8 are needed. Name more" in refused(slow_host)


def test_server_that_the_emulator_cannot_start_is_refused(slow_host, refused):
    unknown = changed(slow_host, '"model": "llama-3.1-8b"', '"model": "unknown"')
    assert "the emulator cannot replay these runs: " in refused(unknown)


def test_invalid_run_is_refused_with_its_reason(slow_host, refused):
    throttled = changed(slow_host, '"error": null,', '"error": "GPU 0 slowed down",')
    (throttled / "outcomes.json").unlink()
    text = refused(throttled)
    assert "is an ERROR: GPU 0 slowed down. Its runs may be invalid or of a throttled GPU. Leave out this run" in text


@pytest.mark.parametrize(("answer", "reason"), [
    (HostFit({}, 0.05, 0.06), "5.0% off with the shipped coefficients, 6.0% with the "),
    (HostFit({}, 0.05, 0.01, ["kv_bandwidth"]), "the peak that the data sheet of h100 allows (kv_"),
])
def test_fit_that_is_worse_or_beyond_the_data_sheet_is_refused(slow_host, refused, monkeypatch, answer, reason):
    monkeypatch.setattr(fit, "fit_host", lambda _: answer)
    text = refused(slow_host)
    assert reason in text
    assert "Nothing was stored." in text
