"""Faults 1-7, 9, 10: however the run ends, nothing of its server is left."""

import importlib.util
import os
import random
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pytest_llmperf.process.ports import reserve_port

if sys.platform != "linux":
    pytest.skip("supervision is Linux only", allow_module_level=True)


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


matrix = _load("kill_matrix")
REPEATS = int(os.environ.get("LLMPERF_KILL_REPEATS", "1"))
# A soak leaves pytest without the plugin out: its many repetitions are for what the plugin adds.
ONCE = (pytest.param(matrix.pytest_run, marks=pytest.mark.thorough),) if REPEATS == 1 else ()
PARENTS = (matrix.driver, matrix.plugin_run, *ONCE)


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("ending", matrix.Ending, ids=lambda ending: ending.value)
@pytest.mark.parametrize("parent", PARENTS, ids=lambda parent: parent.__name__)
def test_no_server_process_survives_end_of_run(parent, ending, repeat, tmp_path):
    with closing(reserve_port(random.Random(f"{os.getpid()}{parent.__name__}{ending}{repeat}"))) as lease:
        outcome = matrix.play(parent, matrix.Case(ending, tmp_path, lease.port))
    assert outcome.orphans == [], outcome.output
    assert outcome.took_s <= matrix.LIMIT_S
    assert outcome.port_free
    assert outcome.unlisted == []
    assert not outcome.segment_left
    assert outcome.deaf_sigkilled
    assert outcome.report["survivors"] == []
