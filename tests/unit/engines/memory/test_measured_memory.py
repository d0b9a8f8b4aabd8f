"""GPU memory of started servers: from the driver and the engine's log, kept for later plans."""

import json

import pytest

from pytest_llmperf import sglang, vllm
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.memory.measured import (
    FILE,
    GIB,
    MeasuredMemory,
    MemoryRecords,
    as_text,
    logged_sizes,
    memory_key,
    read_memories,
    write_memory,
)

VLLM_LOG = [
    "(Worker_TP0 pid=1) INFO [gpu_model_runner.py:5150] Model loading took 7.51 GiB memory and 5.100000 seconds",
    "(Worker_TP1 pid=2) INFO [gpu_model_runner.py:5150] Model loading took 7.53 GiB memory and 5.200000 seconds",
    "INFO [gpu_worker.py:760] Available KV cache memory: 50.25 GiB",
    "INFO [gpu_model_runner.py:6582] Graph capturing finished in 20 secs, took 0.60 GiB",
]
SGLANG_LOG = [
    "Load weight end. elapsed=3.1 s, type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=60 GB, mem usage=15.02 GB.",
    "KV Cache is allocated. #tokens: 65536, K size: 4.00 GB, V size: 4.00 GB",
    "Capture cuda graph end. Time elapsed: 9.1 s. mem usage=1.30 GB. avail mem=50 GB.",
]


@pytest.mark.parametrize(
    ("engine", "lines", "gib"),
    [("vllm", VLLM_LOG, {"weights": 7.53, "kv": 50.25, "graphs": 0.6}),
     ("sglang", SGLANG_LOG, {"weights": 15.02, "kv": 8.0, "graphs": 1.3}),
     ("vllm", ["nothing of sizes"], {})],
)
def test_sizes_are_read_from_engine_log(engine, lines, gib):
    sizes = logged_sizes(adapter_of(engine).memory_in_log, lines)
    assert {name: size / GIB for name, size in sizes.items()} == pytest.approx(gib, rel=1e-6)


def test_key_ignores_residence_and_installation():
    spec = vllm("llama-3.1-8b", max_model_len=8192)
    shared = spec.with_flags(kv_cache_memory_bytes=GIB, gpu_memory_utilization=0.4, enable_sleep_mode=True)
    key = memory_key(spec, "NVIDIA H200", "0.26.0")
    assert memory_key(shared.with_installation("reference"), "NVIDIA H200", "0.26.0") == key
    for other in (memory_key(spec, "NVIDIA H100", "0.26.0"), memory_key(spec, "NVIDIA H200", "0.32.0"),
                  memory_key(spec.with_flags(max_model_len=4096), "NVIDIA H200", "0.26.0"),
                  memory_key(sglang("llama-3.1-8b"), "NVIDIA H200", "0.26.0")):
        assert other != key


def test_newest_stored_memory_is_used_and_damaged_files_are_skipped(tmp_path):
    key = memory_key(vllm("llama-3.1-8b"), "NVIDIA H200", "0.26.0")
    for run, held in (("20260101T000000Z-000000", 60), ("20260102T000000Z-000000", 70)):
        folder = tmp_path / run / "servers" / "gw0" / "01-vllm-1"
        folder.mkdir(parents=True)
        write_memory(folder, key, MeasuredMemory(held * GIB, 50 * GIB))
    broken = tmp_path / "20260103T000000Z-000000" / "servers" / "01-vllm-1"
    broken.mkdir(parents=True)
    for text in ("{", "[]", json.dumps({**key, "held_bytes": "x", "kv_bytes": 1}), json.dumps({"held_bytes": 1})):
        (broken / FILE).write_text(text)
        memories = read_memories(tmp_path)
        assert memories == {as_text(key): MeasuredMemory(70 * GIB, 50 * GIB)}
    assert memories[as_text(key)].beside_kv_bytes == 20 * GIB


def test_memory_of_another_version_is_not_used(tmp_path):
    spec = vllm("llama-3.1-8b")
    folder = tmp_path / "run" / "servers" / "01-vllm-1"
    folder.mkdir(parents=True)
    write_memory(folder, memory_key(spec, "NVIDIA H200", "0.26.0"), MeasuredMemory(2, 1))
    for version, known in (("0.26.0", {spec}), ("0.32.0", set())):
        records = MemoryRecords(tmp_path, lambda _spec, version=version: version)
        assert set(records.of([spec], "NVIDIA H200")) == known
