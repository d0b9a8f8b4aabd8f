"""SGLang's command line."""

from dataclasses import replace

import pytest

from pytest_llmperf.emulator.config import Lookup
from pytest_llmperf.emulator.flags.launch import machine
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.quantities import UsageError


def launch(*flags, hardware="h200", gpus=1, model="llama-3.1-8b", env=None, **options):
    return sglang_launch(["--model-path", model, *flags], machine(hardware, gpus), env or {}, **options)


def config(*flags, **options):
    return launch(*flags, **options).config


def test_sglang_defaults_are_resolved():
    launched = launch()
    assert (launched.port, launched.metrics, launched.cached_details) == (30000, False, False)
    assert launched.served_names == ("llama-3.1-8b",)
    resolved = launched.config
    assert (resolved.engine, resolved.policy, resolved.block_size) == ("sglang", "fcfs", 1)
    assert (resolved.max_num_batched_tokens, resolved.max_graph_size) == (8192, 256)
    assert 2048 <= resolved.max_num_seqs <= 4096
    assert resolved.num_blocks > 500_000
    assert config(hardware="l4", model="phi-4-mini").max_num_batched_tokens == 2048


def test_sglang_configuration_follows_flags():
    built = config(
        "--tp", "2", "--chunked-prefill-size", "4096", "--schedule-policy", "lpm", "--page-size", "16",
        "--disable-radix-cache", "--disable-cuda-graph", "--disable-overlap-schedule", "--max-total-tokens", "32000",
        "--max-running-requests", "64", "--kv-cache-dtype", "fp8_e5m2", "--quantization", "fp8", gpus=2,
    )  # fmt: skip
    assert (built.tensor_parallel, built.max_num_batched_tokens, built.policy) == (2, 4096, "lpm")
    assert (built.block_size, built.num_blocks, built.max_num_seqs) == (16, 2000, 64)
    assert [built.prefix_caching, built.cuda_graphs, built.async_scheduling] == [False] * 3
    assert (built.kv, built.weights) == ("fp8", "fp8")


def test_context_beyond_the_model_is_refused_without_the_variable():
    with pytest.raises(StartError, match=r"context_length \(131073\) is greater than the derived context_length"):
        config("--context-length", "131073")
    allowed = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert config("--context-length", "131073", env=allowed).max_model_len == 131_073


@pytest.mark.parametrize(("flags", "most"), [
    (("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"), 48),
    (("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--max-running-requests", "96"), 96),
    (("--dp", "2", "--max-running-requests", "64"), 32),
    (("--max-total-tokens", "60"), 30),
])
def test_running_sequences_are_limited_by_sglang_flags(flags, most):
    assert config(*flags, gpus=2).max_num_seqs == most


@pytest.mark.parametrize("flags", [
    ("--radix-eviction-policy", "lfu"), ("--load-balance-method", "total_requests"),
    ("--hicache-write-policy", "write_back"),
])
def test_unsupported_sglang_policy_is_refused(flags):
    with pytest.raises(UsageError, match=f"{flags[0]} {flags[1]} cannot be emulated; only "):
        config(*flags)


def test_sglang_scheduling_flags_are_resolved():
    built = config("--enable-mixed-chunk", "--max-prefill-tokens", "9000", "--schedule-conservativeness", "0.7")
    assert (built.mixed_chunk, built.max_prefill_tokens, built.conservativeness) == (True, 9000, 0.7)
    assert not config().mixed_chunk


def test_sglang_negative_chunk_size_excludes_chunked_prefill():
    built = config("--chunked-prefill-size", "-1")
    assert not built.chunked_prefill
    assert built.max_num_batched_tokens == 16384


def test_sglang_draft_flags_are_resolved_or_refused():
    built = config("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
                   "--speculative-num-draft-tokens", "4")  # fmt: skip
    assert built.speculation.draft_tokens == 3
    given = config("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", acceptance=(0.9, 0.5))
    assert given.speculation == replace(built.speculation, acceptance=(0.9, 0.5, 0.5))
    assert built.async_scheduling
    ngram = config("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8").speculation
    assert (ngram.draft_tokens, ngram.lookup) == (8, Lookup(1, 12))
    with pytest.raises(UsageError, match="eagle-topk"):
        launch("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--speculative-eagle-topk", "4")


def test_sglang_cache_flags_give_tiers():
    assert config().tiers == ()
    tiers = config("--enable-hierarchical-cache", "--hicache-size", "50").tiers
    assert [(tier.name, tier.capacity_bytes) for tier in tiers] == [("cpu", 50 * 10**9)]
    both = config("--enable-hicache", "--hicache-storage-backend", "file").tiers
    assert [tier.name for tier in both] == ["cpu", "disk"]
    lmcache = config("--enable-lmcache", "--tp", "2", gpus=2).tiers
    assert [(tier.capacity_bytes, tier.server) for tier in lmcache] == [(5 * 2**30, True)]


def test_sglang_launch_is_refused_with_reason():
    with pytest.raises(UsageError, match=r"cannot be emulated.*--mem-fraction-static"):
        launch("--enable-lora")
    with pytest.raises(UsageError, match="needs 2 GPUs"):
        launch("--tp", "2")
    with pytest.raises(StartError, match="Not enough memory"):
        launch(model="llama-3.1-70b", hardware="l4")


def test_second_quantization_of_int4_model_is_refused():
    with pytest.raises(StartError, match=r"in the model config \(gptq\) does not match .* argument \(fp8\)"):
        launch("--quantization", "fp8", model="llama-3.1-8b-gptq-int4")
