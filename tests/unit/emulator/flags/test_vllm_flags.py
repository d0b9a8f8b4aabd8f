"""vLLM's command line resolves as vLLM resolves it; what cannot be emulated is refused by name."""

import json
from dataclasses import replace

import pytest

from pytest_llmperf.emulator.config import Lookup
from pytest_llmperf.emulator.flags.launch import machine
from pytest_llmperf.emulator.flags.parser import StartError
from pytest_llmperf.emulator.flags.sglang import sglang_launch
from pytest_llmperf.emulator.flags.vllm import vllm_launch
from pytest_llmperf.emulator.quantities import UsageError


def launch(*flags, hardware="h200", gpus=1, model="llama-3.1-8b", env=None, **options):
    return vllm_launch(["serve", model, *flags], machine(hardware, gpus), env or {}, **options)


def config(*flags, **options):
    return launch(*flags, **options).config


@pytest.mark.parametrize(
    ("hardware", "budget", "sequences"),
    [("h200", 8192, 1024), ("h100", 8192, 1024), ("a100", 2048, 256), ("l4", 2048, 256)],
)
def test_vllm_defaults_depend_on_gpu(hardware, budget, sequences):
    built = config("--max-model-len", "4096", hardware=hardware, model="phi-4-mini")
    assert (built.max_num_batched_tokens, built.max_num_seqs, built.block_size) == (budget, sequences, 16)
    assert built.prefix_caching
    assert built.chunked_prefill
    assert built.async_scheduling
    assert built.cuda_graphs
    assert built.max_graph_size == 512


@pytest.mark.parametrize(("gib", "budget", "chunk"), [(141, 8192, 8192), (159, 8192, 8192), (160, 16384, 16384),
                                                      (192, 16384, 16384)])
def test_gpus_of_160_gib_and_more_get_twice_the_budget(gib, budget, chunk):
    hardware = machine("h200", 1)
    large = replace(hardware, gpu=replace(hardware.gpu, name="b200", cuda_memory_gib=gib))
    assert vllm_launch(["serve", "llama-3.1-8b"], large, {}).config.max_num_batched_tokens == budget
    assert sglang_launch(["--model-path", "llama-3.1-8b"], large, {}).config.max_num_batched_tokens == chunk


def test_vllm_command_line_of_plugin_is_resolved():
    launched = launch(
        "--host", "127.0.0.1", "--port", "23456", "--served-model-name", "nonce", "--generation-config", "vllm",
        "--enable-prompt-tokens-details", "--disable-uvicorn-access-log", "--seed", "0", "--load-format", "dummy",
        "--max-model-len", "16384", "--max-num-batched-tokens", "1024", "--no-enable-prefix-caching",
        "--no-async-scheduling",
    )  # fmt: skip
    assert (launched.host, launched.port, launched.served_names, launched.model) == (
        "127.0.0.1",
        23456,
        ("nonce",),
        "llama-3.1-8b",
    )
    assert launched.cached_details
    assert (launched.config.max_model_len, launched.config.max_num_batched_tokens) == (16384, 1024)
    assert not launched.config.prefix_caching
    assert not launched.config.async_scheduling
    assert launched.config.max_num_seqs == 1024


def test_flag_spellings_and_number_suffixes_are_accepted():
    built = config("--max_num_seqs=64", "--max-num-batched-tokens", "2K", "--max_model_len", "8k")
    assert (built.max_num_seqs, built.max_num_batched_tokens, built.max_model_len) == (64, 2048, 8000)


def test_token_budget_never_exceeds_tokens_of_all_sequences():
    assert config("--max-num-seqs", "2", "--max-model-len", "1000").max_num_batched_tokens == 2000
    assert config("--no-enable-chunked-prefill", "--max-model-len", "16384").max_num_batched_tokens == 16384
    assert config("--performance-mode", "throughput").max_num_batched_tokens == 16384


@pytest.mark.parametrize(
    "flags",
    [["--enforce-eager"], ["-O0"], ["--compilation-config", '{"cudagraph_mode": "NONE"}'],
     ["--compilation-config.cudagraph_mode", "NONE"], ["-cc", '{"mode": 0}']],
)  # fmt: skip
def test_every_eager_flag_excludes_cuda_graphs(flags):
    assert not config(*flags).cuda_graphs


def test_largest_graph_follows_graph_size_flags():
    assert config("--cudagraph-capture-sizes", "1", "2", "64").max_graph_size == 64
    assert config("--max-num-seqs", "16").max_graph_size == 32
    assert config("--max-cudagraph-capture-size", "128").max_graph_size == 128


def test_number_of_blocks_follows_memory_flags():
    default = config("--max-model-len", "8192")
    assert config("--max-model-len", "8192", "--gpu-memory-utilization", "0.5").num_blocks < default.num_blocks
    assert config("--max-model-len", "8192", "--kv-cache-dtype", "fp8").num_blocks == pytest.approx(
        2 * default.num_blocks, abs=2
    )
    assert config("--max-model-len", "8192", "--quantization", "fp8").num_blocks > default.num_blocks
    assert config("--max-model-len", "1584", "--num-gpu-blocks-override", "100").num_blocks == 100
    bytes_per_block = 16 * 2 * 32 * 8 * 128 * 2
    assert config("--max-model-len", "160", "--kv-cache-memory-bytes", str(50 * bytes_per_block)).num_blocks == 50


def test_model_that_does_not_fit_is_refused_with_message_of_vllm():
    with pytest.raises(StartError, match="No available memory for the cache blocks"):
        launch(model="llama-3.1-70b", hardware="l4")
    with pytest.raises(StartError, match=r"max seq len \(131072\).*estimated maximum model length is \d+"):
        launch(model="llama-3.1-8b", hardware="l4")


def test_the_longest_request_must_fit_beside_the_block_that_vllm_keeps():
    memory = ["--kv-cache-memory-bytes", str(11 * 16 * 2 * 32 * 8 * 128 * 2)]
    for given in (["--num-gpu-blocks-override", "11"], memory):
        assert config("--max-model-len", "160", *given).num_blocks == 11
        with pytest.raises(StartError, match=r"max seq len \(161\).*estimated maximum model length is 160\."):
            launch("--max-model-len", "161", *given)


def test_parallelism_beyond_the_gpus_names_both_numbers():
    assert config("-tp", "2", gpus=2).tensor_parallel == 2
    with pytest.raises(UsageError, match=r"needs 8 GPUs.*has 2"):
        launch("--tensor-parallel-size", "4", "-dp", "2", gpus=2)
    with pytest.raises(UsageError, match="pipeline-parallel-size 2"):
        launch("-pp", "2", gpus=2)


@pytest.mark.parametrize("flag", ["--enable-lora", "--no-such-flag", "--lora-modules=a"])
def test_unsupported_flag_is_refused_with_list_of_supported_flags(flag):
    with pytest.raises(UsageError, match=r"cannot be emulated.*--max-num-batched-tokens.*--enable-prefix-caching"):
        launch(flag)


@pytest.mark.parametrize(
    "flags", [["--scheduling-policy", "priority"], ["--stream-interval", "4"], ["--quantization", "awq"],
              ["--kv-cache-dtype", "nvfp4"], ["--kv-transfer-config", '{"kv_connector": "NixlConnector"}'],
              ["-cc", '{"pass_config": {}}'], ["--max-num-seqs", "0"], ["--max-num-seqs"]],
)  # fmt: skip
def test_values_that_cannot_be_emulated_are_refused(flags):
    with pytest.raises(UsageError):
        launch(*flags)


def spec(**given):
    return config("--speculative-config", json.dumps({"num_speculative_tokens": 3, **given}))


def test_draft_method_determines_acceptance_and_draft_model():
    assert spec(method="eagle3").speculation.acceptance == (0.730, 0.714, 0.681)
    assert spec(method="eagle3", num_speculative_tokens=5).speculation.acceptance[3:] == (0.681, 0.681)
    assert spec(method="eagle3").speculation.draft.layers == 1
    assert spec(method="ngram").speculation.draft is None
    assert spec(method="draft_model", model="tiny").speculation.draft.name == "tiny"


def test_draft_model_equal_to_target_is_always_accepted():
    assert spec(method="draft_model", model="llama-3.1-8b").speculation.acceptance == (1.0, 1.0, 1.0)


def test_async_scheduling_is_off_for_drafts_of_the_host():
    assert not spec(method="ngram").async_scheduling
    assert not spec(method="draft_model", model="tiny").async_scheduling
    assert spec(method="eagle3").async_scheduling
    with pytest.raises(StartError, match="async scheduling"):
        launch("--async-scheduling", "-sc", '{"method": "ngram", "num_speculative_tokens": 2}')


@pytest.mark.parametrize(("k", "tree", "drafted"), [
    (8, {}, 8), (16, {}, 12), (16, {"suffix_decoding_max_tree_depth": 32}, 16),
    (24, {"suffix_decoding_max_tree_depth": 40}, 20),
])
def test_tree_depth_limits_drafts_of_suffix_decoding(k, tree, drafted):
    """arctic-inference 0.1.1 has the same lengths for a periodic text."""
    settings = {"method": "suffix", "num_speculative_tokens": k, **tree}
    speculation = config("-sc", json.dumps(settings)).speculation
    assert speculation.draft_tokens == len(speculation.acceptance) == drafted


def test_invalid_tree_depth_of_suffix_decoding_is_refused():
    settings = {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_tree_depth": 0}
    with pytest.raises(StartError, match="suffix_decoding_max_tree_depth=0 must be >= 1"):
        config("-sc", json.dumps(settings))


def test_synthetic_acceptance_is_converted_to_conditional_rates():
    synthetic = {"method": "ngram", "num_speculative_tokens": 4, "rejection_sample_method": "synthetic"}
    length = config("-sc", json.dumps({**synthetic, "synthetic_acceptance_length": 2.5}))
    assert length.speculation.acceptance == (1.0, 0.5, 0.0, 0.0)
    rates = config("-sc", json.dumps({**synthetic, "synthetic_acceptance_rates": [0.8, 0.4, 0.4, 0.0]}))
    assert rates.speculation.acceptance == pytest.approx((0.8, 0.5, 1.0, 0.0))
    with pytest.raises(StartError, match="must not increase"):
        config("-sc", json.dumps({**synthetic, "synthetic_acceptance_rates": [0.1, 0.4, 0.4, 0.0]}))


def test_given_acceptance_takes_the_place_of_the_methods_own():
    built = config("-sc", '{"method": "ngram", "num_speculative_tokens": 3}', acceptance=(0.9, 0.5))
    assert built.speculation.acceptance == (0.9, 0.5, 0.5)


@pytest.mark.parametrize("method", ["ngram", "eagle3", "mtp"])
def test_given_acceptance_replaces_only_acceptance_rates(method):
    flags = ["-sc", json.dumps({"method": method, "num_speculative_tokens": 3})]
    default, given = config(*flags).speculation, config(*flags, acceptance=(0.9, 0.5)).speculation
    assert given == replace(default, acceptance=(0.9, 0.5, 0.5), lookup=None)


@pytest.mark.parametrize(("settings", "lookup"), [
    ({"method": "ngram"}, Lookup(5, 5)), ({"method": "ngram", "prompt_lookup_max": 4}, Lookup(4, 4)),
    ({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}, Lookup(2, 4)),
    ({"method": "suffix", "suffix_decoding_max_spec_factor": 2}, Lookup(1, 24, 2)), ({"method": "eagle3"}, None),
])
def test_drafts_from_the_text_are_searched_for_as_vllm_does(settings, lookup):
    assert spec(**settings).speculation.lookup == lookup


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_random_weights_accept_every_draft_from_their_text(method):
    flags = ["-sc", json.dumps({"method": method, "num_speculative_tokens": 3})]
    dummy = config(*flags, "--load-format", "dummy").speculation
    assert (dummy.lookup, dummy.acceptance) == (None, (1.0, 1.0, 1.0))


@pytest.mark.parametrize("settings", [{"prompt_lookup_min": 5, "prompt_lookup_max": 4}, {"prompt_lookup_max": "4"}])
def test_impossible_lengths_of_a_lookup_are_refused(settings):
    with pytest.raises(StartError, match=r"prompt_lookup_min=.* must be 1 or more, and <= prompt_lookup_max="):
        spec(method="ngram", **settings)


def test_offloading_and_lmcache_flags_give_tiers(tmp_path):
    offload = config("--kv-offloading-size", "10")
    assert [(tier.name, tier.capacity_bytes) for tier in offload.tiers] == [("cpu", 10 * 2**30)]
    file = tmp_path / "lmcache.yaml"
    file.write_text(
        'chunk_size: 128  # tokens\nmax_local_cpu_size: 2.0\nlocal_disk: "file:///x/"\nstorage:\n  - a: 1\n'
    )
    connector = ["--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}']
    server = ["--kv-transfer-config", '{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}']
    env = {"LMCACHE_CONFIG_FILE": str(file), "LMCACHE_MAX_LOCAL_DISK_SIZE": "7"}
    built = config(*connector, env=env).tiers
    assert [(tier.name, tier.capacity_bytes // 2**30, tier.chunk_tokens) for tier in built] == [
        ("cpu", 2, 128),
        ("disk", 7, 128),
    ]
    assert [tier.watermark for tier in built] == [1, 1]
    assert [(tier.watermark, tier.evicted_share) for tier in config(*server, env=env).tiers] == [(0.8, 0.2), (1, 0)]


@pytest.mark.parametrize(("connector", "stores"), [("LMCacheConnectorV1", 4), ("LMCacheMPConnector", 1)])
def test_lmcache_server_is_shared_by_all_gpus(connector, stores):
    flags = ["-tp", "2", "-dp", "2", "--kv-transfer-config", json.dumps({"kv_connector": connector})]
    env = {"LMCACHE_MAX_LOCAL_CPU_SIZE": "32", "LMCACHE_LOCAL_DISK": "/x", "LMCACHE_MAX_LOCAL_DISK_SIZE": "64"}
    built = config(*flags, gpus=4, env=env).tiers
    assert [tier.capacity_bytes / 2**30 for tier in built] == [32 * stores, 64 * stores]
    assert {tier.server for tier in built} == {stores == 1}


def test_unknown_model_or_hardware_is_refused_with_known_names():
    with pytest.raises(StartError, match=r"llama-3\.1-8b"):
        launch(model="/no/such/folder")
    with pytest.raises(UsageError, match="which model"):
        vllm_launch([], machine("h200", 1), {})
    with pytest.raises(UsageError, match="--hardware x100"):
        machine("x100", 1)


def test_prompts_that_need_not_fit_whole_are_refused():
    assert config("--scheduler-reserve-full-isl") == config()
    with pytest.raises(UsageError, match="--scheduler-reserve-full-isl False cannot be emulated; only True can"):
        config("--no-scheduler-reserve-full-isl")


def test_second_quantization_of_int4_model_is_refused():
    with pytest.raises(StartError, match=r"in the model config \(gptq\) does not match .* argument \(fp8\)"):
        launch("--quantization", "fp8", model="llama-3.1-8b-gptq-int4")


def test_int4_model_reports_quantization_and_more_blocks():
    flags = ("--max-model-len", "8192")
    launched = launch(*flags, model="llama-3.1-8b-awq-int4")
    assert launched.facts["quantization"] == "auto_awq"
    assert launched.config.num_blocks > config(*flags, "--quantization", "fp8").num_blocks
