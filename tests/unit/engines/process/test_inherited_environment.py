"""What an engine's process takes over from the shell that runs pytest."""

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.process.variables import child_environment, host_environment, inherited_environment
from pytest_llmperf.engines.spec import sglang, vllm
from pytest_llmperf.engines.vllm.adapter import VllmAdapter


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (("/opt/engines/vllm/bin/python",), "/opt/engines/vllm/bin:/usr/local/bin:/usr/bin"),
        (("/opt/tools/vllm", "--x"), "/opt/tools:/usr/local/bin:/usr/bin"),
        (("/usr/bin/python3",), "/usr/local/bin:/usr/bin"),  # found there already: the order is the user's
        (("vllm",), "/usr/local/bin:/usr/bin"),
    ],
)
def test_folder_of_engine_interpreter_is_added_to_path(monkeypatch, tmp_path, prefix, expected):
    """ninja, above all, which FlashInfer and PyTorch's extensions call."""
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin")
    assert inherited_environment(Environment(prefix, True, None, "here"), tmp_path)["PATH"] == expected


@pytest.mark.parametrize(
    ("name", "inherits"),
    [
        ("VLLM_API_KEY", False), ("VLLM_ATTENTION_BACKEND", False), ("SGLANG_TEST_RETRACT", False),
        ("SGL_ENABLE_JIT_DEEPGEMM", False), ("LMCACHE_CHUNK_SIZE", False), ("PYTEST_ADDOPTS", False),
        ("VLLM_CACHE_ROOT", True), ("SGLANG_CACHE_DIR", True), ("NCCL_NVLS_ENABLE", True), ("HF_HOME", True),
    ],
)  # fmt: skip
def test_engine_variables_of_shell_are_not_inherited(monkeypatch, tmp_path, name, inherits):
    """What is measured would change, and no condition of the run would say so."""
    monkeypatch.setenv(name, "1")
    assert (name in inherited_environment(Environment(("python",), True, None, "here"), tmp_path)) is inherits


def test_engine_variable_of_spec_is_passed_to_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "of-the-shell")
    environment, model = Environment(("python",), True, None, "here"), ResolvedModel("m", "checkpoint", None, "m")
    placement = Placement("h200", 8123, "nonce", model, environment)
    spec = vllm("m", env={"VLLM_ATTENTION_BACKEND": "of-the-spec"})
    assert child_environment(spec, VllmAdapter(), placement)["VLLM_ATTENTION_BACKEND"] == "of-the-spec"


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """HF_HUB_OFFLINE of a server of this spec, whose model lies on disk."""
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    environment = Environment(("python",), True, None, "here")
    model = ResolvedModel(str(tmp_path / "here"), "checkpoint", None, "m")
    placement = Placement("h200", 8123, "nonce", model, environment, root=tmp_path)
    return lambda spec: child_environment(spec, adapter_of(spec.engine), placement).get("HF_HUB_OFFLINE")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (vllm("m"), "1"),
        (vllm("m", speculative_config={"method": "ngram", "num_speculative_tokens": 4}, tokenizer="here"), "1"),
        (vllm("m", speculative_config={"model": "tiny"}, lora_modules=["a=here"]), "1"),
        (sglang("m", speculative_draft_model_path="tiny", lora_paths=[{"lora_name": "a", "lora_path": "here"}]), "1"),
        (vllm("m", speculative_config={"model": "~/here"}), "1"),
        (vllm("m", speculative_config={"model": "org/eagle"}), None),
        (vllm("m", speculative_config='{"model": "org/eagle"}'), None),
        (vllm("m", tokenizer="org/tokenizer"), None),
        (vllm("m", hf_config_path="org/config"), None),
        (vllm("m", lora_modules=["a=here", "b=org/lora"]), None),
        (vllm("m", lora_modules={"name": "a", "path": "org/lora"}), None),
        (sglang("m", speculative_draft_model_path="org/eagle"), None),
        (sglang("m", tokenizer_path="org/tokenizer"), None),
        (sglang("m", lora_paths=["org/lora"]), None),
        (sglang("m", lora_paths=[{"lora_name": "a", "lora_path": "org/lora"}]), None),
    ],
)
def test_hub_is_offline_if_all_models_are_local(offline, spec, expected):
    assert offline(spec) == expected


def test_hub_is_online_if_spec_or_shell_requests_access(offline, monkeypatch):
    assert offline(vllm("m", env={"HF_HUB_OFFLINE": "0"})) == "0"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert offline(vllm("m")) == "0"


@pytest.mark.parametrize(
    ("spec", "kind", "expected"),
    [
        (vllm("m"), "h200", {"VLLM_USE_FLASHINFER_SAMPLER": "0"}),
        (vllm("m", env={"VLLM_USE_FLASHINFER_SAMPLER": "1"}), "h200", {"VLLM_USE_FLASHINFER_SAMPLER": "1"}),
        (vllm("m", tensor_parallel_size=2), "h200",
         {"VLLM_USE_FLASHINFER_SAMPLER": "0", "NCCL_NVLS_ENABLE": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}),
        (vllm("m"), "cpu", {}),
        (sglang("m"), "h200", {"SGLANG_IS_FLASHINFER_AVAILABLE": "false"}),
        (sglang("m", tp=2), "h200", {"SGLANG_IS_FLASHINFER_AVAILABLE": "false", "NCCL_NVLS_ENABLE": "0"}),
        (sglang("m"), "cpu", {}),
    ],
)  # fmt: skip
def test_host_environment_contains_only_variables_that_affect_performance(monkeypatch, tmp_path, spec, kind, expected):
    """The host forbids multicast, the engine is a bundle without FlashInfer, and the shell has a secret."""
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("HF_TOKEN", "canary")
    environment, model = Environment(("python",), True, tmp_path, "here"), ResolvedModel("m", "dummy", None, "m")
    placement = Placement(kind, 8123, "nonce", model, environment)
    adapter = adapter_of(spec.engine)
    assert host_environment(spec, adapter, placement, child_environment(spec, adapter, placement)) == expected


def test_host_environment_records_unset_variables(monkeypatch, tmp_path):
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    environment, model = Environment(("python",), True, None, "here"), ResolvedModel("m", "dummy", None, "m")
    placement = Placement("h200", 8123, "nonce", model, environment)
    spec = vllm("m", tensor_parallel_size=2)
    env = child_environment(spec, VllmAdapter(), placement)
    host_variables = host_environment(spec, VllmAdapter(), placement, env)
    assert set(host_variables.values()) == {"unset"}
    assert len(host_variables) == 3


@pytest.mark.parametrize("suite", ["vllm/__init__.py", "vllm.py", "lmcache/__init__.py", "sglang/test_it.py"])
def test_suite_folder_does_not_shadow_engine_module(monkeypatch, tmp_path, suite):
    """`python -m` searches the current folder first, so a suite folder could shadow the engine's module."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    name = suite.partition("/")[0].removesuffix(".py")
    root, bundle = tmp_path / "root", tmp_path / "bundle"
    for place in (root / suite, bundle / name / "__init__.py", bundle / name / "__main__.py"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("print('the engine')" if place.name == "__main__.py" else "")
    env = inherited_environment(Environment((sys.executable,), True, bundle, "a bundle"), root)
    ran = subprocess.run([sys.executable, "-m", name], cwd=root, env=env, capture_output=True, text=True, check=False)
    assert ran.stdout == "the engine\n", ran.stderr


def test_safe_path_is_unset_without_shadowing_module(monkeypatch, tmp_path):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "tests").mkdir()
    assert "PYTHONSAFEPATH" not in inherited_environment(Environment((sys.executable,), True, None, "here"), tmp_path)


def test_bundle_is_added_to_pythonpath_of_foreign_interpreter(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.delenv("PATH")
    env = inherited_environment(Environment(("/opt/torch/bin/python3",), True, Path("/bundle"), "a bundle"), tmp_path)
    assert env["PYTHONPATH"] == "/bundle"
    assert env["PATH"].startswith("/opt/torch/bin:")
