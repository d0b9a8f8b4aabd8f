"""Command lines and files of the routers, and where a router is found."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf import nginx, sglang_router, vllm_router
from pytest_llmperf.engines.process.environment import Environment, Installations
from pytest_llmperf.engines.routers import place
from pytest_llmperf.engines.routers.adapter import ROUTERS, RouterPlacement, router_adapter_of
from pytest_llmperf.engines.routers.place import check_options, router_environment, router_version
from pytest_llmperf.errors import EnvironmentMissing, SpecError

AT = RouterPlacement(9000, 9001, ("http://127.0.0.1:1", "http://127.0.0.1:2"), Path("/run/router"))


def arguments(router):
    return " ".join(router_adapter_of(router).arguments(router, AT))


@pytest.mark.parametrize("make", [vllm_router, sglang_router])
def test_retries_and_circuit_breakers_are_off_unless_the_spec_asks_for_them(make):
    words = arguments(make(policy="round_robin", cache_threshold=0.5))
    assert f"-m {make.__name__}.launch_router --worker-urls http://127.0.0.1:1 http://127.0.0.1:2 " in words
    assert "--port 9000 --policy round_robin " in words
    assert words.endswith("--disable-retries --disable-circuit-breaker --cache-threshold 0.5")
    asked = arguments(make(retries=True, circuit_breaker=True))
    assert "disable" not in asked
    assert "circuit" not in asked


def test_vllm_router_names_prefill_servers_and_decode_servers():
    placement = replace(AT, decoders=("http://127.0.0.1:3",))
    words = " ".join(router_adapter_of(vllm_router()).arguments(vllm_router(), placement))
    assert ("--vllm-pd-disaggregation --prefill http://127.0.0.1:1 --prefill http://127.0.0.1:2 "
            "--decode http://127.0.0.1:3 ") in words
    assert "worker-urls" not in words


@pytest.mark.parametrize(("router", "lines"), [
    (nginx(), ("server 127.0.0.1:1 max_fails=0;", "proxy_next_upstream off;", "worker_processes 1;")),
    (nginx(policy="power_of_two", retries=True, circuit_breaker=True),
     ("random two least_conn;", "server 127.0.0.1:2;", "proxy_next_upstream error timeout")),
    (nginx(policy="consistent_hash"), ("hash $http_x_session_id consistent;",)),
])
def test_nginx_reads_the_policy_from_its_file(router, lines):
    text = router_adapter_of(router).files(router, AT)["nginx.conf"]
    assert all(line in text for line in lines)
    assert "listen 127.0.0.1:9000" in text
    assert "proxy_buffering off" in text
    assert arguments(router) == "-c /run/router/nginx.conf -p /run/router -e stderr"


def test_each_policy_names_the_policy_of_the_emulated_router():
    known = {"random", "round_robin", "cache_aware", "kv_aware", "power_of_two", "least_loaded", "consistent_hash",
             "sticky_least_loaded"}
    assert {policy for adapter in ROUTERS.values() for policy in adapter.policies.values()} <= known


def test_missing_router_names_the_command_that_installs_it(tmp_path, monkeypatch):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "install_engine.py").touch()
    with pytest.raises(EnvironmentMissing, match=r"vllm_router is not installed: .*\.engines/routers.*make routers"):
        router_environment(ROUTERS.get("vllm_router"), Installations({}, tmp_path, "cpu"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(place, "SYSTEM_PROGRAMS", ("/nowhere",))
    with pytest.raises(EnvironmentMissing, match=r"no program nginx on PATH.*apt-get install nginx.*nginx=PLACE"):
        router_environment(ROUTERS.get("nginx"), Installations({}, tmp_path, "cpu"))


def test_program_states_its_version(tmp_path):
    program = tmp_path / "nginx"
    program.write_text("#!/bin/sh\necho 'nginx version: nginx/1.26.3' >&2\n")
    program.chmod(0o755)
    assert router_version(ROUTERS.get("nginx"), Environment((str(program),), False, None, "")) == "1.26.3"
    assert router_version(ROUTERS.get("nginx"), Environment(("/nowhere/nginx",), False, None, "")) == "unknown"


def test_option_that_the_installed_router_lacks_is_refused_with_nearest_name(tmp_path):
    package = tmp_path / "vllm_router"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_router.py").write_text("import argparse\nparser = argparse.ArgumentParser()\n"
                                              "parser.add_argument('--cache-threshold')\nparser.parse_args()\n")
    environment, adapter = Environment((sys.executable,), True, tmp_path, ""), ROUTERS.get("vllm_router")
    check_options(adapter, vllm_router(cache_threshold=0.5, retries=True), environment)
    with pytest.raises(SpecError, match=r"has no option cache_treshold\. Did you mean cache_threshold"):
        check_options(adapter, vllm_router(cache_treshold=0.5), environment)


def test_policy_that_the_installed_router_lacks_is_refused_with_its_policies(tmp_path):
    (tmp_path / "vllm_router").mkdir()
    (tmp_path / "vllm_router" / "launch_router.py").write_text("print('  --policy {random,round_robin}')")
    environment, adapter = Environment((sys.executable,), True, tmp_path, ""), ROUTERS.get("vllm_router")
    check_options(adapter, vllm_router(policy="random"), environment)
    with pytest.raises(SpecError, match=r"has no policy cache_aware\. Choose one of random, round_robin"):
        check_options(adapter, vllm_router(), environment)
