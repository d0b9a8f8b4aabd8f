"""Conditions: facts that change the digest, facts that leave the digest unchanged, and facts that are excluded."""

from dataclasses import replace

import pytest

from pytest_llmperf import closed, endpoint, random_tokens, vllm
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.results.conditions import digest, kind_of
from pytest_llmperf.session.conditions import conditions
from pytest_llmperf.telemetry.cpu import Cpu
from pytest_llmperf.telemetry.hardware import OTHER_GPU, Gpu, Hardware, emulated_hardware

SPEC = vllm("m", max_num_seqs=4)
WORKLOAD = random_tokens(input=8, output=8, arrivals=closed(1), requests=6)
H200 = Hardware((Gpu(0, "NVIDIA H200", "h200"),), driver="580", cuda="13.0", cpu=Cpu("AMD EPYC", 64))
MODEL = ResolvedModel("/machine/path/m", "dummy", "dummy", None, "m")
FACTS = {"version": "1", "block_size": "16"}


@pytest.fixture
def known(make_server):
    def known(spec=SPEC, facts=None, workload=WORKLOAD, hardware=H200, kind="h200", model=MODEL, host_env=None, **more):
        server = make_server(spec, model=model, host_env=host_env)
        return conditions(server, FACTS if facts is None else facts, workload, hardware, kind, **more)

    return known


def test_conditions_include_hardware_driver_flags_and_weights(known):
    found = known()
    assert found["hardware"] == "h200"
    assert found["gpu"] == "NVIDIA H200"
    assert found["gpu_count"] == "1"
    assert found["driver"] == "580"
    assert found["cuda"] == "13.0"
    assert found["weights"] == "dummy"
    assert found["flags"] == '{"max_num_seqs": 4}'
    assert found["engine.version"] == "1"
    assert not any("/machine/path" in value for value in found.values())


@pytest.mark.parametrize(
    "change",
    [
        {"spec": vllm("m", max_num_seqs=5)},
        {"spec": vllm("m", max_num_seqs=4, env={"X": "1"})},
        {"spec": SPEC.with_lmcache()},
        {"facts": FACTS | {"version": "2"}},
        {"workload": random_tokens(input=8, output=9, arrivals=closed(1), requests=6)},
        {"hardware": replace(H200, gpus=(Gpu(0, "NVIDIA H200 NVL", "h200"),))},
        {"hardware": replace(H200, gpus=H200.gpus * 2)},
        {"hardware": replace(H200, driver="581")},
        {"hardware": replace(H200, cuda="13.1")},
        {"host_env": {"VLLM_USE_FLASHINFER_SAMPLER": "0"}},
        {"treatment": "keeps l1"},
        {"kind": "h100"},
        {"model": ResolvedModel("/x", "seeded", None, None, "m")},
        {"model": ResolvedModel("/x", "dummy", "dummy", None, "n")},
    ],
)
def test_changed_condition_changes_digest(known, change):
    assert digest(known(**change)) != digest(known())


@pytest.mark.parametrize(
    "same",
    [
        {"facts": dict(reversed(FACTS.items()))},
        {"model": ResolvedModel("/another/machine/m", "dummy", "dummy", None, "m")},
        {"spec": vllm("m", max_num_seqs=4, env={})},
        {"hardware": replace(H200, cpu=Cpu("Intel Xeon", 2))},  # beside a GPU
        {"treatment": ""},
    ],
)
def test_irrelevant_change_keeps_digest(known, same):
    assert digest(known(**same)) == digest(known())


def test_planted_fault_is_included_in_conditions(make_server):
    def known(planted):
        return conditions(make_server(SPEC, model=MODEL), FACTS, WORKLOAD, H200, "h200", planted=planted)

    assert known(("vllm:enforce_eager=true",))["planted"] == "vllm:enforce_eager=true"
    assert "planted" not in known(())


def test_resolved_value_of_flag_is_no_condition(known):
    """Baselines from before it was read stay comparable."""
    assert digest(known(facts=FACTS | {"enable_expert_parallel": "True"})) == digest(known())


def test_cpu_conditions_exclude_gpu_facts(known):
    found = known(kind="cpu")
    assert (found["gpu"], found["gpu_count"]) == ("none", "0")
    assert "cuda" not in found


def test_cpu_conditions_include_cpu_model_and_cores(known):
    found = known(kind="cpu")
    assert (found["cpu"], found["cpu_cores"]) == ("AMD EPYC", "64")
    assert digest(known(kind="cpu", hardware=replace(H200, cpu=Cpu("AMD EPYC", 2)))) != digest(found)
    assert "cpu" not in known()


def test_an_emulated_host_has_neither_cuda_nor_a_cpu(known):
    found = known(hardware=emulated_hardware("h200", 1))
    assert not {"cuda", "cpu", "cpu_cores"} & found.keys()
    assert not any(name.startswith("host_env.") for name in found)


def test_a_gpu_without_a_marker_is_a_gpu(known):
    found = known(hardware=Hardware((Gpu(0, "NVIDIA L40S", None),), driver="580"), kind=OTHER_GPU)
    assert (found["hardware"], found["gpu"]) == ("other-gpu", "NVIDIA L40S")
    assert kind_of(found) == "other-gpu-nvidia-l40s"


def test_endpoint_conditions_contain_url_but_no_hardware(known):
    found = known(spec=endpoint("http://h:1", model="m"), model=None)
    assert found["url"] == "http://h:1"
    assert found["weights"] == "unknown"
    assert "gpu" not in found
    assert digest(found) != digest(known(spec=endpoint("http://h:2", model="m"), model=None))


def test_secrets_are_masked(known):
    spec = vllm("m", api_key=["key-1", "key-2"], x={"y": {"password": "p"}}, hf_token="t", max_tokens=4,
                env={"HF_TOKEN": 'pä"canary\\xyz', "DB_PASS": "abc", "X": "1"})
    found = known(spec=spec)
    assert found["flags"] == (
        '{"api_key": ["***", "***"], "hf_token": "***", "max_tokens": 4, "x": {"y": {"password": "***"}}}'
    )
    assert found["env"] == '{"DB_PASS": "***", "HF_TOKEN": "***", "X": "1"}'
