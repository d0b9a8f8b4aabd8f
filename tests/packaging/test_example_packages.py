"""The packages of docs/examples: built, installed beside the plugin, and run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SUITE = """
from pytest_llmperf import closed, random_tokens, vllm

def test_spread(perf):
    run = perf.measure(vllm("tiny"), random_tokens(input=64, output=8, arrivals=closed(2), requests=8))
    perf.check(run, "ttft_spread <= 500ms")
    perf.compare_with_baseline(run, primaries=["ttft_spread"])
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Folder with the example packages, as `pip install --target` leaves them."""
    folder = tmp_path_factory.mktemp("installed")
    packages = [EXAMPLES / name for name in ("metric_and_sink", "workload")]
    copies = [shutil.copytree(package, folder / "source" / package.name) for package in packages]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target",
                    folder / "site", *copies], check=True)
    return folder / "site"


@pytest.fixture
def run(tmp_path, installed):
    """Run a module of the plugin's environment in an empty project, beside the example packages."""
    def run(*words):
        return subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": str(installed)})

    return run


@pytest.mark.emulated
@pytest.mark.parametrize("dist", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_added_metric_is_checked_stored_and_exported_by_added_sink(run, tmp_path, dist):
    (tmp_path / "test_it.py").write_text(SUITE)
    completed = run("pytest", "-q", "--emulate", "h200", "--update-baselines", "--llmperf-export=influx=out.line",
                    "-p", "no:cacheprovider", *dist)
    assert completed.returncode == 0, completed.stdout
    assert any('"ttft_spread"' in path.read_text() for path in (tmp_path / "baselines").rglob("*.json"))
    lines = (tmp_path / "out.line").read_text().splitlines()
    assert lines
    assert all(line.startswith("llmperf,test=") and "ttft_spread=" in line for line in lines)


@pytest.mark.emulated
def test_added_workload_is_a_word_of_the_command_line(run):
    completed = run("pytest_llmperf", "capacity", "vllm:tiny", "--emulate", "h200", "--slo", "ttft_p50 <= 1s",
                    "--workload", "bursts(size=2, every_s=1, bursts=3)")
    assert "is no builder" not in completed.stderr
    completed = run("pytest_llmperf", "capacity", "vllm:tiny", "--emulate", "h200", "--slo", "ttft_p50 <= 1s",
                    "--workload", "burst(size=2)")
    assert "burst is no builder, did you mean bursts" in completed.stderr


@pytest.mark.emulated
def test_kind_of_the_examples_settings_runs_emulated(run, tmp_path):
    shutil.copytree(EXAMPLES / "kind", tmp_path, dirs_exist_ok=True)
    completed = run("pytest", "-m", "rtx_5090", "--emulate", "rtx_5090", "-p", "no:cacheprovider")
    assert completed.returncode == 0, completed.stdout
    assert "emulated rtx_5090" in completed.stdout


def test_import_of_the_plugin_loads_no_added_object(run, tmp_path):
    (tmp_path / "test_it.py").write_text("import sys\n\ndef test_it():\n    assert not any('llmperf_' in m for m in "
                                         "sys.modules if not m.startswith('pytest_llmperf'))\n")
    completed = run("pytest", "-q", "-p", "no:cacheprovider")
    assert completed.returncode == 0, completed.stdout
