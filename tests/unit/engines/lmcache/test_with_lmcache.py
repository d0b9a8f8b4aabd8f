"""LMCache in a spec, and what an engine is told of it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.lmcache.server import DISK_FILES, LMCacheLaunch
from pytest_llmperf.engines.lmcache.settings import in_process_settings, is_attached
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.spec import sglang, vllm
from pytest_llmperf.engines.vllm.adapter import VllmAdapter
from pytest_llmperf.errors import EnvironmentMissing, SpecError
from pytest_llmperf.model.lmcache import LMCache

VENV = Environment(("/v/bin/python",), True, None, "/v")
MODEL = ResolvedModel("/models/llama", "dummy", None, "llama-3.1-8b")
PORTS = (SimpleNamespace(port=5001), SimpleNamespace(port=5002))


def launch(wanted, kind="h200", environment=VENV, root=Path("/project")):
    return LMCacheLaunch(wanted, kind, environment, {}, root, Path("/run"), PORTS)


def options(argv):
    words = list(argv[argv.index("server") + 1 :])
    return dict(zip(words[::2], words[1::2], strict=True))


def test_spec_with_lmcache_is_unequal_and_shows_options():
    plain = vllm("m", a=1)
    attached = plain.with_lmcache(chunk_size=128, l2_path="kv")
    assert attached != plain
    assert attached == vllm("m", a=1).with_lmcache(l2_path="kv", chunk_size=128)
    assert str(attached) == "vllm('m', a=1).with_lmcache(chunk_size=128, l2_path='kv')"
    assert attached.with_flags(a=2).lmcache == attached.lmcache


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"chunksize": 1}, r"Did you mean 'chunk_size'\? Known: chunk_size, l1_size_gb, l2_path"),
        ({"storage": []}, "no such option.* Known: chunk_size"),
        ({"chunk_size": 0}, "chunk_size is a number of tokens"),
        ({"chunk_size": True}, "chunk_size is a number of tokens"),
        ({"l1_size_gb": "4"}, "l1_size_gb is a size in GiB"),
        ({"l1_size_gb": 0}, "l1_size_gb is a size in GiB"),
        ({"l2_path": ""}, "l2_path is a folder"),
        ({"eviction_policy": "lru"}, "eviction_policy is one of LRU"),
        ({"in_process": "yes"}, "in_process is True or False"),
    ],
)
def test_invalid_lmcache_option_is_refused(wrong, complaint):
    with pytest.raises(SpecError, match=complaint):
        vllm("m").with_lmcache(**wrong)


def test_endpoint_refuses_with_lmcache():
    with pytest.raises(SpecError, match="this server runs already, with its own caches"):
        endpoint("http://h:1", model="m").with_lmcache()


def test_lmcache_server_command_line_contains_all_options():
    wanted = LMCache(chunk_size=128, l1_size_gb=2, l2_path="kv", eviction_policy="ARC")
    argv = launch(wanted).argv()
    assert argv[:4] == ("/v/bin/python", "-m", "lmcache.cli.main", "server")
    flags = options(argv)
    assert (flags["--port"], flags["--http-port"]) == ("5001", "5002")
    assert flags["--chunk-size"] == "128"
    assert flags["--l1-size-gb"] == "2"
    assert flags["--eviction-policy"] == "ARC"
    assert json.loads(flags["--l2-adapter"]) == {"type": "fs", "base_path": "/project/kv"}
    assert "--supported-transfer-mode" not in flags
    assert flags["--worker-reap-timeout-seconds"] == "30"
    assert options(launch(LMCache(), "cpu").argv())["--supported-transfer-mode"] == "engine_driven"
    assert "--l2-adapter" not in options(launch(LMCache()).argv())


def test_home_folder_in_lmcache_disk_path_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    flags = options(launch(LMCache(l2_path="~/kv")).argv())
    assert json.loads(flags["--l2-adapter"])["base_path"] == "/home/me/kv"
    assert in_process_settings(LMCache(l2_path="~/kv"))["LMCACHE_LOCAL_DISK"] == "/home/me/kv"


def test_engine_command_needs_lmcache_in_same_folder(tmp_path):
    command = Environment((str(tmp_path / "vllm"),), False, None, "vllm")
    with pytest.raises(EnvironmentMissing, match=r"needs LMCache in the engine.s environment.*lmcache"):
        launch(LMCache(), environment=command).argv()
    (tmp_path / "lmcache").touch()
    assert launch(LMCache(), environment=command).argv()[0] == str(tmp_path / "lmcache")


def kv_transfer_config(spec, lmcache):
    placement = Placement("h200", 1, "n", MODEL, VENV, lmcache)
    arguments = VllmAdapter().arguments(spec, placement)
    assert ("--shutdown-timeout" in arguments) is (lmcache is not None)
    environment = VllmAdapter().environment(spec, placement)
    return json.loads(arguments[arguments.index("--kv-transfer-config") + 1]), environment


def test_vllm_connector_contains_port_of_lmcache_server():
    config, _ = kv_transfer_config(vllm("m").with_lmcache(), SimpleNamespace(port=5001))
    assert config["kv_connector"] == "LMCacheMPConnector"
    assert config["kv_connector_extra_config"] == {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": 5001}


def test_inside_vllms_process_the_environment_tells():
    config, env = kv_transfer_config(vllm("m").with_lmcache(in_process=True, chunk_size=64, l1_size_gb=3), None)
    assert config == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    assert (env["LMCACHE_CHUNK_SIZE"], env["LMCACHE_MAX_LOCAL_CPU_SIZE"]) == ("64", "3")
    assert not any(name.startswith("LMCACHE_LOCAL_DISK") for name in env)


@pytest.mark.parametrize(
    ("spec", "attached"),
    [
        (vllm("m").with_lmcache(), True),
        (vllm("m", kv_transfer_config={"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}), True),
        (vllm("m", kv_offloading_size=8, kv_offloading_backend="lmcache"), True),
        (sglang("m", enable_lmcache=True, lmcache_config_file="f"), True),
        (vllm("m", kv_transfer_config={"kv_connector": "NixlConnector"}), False),
        (sglang("m"), False),
    ],
)
def test_lmcache_is_recognised_in_spec_or_flags(spec, attached):
    assert is_attached(spec) is attached


def test_disk_pattern_matches_only_lmcache_files(tmp_path):
    """LMCache's file adapter names its files model@rank@group@hash.data."""
    for name in ("-SEP-models-SEP-m@0x01000100@0@12fa.data", "thesis.data", "notes@home.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in tmp_path.glob(DISK_FILES)] == ["-SEP-models-SEP-m@0x01000100@0@12fa.data"]
