"""A declared kind chooses the baselines of a service, and each result says that the GPU was not seen."""

import json
import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pytest_llmperf.process.ports import reserve_port, who_listens
from pytest_llmperf.testing.waiting import until

STUB = Path(__file__).parents[1] / "stubs" / "engine.py"
SUITE = """
from pytest_llmperf import endpoint

@pytest.mark.engine(endpoint("http://127.0.0.1:@PORT@", model="m", kind="h200"))
def test_x(perf, engine):
    run = perf.measure(engine, FEW, runs=1)
    perf.check(run, "error_rate == 0")
    perf.compare_with_baseline(run)
"""
UNSEEN = "telemetry of the declared h200 not seen"


@pytest.fixture
def port():
    with closing(reserve_port(random.Random())) as lease, subprocess.Popen(
        [sys.executable, STUB, "serve", "m", "--port", str(lease.port), "--served-model-name", "m"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:
        until(lambda: who_listens(lease.port))
        yield lease.port
        process.terminate()


def test_declared_endpoint_is_compared_with_baselines_of_that_kind(suite, port):
    text = SUITE.replace("@PORT@", str(port))
    first, _ = suite.run(text, "-m", "h200", "--update-baselines-new")
    assert first.ret == 0, first.stdout.str()
    assert (suite.folder / "baselines/h200/it/test_x.json").is_file()
    second, _ = suite.run(text, "-m", "h200")
    assert "NO_BASELINE" not in second.stdout.str()
    assert "NOTHING MEASURED" not in second.stdout.str()
    newest = max((suite.folder / ".llmperf" / "runs").iterdir())
    (file,) = (newest / "tests").glob("*.json")
    (measurement,) = json.loads(file.read_text())["measurements"]
    assert measurement["conditions"]["hardware"] == measurement["conditions"]["hardware_declared"] == "h200"
    assert measurement["runs"][0]["gpu"] is None
    shown = subprocess.run([Path(sys.executable).with_name("llmperf"), "show", newest, "test_x"], check=True,
                           capture_output=True, text=True).stdout
    assert shown.count(UNSEEN) >= 2
