"""Conditions: facts that change the digest, facts that leave the digest unchanged, and facts that are excluded."""

from dataclasses import replace

import pytest

from pytest_llmperf import closed, endpoint, random_tokens, vllm
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.kinds import OTHER_GPU
from pytest_llmperf.results.conditions import digest, kind_of
from pytest_llmperf.session.conditions import conditions
from pytest_llmperf.telemetry.cpu import Cpu
from pytest_llmperf.telemetry.hardware import Gpu, Hardware, emulated_hardware

SPEC = vllm("m", max_num_seqs=4)
WORKLOAD = random_tokens(input=8, output=8, arrivals=closed(1), requests=6)
H200 = Hardware((Gpu(0, "NVIDIA H200", "h200"),), driver="580", cuda="13.0", cpu=Cpu("AMD EPYC", 64))
MODEL = ResolvedModel("/machine/path/m", "dummy", None, "m")
FACTS = {"version": "1", "block_size": "16"}


@pytest.fixture
def conditions_of(make_server):
    def conditions_of(
        spec=SPEC, facts=None, workload=WORKLOAD, hardware=H200, kind="h200", model=MODEL, host_env=None, **more
    ):
        server = make_server(spec, model=model, host_env=host_env)
        return conditions(server, FACTS if facts is None else facts, workload, hardware, kind, **more)

    return conditions_of


def test_conditions_include_hardware_driver_flags_and_weights(conditions_of):
    recorded = conditions_of()
    assert recorded["hardware"] == "h200"
    assert recorded["gpu"] == "NVIDIA H200"
    assert recorded["gpu_count"] == "1"
    assert recorded["driver"] == "580"
    assert recorded["cuda"] == "13.0"
    assert recorded["weights"] == "dummy"
    assert recorded["flags"] == '{"max_num_seqs": 4}'
    assert recorded["engine.version"] == "1"
    assert not any("/machine/path" in value for value in recorded.values())


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
        {"handling": "keeps l1"},
        {"kind": "h100"},
        {"model": ResolvedModel("/x", "seeded", None, "m")},
        {"model": ResolvedModel("/x", "dummy", None, "n")},
    ],
)
def test_changed_condition_changes_digest(conditions_of, change):
    assert digest(conditions_of(**change)) != digest(conditions_of())


@pytest.mark.parametrize(
    "same",
    [
        {"facts": dict(reversed(FACTS.items()))},
        {"model": ResolvedModel("/another/machine/m", "dummy", None, "m")},
        {"spec": vllm("m", max_num_seqs=4, env={})},
        {"hardware": replace(H200, cpu=Cpu("Intel Xeon", 2))},  # beside a GPU
        {"handling": ""},
    ],
)
def test_irrelevant_change_keeps_digest(conditions_of, same):
    assert digest(conditions_of(**same)) == digest(conditions_of())


def test_planted_fault_is_included_in_conditions(make_server):
    def conditions_of(planted):
        return conditions(make_server(SPEC, model=MODEL), FACTS, WORKLOAD, H200, "h200", planted=planted)

    assert conditions_of(("vllm:enforce_eager=true",))["planted"] == "vllm:enforce_eager=true"
    assert "planted" not in conditions_of(())


def test_resolved_value_of_flag_is_no_condition(conditions_of):
    """Baselines from before it was read stay comparable."""
    assert digest(conditions_of(facts=FACTS | {"enable_expert_parallel": "True"})) == digest(conditions_of())


def test_cpu_conditions_exclude_gpu_facts(conditions_of):
    recorded = conditions_of(kind="cpu")
    assert (recorded["gpu"], recorded["gpu_count"]) == ("none", "0")
    assert "cuda" not in recorded


def test_cpu_conditions_include_cpu_model_and_cores(conditions_of):
    recorded = conditions_of(kind="cpu")
    assert (recorded["cpu"], recorded["cpu_cores"]) == ("AMD EPYC", "64")
    assert digest(conditions_of(kind="cpu", hardware=replace(H200, cpu=Cpu("AMD EPYC", 2)))) != digest(recorded)
    assert "cpu" not in conditions_of()


def test_an_emulated_host_has_neither_cuda_nor_a_cpu(conditions_of):
    recorded = conditions_of(hardware=emulated_hardware("h200", 1))
    assert not {"cuda", "cpu", "cpu_cores"} & recorded.keys()
    assert not any(name.startswith("host_env.") for name in recorded)


def test_a_gpu_without_a_marker_is_a_gpu(conditions_of):
    recorded = conditions_of(hardware=Hardware((Gpu(0, "NVIDIA L40", None),), driver="580"), kind=OTHER_GPU)
    assert (recorded["hardware"], recorded["gpu"]) == ("other-gpu", "NVIDIA L40")
    assert kind_of(recorded) == "other-gpu-nvidia-l40"


def test_endpoint_conditions_contain_url_but_no_hardware(conditions_of):
    recorded = conditions_of(spec=endpoint("http://h:1", model="m"), model=None)
    assert recorded["url"] == "http://h:1"
    assert recorded["weights"] == "unknown"
    assert "gpu" not in recorded
    assert digest(recorded) != digest(conditions_of(spec=endpoint("http://h:2", model="m"), model=None))


def test_secrets_are_masked(conditions_of):
    spec = vllm("m", api_key=["key-1", "key-2"], x={"y": {"password": "p"}}, hf_token="t", max_tokens=4,
                env={"HF_TOKEN": 'pä"canary\\xyz', "DB_PASS": "abc", "X": "1"})
    recorded = conditions_of(spec=spec)
    assert recorded["flags"] == (
        '{"api_key": ["***", "***"], "hf_token": "***", "max_tokens": 4, "x": {"y": {"password": "***"}}}'
    )
    assert recorded["env"] == '{"DB_PASS": "***", "HF_TOKEN": "***", "X": "1"}'


@pytest.mark.parametrize(("streams", "condition"), [(1024, None), (1025, "keep-alive, opened before the start")])
def test_connections_opened_before_the_start_are_a_condition_of_many_streams(conditions_of, streams, condition):
    workload = random_tokens(input=8, output=8, arrivals=closed(streams), requests=2000)
    assert conditions_of(workload=workload).get("connections") == condition
