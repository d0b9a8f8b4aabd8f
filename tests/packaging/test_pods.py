"""The plugin in containers of Podman, as in restricted pods: no root, a read-only root file system, no home."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

JOB = Path(__file__).parents[2] / "docs" / "ci" / "kubernetes-init.yaml"

pytestmark = [pytest.mark.emulated, pytest.mark.timeout(600)]
SUITE = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

@pytest.mark.h200
@pytest.mark.cpu
def test_it(perf):
    engine = vllm("tiny", max_model_len=1024)
    run = perf.measure(engine, random_tokens(input=64, output=8, arrivals=closed(2), requests=12), runs=1)
    perf.check(run, "error_rate == 0")
"""
CANARY = """
from pytest_llmperf import closed, endpoint, random_tokens

def service(port):
    return endpoint(f"http://127.0.0.1:{port}", model="tiny", kind="h200")

def test_it(perf):
    load = random_tokens(input=64, output=16, arrivals=closed(2), requests=40)
    perf.claim(service(8001), service(8002), load, "tpot_mean(a) / tpot_mean(b) <= 1.5")
"""
LOCK = """
import sys, time
from pathlib import Path
from pytest_llmperf.engines.process.machine_lock import MachineLock
from pytest_llmperf.engines.process.pool import lock_of_this_machine

lock = MachineLock(lock_of_this_machine(), "this machine", sys.argv[1], int(sys.argv[2]), lambda status: None)
lock.take(lambda: None)
print("taken", flush=True)
time.sleep(int(sys.argv[3]))
"""
PYTEST = ("python3", "-m", "pytest", "-p", "no:cacheprovider", "-m", "h200", "--emulate", "h200")
TMP = "--tmpfs=/tmp:mode=1777,exec"


def remove(container):
    subprocess.run(["podman", "rm", "--force", "--time=0", container], check=True, capture_output=True)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pytest.ini").touch()
    (folder / "test_it.py").write_text(SUITE)
    return (f"--volume={folder}:/project:ro", "--workdir=/project")


@pytest.fixture
def shared_folder(tmp_path):
    """A folder of this machine that the user of the containers can write."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def test_job_of_production_image_measures_and_writes_results_as_another_user(podman, project, shared_folder):
    """The command and the variables of the example, with the folders of this test in place of the init container's."""
    (container,) = yaml.safe_load(JOB.read_text())["spec"]["template"]["spec"]["containers"]
    here = {"suites/": "test_it.py", "--llmperf-set=runs_store=s3://bucket/llmperf":
            "--llmperf-set=runs_store=file:///tmp/runs/store"}
    command = [here.get(word, word) for word in container["command"]]
    variables = {each["name"]: each["value"].replace("/llmperf/packages", "/llmperf") for each in container["env"]}
    done = podman(*command, "--emulate", "h200", options=[
        *project, TMP, *(f"--env={name}={value}" for name, value in variables.items()),
        f"--volume={shared_folder}:/tmp/runs"])
    assert done.returncode == 0, done.stdout
    (report,) = shared_folder.glob("*/report.html")
    assert report.stat().st_uid == 12345
    assert (shared_folder / "store" / report.parent.name / "report.html").read_bytes() == report.read_bytes()


def test_place_without_temporary_folder_is_refused_before_collection(podman, project):
    done = podman(*PYTEST, options=project)
    assert done.returncode == 4, done.stdout
    assert done.stdout.startswith("ERROR: No usable temporary directory found in ['/tmp'")
    assert "uid 12345 can write none of them. Set TMPDIR to a folder that it can write" in done.stdout


def test_containers_with_one_temporary_folder_take_turns(podman, shared_folder):
    """The second container waits until the first has ended."""
    options = [f"--volume={shared_folder}:/tmp"]
    first = podman("python3", "-c", LOCK, "first", "1", "600", options=[*options, "--name=llmperf-test-lock"],
                   start=subprocess.Popen)
    try:
        assert first.stdout.readline() == "taken\n"
        second = podman("python3", "-c", LOCK, "second", "1", "0", options=options)
        assert "Another pytest-llmperf run (first of process 1) has used this machine for " in second.stdout
    finally:
        remove("llmperf-test-lock")
        first.communicate()
    assert podman("python3", "-c", LOCK, "third", "1", "0", options=options).stdout == "taken\n"


def test_session_names_sessions_that_its_lock_does_not_reach(podman, shared_folder):
    remark = ("python3", "-c", "from pathlib import Path\n"
              "from pytest_llmperf.process.places import remarks\nprint(remarks(Path('/tmp/llmperf-1/machine.lock')))")
    assert "Sessions in other containers of this host do not wait" in podman(*remark, options=[TMP]).stdout
    assert "Sessions in" not in podman(*remark, options=[f"--volume={shared_folder}:/tmp"]).stdout


@pytest.fixture
def services(podman):
    """Two containers with one network, in each an emulated server, as two images in a pod."""
    emulator = ("python3", "-m", "pytest_llmperf.emulator", "--hardware", "h200", "--", "serve", "tiny", "--port")
    with ExitStack() as stack:
        for port, network in ((8001, "none"), (8002, "container:llmperf-test-8001")):
            container = podman(*emulator, str(port), options=[TMP, f"--name=llmperf-test-{port}"],
                               network=network, start=subprocess.Popen)
            stack.callback(container.communicate)
            stack.callback(remove, f"llmperf-test-{port}")
            assert "listening on" in container.stdout.readline()
        yield "container:llmperf-test-8001"


def test_third_container_of_pod_compares_the_servers_of_two_others(podman, services, project, shared_folder, tmp_path):
    (tmp_path / "project" / "test_it.py").write_text(CANARY)
    done = podman("python3", "-m", "pytest", "-p", "no:cacheprovider", "--llmperf-runs=/results",
                  "--llmperf-set=send_delay_p99_limit_ms=5000", "--llmperf-set=coalesced_limit=1",
                  options=[*project, TMP, f"--volume={shared_folder}:/results"], network=services)
    # A busy machine may leave the claim undecided, or not be steady.
    assert done.returncode in {0, 11} or "not steady" in done.stdout, done.stdout
    (path,) = shared_folder.glob("*/tests/*.json")
    run_file = json.loads(path.read_text())
    assert run_file["checks"][0]["facts"]["unseen_gpu"] == "h200"  # neither telemetry nor processes are known
    sides = {measured["side"]: measured["engine"] for measured in run_file["measurements"]}
    assert ("8001" in sides["a"], "8002" in sides["b"]) == (True, True)
