"""vLLM's command line, environment, counters and resolved configuration."""

import json

import httpx
import pytest

from pytest_llmperf.engines.adapter import Placement
from pytest_llmperf.engines.models import ResolvedModel
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.spec import vllm
from pytest_llmperf.engines.vllm.adapter import VllmAdapter
from pytest_llmperf.errors import EngineError
from pytest_llmperf.telemetry.prometheus import parse

VENV = Environment(("/v/bin/python",), True, None, "/v")
COMMAND = Environment(("/bin/vllm",), False, None, "vllm")
DUMMY = ResolvedModel("/models/llama", "dummy", None, "llama-3.1-8b")
CHECKPOINT = ResolvedModel("org/name", "checkpoint", None, "org/name")


def placement(kind="h200", model=DUMMY, environment=VENV):
    return Placement(kind, 8123, "llama-abc", model, environment)


def options(arguments):
    """--x value pairs of a command line, after the positional model."""
    flags, rest = {}, arguments[arguments.index("serve") + 2 :]
    for word in rest:
        if word.startswith("--"):
            flags[word], last = True, word
        else:
            flags[last] = word if flags[last] is True else f"{flags[last]} {word}"
    return flags


def test_an_interpreter_gets_the_module_and_a_command_does_not():
    spec = vllm("llama-3.1-8b")
    assert VllmAdapter().arguments(spec, placement())[:4] == [
        "-m", "vllm.entrypoints.cli.main", "serve", "/models/llama",
    ]  # fmt: skip
    assert VllmAdapter().arguments(spec, placement(environment=COMMAND))[:2] == ["serve", "/models/llama"]


def test_vllm_gpu_arguments_contain_only_required_flags():
    flags = options(VllmAdapter().arguments(vllm("llama-3.1-8b"), placement()))
    assert flags["--host"] == "127.0.0.1"
    assert flags["--port"] == "8123"
    assert flags["--served-model-name"] == "llama-abc"
    assert flags["--load-format"] == "dummy"
    assert not {"--enforce-eager", "--dtype", "--distributed-executor-backend"} & set(flags)
    env = VllmAdapter().environment(vllm("llama-3.1-8b"), placement())
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert not any(name.startswith(("VLLM_CPU", "OMP")) for name in env)


def test_vllm_checkpoint_is_loaded_without_load_format():
    assert "--load-format" not in options(VllmAdapter().arguments(vllm("org/name"), placement(model=CHECKPOINT)))


def test_vllm_cpu_arguments_exclude_graphs_and_multiprocessing():
    flags = options(VllmAdapter().arguments(vllm("tiny"), placement("cpu")))
    assert flags["--enforce-eager"] is True
    assert flags["--dtype"] == "bfloat16"
    assert flags["--distributed-executor-backend"] == "uni"
    assert VllmAdapter().environment(vllm("tiny"), placement("cpu"))["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


@pytest.mark.parametrize("flag", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"])
def test_several_ranks_need_several_processes_on_a_cpu_too(flag):
    spec = vllm("tiny", **{flag: 2})
    assert "--distributed-executor-backend" not in options(VllmAdapter().arguments(spec, placement("cpu")))
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in VllmAdapter().environment(spec, placement("cpu"))


def test_the_specs_flags_come_last():
    flags = options(VllmAdapter().arguments(vllm("tiny", enforce_eager=False, seed=7), placement("cpu")))
    assert "--no-enforce-eager" in flags
    assert "--enforce-eager" not in flags
    assert flags["--seed"] == "7"


def test_bundle_without_flashinfer_does_not_use_flashinfer_sampler(tmp_path):
    bundle = Environment(("python",), True, tmp_path, "bundle")
    spec = vllm("tiny")
    assert VllmAdapter().environment(spec, placement(environment=bundle))["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    (tmp_path / "flashinfer").mkdir()
    assert "VLLM_USE_FLASHINFER_SAMPLER" not in VllmAdapter().environment(spec, placement(environment=bundle))


def test_symmetric_memory_of_vllm_is_disabled_with_nccl_multicast(monkeypatch):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    assert VllmAdapter().environment(vllm("tiny"), placement())["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "0"


def test_any_other_draft_stays():
    spec = vllm("tiny", speculative_config={"method": "ngram", "model": "org/draft"})
    flags = options(VllmAdapter().arguments(spec, placement()))
    assert json.loads(flags["--speculative-config"])["model"] == "org/draft"


def test_vllm_counters_are_summed_under_common_names():
    page = (
        'vllm:generation_tokens_total{engine="0"} 5\nvllm:generation_tokens_total{engine="1"} 7\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4\n'
        "vllm:spec_decode_num_draft_tokens_total 8\n"
    )
    assert VllmAdapter().counters(parse(page)) == {
        "generation_tokens": 12,
        "spec_accepted_pos_0": 4,
        "spec_draft_tokens": 8,
    }


def test_counters_of_cache_tiers_and_of_admission_control_are_read():
    page = "\n".join([
        'vllm:admission_rejections_total{reason="max_num_queued_reqs"} 3',
        'vllm:admission_rejections_total{reason="max_num_queued_tokens"} 1',
        'vllm:prompt_tokens_cached_by_source_total{source="device"} 640',
        'vllm:prompt_tokens_cached_by_source_total{source="host"} 320',
        'vllm:prompt_tokens_cached_by_source_total{source="external_unspecified"} 64',
        "vllm:kv_offload_load_bytes_total 4096", "vllm:kv_offload_store_bytes_total 8192",
        "vllm:kv_offload_tiering_read_bytes_total 100", "vllm:kv_offload_tiering_write_bytes_total 200",
        "vllm:nixl_bytes_transferred_sum 77", "vllm:nixl_bytes_transferred_count 2",
        "vllm:nixl_xfer_time_seconds_sum 0.5", "vllm:nixl_num_failed_transfers_total 1",
        "vllm:nixl_num_kv_expired_reqs_total 3", 'vllm:prompt_tokens_by_source_total{source="local_compute"} 900', "",
    ])
    assert VllmAdapter().counters(parse(page)) == {
        "admission_rejections": 4, "cached_tokens_device": 640, "cached_tokens_host": 320, "kv_loaded_bytes": 4096,
        "kv_stored_bytes": 8192, "kv_tier_read_bytes": 100, "kv_tier_written_bytes": 200, "transferred_bytes": 77,
            "transfers": 2, "transfer_s_sum": 0.5, "failed_transfers": 1, "expired_transfers": 3,
            "prompt_tokens_computed": 900,
    }


@pytest.mark.parametrize(("attention", "stated"), [("None", {}), ("528", {}),
                                                   ("16", {"effective_attention_block_size": "16"})])
def test_block_size_of_attention_is_a_fact_only_of_hybrid_models(attention, stated):
    page = ('vllm:cache_config_info{block_size="528",num_gpu_blocks="900",kv_cache_size_tokens="311000",'
            f'effective_attention_block_size="{attention}"}} 1\n')
    facts = {"block_size": "528", "num_gpu_blocks": "900", "kv_cache_size_tokens": "311000"}
    assert VllmAdapter().facts(parse(page)) == facts | stated


def test_vllm_speculation_counters_are_zero_and_foreign_counters_are_ignored():
    assert VllmAdapter().counters(parse("vllm:generation_tokens_total 5\n"))["spec_draft_tokens"] == 0
    assert VllmAdapter().counters(parse("other_total 5\n")) == {}


def client(answer):
    return httpx.Client(base_url="http://h", transport=httpx.MockTransport(lambda _request: answer))


def test_vllm_resolved_configuration_is_read_from_server_info():
    config = {"scheduler_config": {"max_num_batched_tokens": 2048}, "model_config": {"dtype": "bf16", "x": 1}}
    facts = VllmAdapter().resolved(client(httpx.Response(200, json={"vllm_config": config})))
    assert facts == {"max_num_batched_tokens": "2048", "dtype": "bf16"}


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[1]),
        httpx.Response(200, json={"vllm_config": "VllmConfig(model=…)"}),
        httpx.Response(200, json={"vllm_config": {"scheduler_config": None}}),
    ],
)
def test_malformed_vllm_server_info_gives_no_configuration(answer):
    assert VllmAdapter().resolved(client(answer)) == {}


@pytest.mark.parametrize(
    ("answer", "done"),
    [(httpx.Response(200, json={"success": True}), True), (httpx.Response(200), True), (httpx.Response(404), False)],
)
def test_reset_reports_whether_vllm_emptied_its_prefix_cache(answer, done):
    assert VllmAdapter().reset_cache(client(answer), external=True) is done


@pytest.mark.parametrize("answer", [httpx.Response(200, json={"success": False}), httpx.Response(500)])
def test_a_cache_that_was_not_emptied_is_an_error(answer):
    with pytest.raises(EngineError, match="did not reset its prefix cache"):
        VllmAdapter().reset_cache(client(answer), external=True)


def test_vllm_gauges_show_maximum_usage_and_sum_of_requests():
    page = """
vllm:kv_cache_usage_perc{engine="0"} 0.6
vllm:kv_cache_usage_perc{engine="1"} 0.7
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 3
"""
    assert VllmAdapter().gauges(parse(page)) == {"kv_usage": 0.7, "running": 6}
