"""Faults of ports and readiness (14, 15, 18–23), through the real launcher against a stub server."""

import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_llmperf import endpoint, vllm
from pytest_llmperf.clock import SystemClock
from pytest_llmperf.config.settings import Settings, with_engine_options
from pytest_llmperf.engines.lmcache.proof import PAUSE_NS
from pytest_llmperf.engines.process import launch
from pytest_llmperf.engines.process.launch import Launcher
from pytest_llmperf.errors import (
    EngineError,
    EnvironmentMissing,
    ExitedEarly,
    ServerDied,
    SpecError,
    StartupTimeout,
    WrongServer,
)

STUB = Path(__file__).parents[1] / "stubs" / "engine.py"


@pytest.fixture
def launcher(tmp_path):
    settings = Settings(
        engines=MappingProxyType({"vllm": f"{sys.executable} {STUB}"}), stop_grace_s=2.0,
        ready_timeout_s=600.0,  # longer than a test may take: what ends before has not waited for it
    )
    return Launcher(settings, tmp_path, tmp_path / "run", "cpu", SystemClock(), random.Random(7))


def spec(mode, **env):
    return vllm("tiny", env={"STUB_MODE": mode, **env})


def left_running(launcher):
    marker = str(launcher.root / launcher.settings.cache_dir)  # the stub's argv names the model folder of this test
    collected = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                collected.append(path.parent.name)
        except OSError:
            continue
    return collected


def test_installations_of_one_engine_are_started_by_name(launcher, tmp_path):
    old = tmp_path / "old.py"
    old.write_text(STUB.read_text().replace('"stub-1"', '"stub-0"'))
    option = f"vllm:old={sys.executable} {old}"
    launcher = replace(launcher, settings=with_engine_options(launcher.settings, [option]))
    versions = []
    for engine_spec in (spec(""), spec("").with_installation("old")):
        server = launcher.start(engine_spec, 1)
        versions.append(server.facts["version"])
        server.stop(2.0)
    assert versions == ["stub-1", "stub-0"]
    with pytest.raises(EnvironmentMissing, match="vllm:older=PATH"):
        launcher.start(spec("").with_installation("older"), 1)


def test_servers_start_together_and_each_is_ready(launcher):
    servers = launcher.start_together([spec(""), spec("", STUB_NAME="second")], 7)
    try:
        assert [server.start_id for server in servers] == [7, 8]
        assert len({server.contact.url for server in servers}) == 2
        assert all(server.contact.served_name in server.control.served_models() for server in servers)
    finally:
        for server in servers:
            server.stop(2.0)
    assert not left_running(launcher)


@pytest.mark.parametrize("modes", [("", "exit-2"), ("exit-2", ""), ("exit-2", "never")])
def test_failed_start_among_several_leaves_no_server_running(launcher, modes):
    with pytest.raises(ExitedEarly, match="exit code 2"):
        launcher.start_together([spec(mode) for mode in modes], 1)
    assert not left_running(launcher)


def test_a_server_that_generates_is_ready(launcher):
    server = launcher.start(spec(""), 1)
    try:
        assert server.contact.served_name in server.control.served_models()
        assert server.unit.starting_s is not None
        assert server.facts["version"] == "stub-1"
    finally:
        server.stop(2.0)
    assert not left_running(launcher)


def test_startup_time_excludes_lmcache_verification(launcher):
    began_s = time.monotonic()
    server = launcher.start(spec("hits").with_lmcache(in_process=True), 1)
    try:
        assert time.monotonic() - began_s - server.unit.starting_s > PAUSE_NS / 1e9
    finally:
        server.stop(2.0)


@pytest.mark.parametrize(("mode", "ending"), [("exit-2", "exit code 2"), ("exit-0", "exit code 0")])
def test_an_exit_in_startup_fails_at_once_with_evidence(launcher, mode, ending):
    with pytest.raises(ExitedEarly) as caught:
        launcher.start(spec(mode), 1)
    assert ending in str(caught.value)
    assert "engine.py serve" in str(caught.value)
    if mode == "exit-2":
        assert "unrecognized arguments: --no-such-flag" in str(caught.value)


def test_a_death_of_the_prompt_that_proves_lmcache_has_evidence(launcher):
    connector = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    with pytest.raises(ServerDied, match="SIGABRT") as caught:
        launcher.start(spec("dies-of-long-prompts").with_flags(kv_transfer_config=connector), 1)
    assert "illegal memory access in a connector" in str(caught.value)
    assert not left_running(launcher)


def test_interrupt_after_start_leaves_no_process(launcher, monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "Server", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launcher.start(spec("never"), 1)
    assert not left_running(launcher)


def test_server_that_never_becomes_ready_is_an_error_at_deadline(launcher):
    impatient = replace(launcher, settings=replace(launcher.settings, ready_timeout_s=1.5))
    with pytest.raises(StartupTimeout, match=r"not ready within 1\.5 s"):
        impatient.start(spec("never"), 1)
    assert not left_running(launcher)


def test_healthy_without_tokens_is_not_ready(launcher):
    impatient = replace(launcher, settings=replace(launcher.settings, ready_timeout_s=15.0))
    with pytest.raises(StartupTimeout, match="engine core is dead"):
        impatient.start(spec("no-tokens"), 1)
    assert not left_running(launcher)


def test_foreign_process_on_the_port_is_not_measured(launcher):
    with pytest.raises(WrongServer, match="somebody-else"):
        launcher.start(spec("foreign"), 1)
    assert not left_running(launcher)


def test_a_server_that_wants_a_key_fails_at_once(launcher):
    with pytest.raises(WrongServer, match=r"/v1/models answered 401.*Leave api_key and VLLM_API_KEY out"):
        launcher.start(spec("wants-a-key"), 1)
    assert not left_running(launcher)


def test_a_port_taken_between_pick_and_bind_is_retried(launcher, tmp_path):
    server = launcher.start(spec("port-taken", STUB_ONCE=str(tmp_path / "once")), 1)
    try:
        assert server.contact.served_name in server.control.served_models()
    finally:
        server.stop(2.0)


def test_a_proxy_in_the_environment_is_bypassed(launcher, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server = launcher.start(spec(""), 1)
    try:
        assert server.contact.served_name in server.control.served_models()
    finally:
        server.stop(2.0)


def test_missing_environment_error_names_install_command(tmp_path):
    launcher = Launcher(Settings(), tmp_path, tmp_path / "run", "cpu", SystemClock(), random.Random(7))
    with pytest.raises(EnvironmentMissing, match=r"&& .*/bin/pip install vllm`"):
        launcher.start(vllm("tiny"), 1)


def test_unknown_model_is_refused_before_start(launcher):
    with pytest.raises(SpecError, match=r"llama-3\.1-8b"):
        launcher.start(vllm("lama-3.1-8b"), 1)


def test_a_dead_endpoint_says_how_to_look(launcher):
    with pytest.raises(EngineError, match=r"curl http://127\.0\.0\.1:9/v1/models"):
        launcher.start(endpoint("http://127.0.0.1:9", model="m"), 1)


def test_a_host_that_no_resolver_takes_is_refused(launcher):
    with pytest.raises(SpecError, match="Invalid IDNA hostname"):
        launcher.check(endpoint("http://x\u00ady", model="m"))


def test_an_endpoint_with_another_model_is_refused(launcher):
    server = launcher.start(spec(""), 1)
    try:
        with pytest.raises(WrongServer, match=server.contact.served_name):
            launcher.start(endpoint(server.contact.url, model="m"), 2)
    finally:
        server.stop(2.0)
