"""Engines in container images, with a container runtime for tests on PATH."""

import os
import random
import re
import shlex
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_llmperf import vllm
from pytest_llmperf.clock import SystemClock
from pytest_llmperf.config.settings import Settings, settings_from, with_engine_options, with_references
from pytest_llmperf.engines.process.environment import Installations
from pytest_llmperf.engines.process.installed import check_reference, version_in
from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.errors import ConfigError, EnvironmentMissing, SpecError
from pytest_llmperf.telemetry.gpu_watch import GpuWatch
from pytest_llmperf.telemetry.hardware import Gpu
from pytest_llmperf.testing.fake_nvml import FakeGpu, FakeNvml

STUBS = Path(__file__).parents[1] / "stubs"
KEY = "canary-key-9a8b7c6d"


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """`docker` on PATH with the images new and old of vLLM; gives the command lines that it got."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    script = shlex.join([sys.executable, str(STUBS / "docker.py")])
    program.write_text(f'#!/bin/sh\nexec {script} "$@"\n')
    program.chmod(0o755)
    for image, version in (("new", "9.2"), ("old", "9.1")):
        main = tmp_path / "images" / image / "vllm" / "entrypoints" / "cli" / "main.py"
        main.parent.mkdir(parents=True)
        main.write_text((STUBS / "engine.py").read_text().replace("stub-1", f"stub-{version}"))
        metadata = tmp_path / "images" / image / f"vllm-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_LOG", str(tmp_path / "docker.log"))
    monkeypatch.setenv("DOCKER_IMAGES", str(tmp_path / "images"))
    return lambda: (tmp_path / "docker.log").read_text().splitlines()


@pytest.fixture
def launcher(tmp_path):
    return launcher_with(tmp_path, Settings(ready_timeout_s=120.0, stop_grace_s=2.0))


def launcher_with(tmp_path, settings):
    settings = with_engine_options(settings, ["vllm=image:new", "vllm:old=image:old"])
    return Launcher(settings, tmp_path, tmp_path / "run", "cpu", SystemClock(), random.Random(7))


def container_names(lines):
    return [name for line in lines for name in re.findall(r"--name (llmperf-[0-9a-f]{12})", line)]


def test_stop_of_server_in_image_removes_container(runtime, launcher):
    versions = []
    for spec in (vllm("tiny"), vllm("tiny").with_installation("old")):
        server = launcher.start(spec, 1)
        versions.append(server.facts["version"])
        server.stop(2.0)
    assert versions == ["stub-9.2", "stub-9.1"]
    removals = [line for line in runtime() if line.startswith("rm")]
    assert removals == [f"rm --force {name}" for name in container_names(runtime())]


def test_killed_watchdog_leaves_removal_of_container_to_stop(runtime, launcher):
    server = launcher.start(vllm("tiny"), 1)
    server.unit.process._watchdog.kill()
    server.stop(2.0)
    (name,) = container_names(runtime())
    assert f"rm --force {name}" in runtime()


def test_processes_of_container_are_not_foreign_on_gpu(runtime, launcher, monkeypatch):
    """The driver lists processes of the container, which are not below its client."""
    monkeypatch.setenv("DOCKER_TOP", "4000001 4000002")
    nvml = FakeNvml([FakeGpu(used_bytes=9 << 30, processes={4000001: 9 << 30})])
    server = launcher.start(vllm("tiny"), 1)
    try:
        watch = GpuWatch(nvml, [Gpu(0, "NVIDIA H200", "h200")], server.unit.pids, SystemClock(), interval_s=10)
        watch.start()
        watch.stop()
        assert server.unit.process.pid in server.unit.pids()
    finally:
        server.stop(2.0)
    trace = watch.trace(0)
    assert (trace.pids_visible, trace.strangers) == (True, ())
    (name,) = container_names(runtime())
    assert f"top {name} -eo pid" in runtime()


@pytest.mark.parametrize("command", ["", "no-such-runtime top {name}", "docker fails {name}"])
def test_server_without_process_list_has_processes_of_client(runtime, tmp_path, command):
    settings = Settings(ready_timeout_s=120.0, stop_grace_s=2.0, engine_processes_command=command)
    server = launcher_with(tmp_path, settings).start(vllm("tiny"), 1)
    assert server.unit.pids() == (server.unit.process.pid,)
    server.stop(2.0)


def test_version_is_read_in_image(runtime, launcher, tmp_path):
    environment = Installations(launcher.settings.engines, tmp_path, "cpu").find_environment("vllm:old")
    assert version_in(environment, "vllm") == "9.1"


@pytest.mark.parametrize(("place", "refusal", "words"), [
    ("image:missing", EnvironmentMissing, "vllm is not installed there, or the container does not start: .*missing"),
    ("image:new", ConfigError, "is the build under test itself"),
])
def test_image_that_cannot_run_as_reference_build_is_refused(runtime, launcher, tmp_path, place, refusal, words):
    settings = with_references(launcher.settings, [f"vllm={place}"])
    with pytest.raises(refusal, match=words):
        check_reference("vllm", Installations(settings.engines, tmp_path, "cpu"))
    engines = with_references(launcher.settings, ["vllm=image:old"]).engines
    check_reference("vllm", Installations(engines, tmp_path, "cpu"))


def test_image_of_settings_file_is_found_without_options(runtime, tmp_path):
    settings = settings_from({"engines": {"vllm": "image:old"}}, "here")
    assert version_in(Installations(settings.engines, tmp_path, "cpu").find_environment("vllm"), "vllm") == "9.1"


def test_missing_container_runtime_is_named(tmp_path):
    settings = with_engine_options(Settings(engine_command="no-runtime {image} {command}"), ["vllm=image:new"])
    with pytest.raises(EnvironmentMissing, match="no-runtime, which is not on PATH"):
        Installations(settings.engines, tmp_path, "cpu").find_environment("vllm")


def test_secrets_of_template_and_spec_are_in_no_file(runtime, tmp_path):
    template = Settings().engine_command.replace("{env}", f"--env API_KEY={KEY}1 {{env}}")
    launcher = launcher_with(tmp_path, Settings(ready_timeout_s=120.0, engine_command=template))
    spec = vllm("tiny", env={"HF_TOKEN": f"{KEY}2", "STUB_MODE": "", "STUB_TELL": f"says {KEY}1 and {KEY}2"})
    launcher.start(spec, 1).stop(2.0)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"command.txt", "server.log"} <= {path.name for path in files}
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert f"{KEY}2" not in "".join(runtime())  # a variable's value is not part of the command line
    environment = Installations(launcher.settings.engines, tmp_path, "cpu").find_environment("vllm")
    assert KEY not in environment.origin


def test_lmcache_beside_container_is_refused(runtime, launcher):
    with pytest.raises(SpecError, match="LMCache cannot run beside an engine in a container"):
        launcher.check(vllm("tiny").with_lmcache())


@pytest.mark.parametrize("template", ["docker run {image}", "docker {command}", "docker {image} {command} x", "a '"])
def test_template_without_image_or_final_command_is_refused(template):
    with pytest.raises(ConfigError, match=r"must contain \{image\} and end in \{command\}"):
        settings_from(MappingProxyType({"engine_command": template}), "here")
