"""Servers that share one GPU: a KV cache of a stated size each, or the reason why they cannot."""

import json

import pytest

from pytest_llmperf import sglang, vllm
from pytest_llmperf.engines.memory.measured import MeasuredMemory
from pytest_llmperf.engines.memory.shares import ASLEEP_BYTES, GIB, USED_SHARE, memory_shares, sleeping_specs

H200 = 140 * GIB
LLAMA = vllm("llama-3.1-8b", max_model_len=8192)


def flags(spec):
    return {name: json.loads(value) for name, value in spec.flags}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_equal_specs_get_equal_shares_that_fit(count):
    shared = memory_shares([LLAMA] * count, H200).specs
    sizes = {flags(spec)["kv_cache_memory_bytes"] for spec in shared}
    assert len(sizes) == 1
    weights_bytes = 16 * GIB
    assert count * (sizes.pop() + weights_bytes) < USED_SHARE * H200
    assert all(flags(spec)["gpu_memory_utilization"] * count <= 0.9 for spec in shared)
    assert all(flags(spec)["max_model_len"] == 8192 for spec in shared)


def test_sglang_gets_a_number_of_tokens():
    vllm_share, sglang_share = memory_shares([LLAMA, sglang("llama-3.1-8b")], H200).specs
    kv_bytes = flags(vllm_share)["kv_cache_memory_bytes"]
    assert flags(sglang_share) == {"max_total_tokens": kv_bytes // (128 * 1024)}  # 128 KiB a token of this shape


@pytest.mark.parametrize(("size", "bytes_per_token"), [(1, 128 * 1024), (2, 64 * 1024), (16, 16 * 1024)])
def test_tensor_parallel_sglang_keeps_share_of_kv_heads_on_each_gpu(size, bytes_per_token):
    split = sglang("llama-3.1-8b", tp_size=size)  # 8 KV heads: with more GPUs, several GPUs keep the same head
    vllm_share, sglang_share = memory_shares([vllm("llama-3.1-8b", tensor_parallel_size=size), split], H200).specs
    kv_bytes = flags(vllm_share)["kv_cache_memory_bytes"]
    assert flags(sglang_share)["max_total_tokens"] == kv_bytes // bytes_per_token


@pytest.mark.parametrize(
    ("specs", "memory_bytes", "reason"),
    [
        ([LLAMA, LLAMA], None, "size of the GPU's memory is not known"),
        ([LLAMA] * 2, 24 * GIB, "2 servers need 38 GiB beside their KV caches, and the GPU has 24 GiB (19.0 GiB (est"),
        ([LLAMA, LLAMA.with_flags(gpu_memory_utilization=0.5)], H200, "sets gpu_memory_utilization itself"),
        ([LLAMA, LLAMA.with_flags(num_gpu_blocks_override=100)], H200, "sets num_gpu_blocks_override itself"),
        ([LLAMA, LLAMA.with_lmcache()], H200, "has an LMCache server"),
        ([LLAMA, vllm("somebody/something")], H200, "has a model of unknown size"),
        ([LLAMA, LLAMA.with_flags(hf_overrides={"num_hidden_layers": 2})], H200, "changes its model by hf_overrides"),
    ],
)
def test_spec_that_cannot_share_memory_gets_reason(specs, memory_bytes, reason):
    shared = memory_shares(specs, memory_bytes)
    assert isinstance(shared, str)
    assert reason in shared


def test_weights_are_split_by_tensor_parallelism():
    llama_70b = vllm("llama-3.1-70b")
    assert isinstance(memory_shares([llama_70b] * 2, H200), str)
    assert not isinstance(memory_shares([llama_70b.with_flags(tensor_parallel_size=8)] * 2, H200), str)


H100, HOST = 80 * GIB, 200 * GIB


def test_kv_cache_of_sleeping_specs_leaves_room_for_sleeping_siblings():
    one, two = sleeping_specs([LLAMA, sglang("llama-3.1-8b")], 40 * GIB, HOST).specs
    assert flags(one)["enable_sleep_mode"] is True
    assert flags(two)["enable_memory_saver"] is True
    kv_bytes = flags(one)["kv_cache_memory_bytes"]
    assert flags(two)["max_total_tokens"] == kv_bytes // (128 * 1024)
    assert 10 * GIB < kv_bytes < USED_SHARE * 40 * GIB - ASLEEP_BYTES - 15 * GIB
    assert flags(one)["gpu_memory_utilization"] == pytest.approx(USED_SHARE - 0.1, abs=0.011)


@pytest.mark.parametrize(
    ("specs", "memory_bytes", "host_bytes", "reason"),
    [
        ([LLAMA] * 2, None, HOST, "size of the GPU's memory is not known"),
        ([LLAMA] * 2, H100, None, "size of the host's memory is not known"),
        ([LLAMA] * 2, H100, 60 * GIB, "2 sleeping servers need 63 GiB of host memory, and 60 GiB are free"),
        ([LLAMA] * 2, 24 * GIB, HOST, "leave no 6 GiB for the KV cache on a GPU of 24 GiB"),
        ([LLAMA, LLAMA.with_flags(num_gpu_blocks_override=100)], H100, HOST, "sets num_gpu_blocks_override itself"),
        ([LLAMA, LLAMA.with_lmcache()], H100, HOST, "has an LMCache server"),
    ],
)
def test_specs_that_cannot_take_turns_get_reason(specs, memory_bytes, host_bytes, reason):
    assert reason in sleeping_specs(specs, memory_bytes, host_bytes)


def test_sleeping_tensor_parallel_server_needs_host_memory_of_all_ranks():
    large = vllm("llama-3.1-70b", tensor_parallel_size=8)
    assert "need 552 GiB of host memory" in sleeping_specs([large] * 2, H200, HOST)


MEASURED = MeasuredMemory(held_bytes=66 * GIB, kv_bytes=50 * GIB, weights_bytes=15 * GIB)
OTHER_MODEL = vllm("somebody/something")


def test_measured_memory_replaces_estimate_and_plan_names_the_source():
    estimated, measured = memory_shares([LLAMA, LLAMA], H100), memory_shares([LLAMA, LLAMA], H100, {LLAMA: MEASURED})
    kv = [flags(shares.specs[0])["kv_cache_memory_bytes"] // GIB for shares in (estimated, measured)]
    assert kv == [17, 19]
    assert estimated.text == "KV caches of 17 GiB, and beside each 19.0 GiB (estimated), 19.0 GiB (estimated)"
    assert measured.text == "KV caches of 19 GiB, and beside each 17.0 GiB (measured), 17.0 GiB (measured)"


def test_measured_model_of_unknown_size_shares_memory():
    shares = memory_shares([OTHER_MODEL, LLAMA], H200, {OTHER_MODEL: MEASURED})
    assert "17.0 GiB (measured), 19.0 GiB (estimated)" in shares.text
    assert "63 GiB of host memory" in sleeping_specs([OTHER_MODEL] * 2, H100, 10 * GIB, {OTHER_MODEL: MEASURED})


def test_sglang_needs_dimensions_of_measured_model():
    spec = sglang("somebody/something")
    assert "has a model of unknown size" in memory_shares([spec] * 2, H200, {spec: MEASURED})
