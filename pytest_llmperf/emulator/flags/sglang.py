"""SGLang's command line: `--model-path MODEL --flag …`, with the defaults that 0.5.15 to 0.5.23 resolve."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmperf.emulator.config import Dtype, EngineConfig, Link, Speculation, Tier
from pytest_llmperf.emulator.cost.capacity import DoesNotFit, default_utilization, kv_blocks, kv_bytes_per_gpu
from pytest_llmperf.emulator.cost.gpu import Gpu
from pytest_llmperf.emulator.cost.shape import ModelShape, UnknownModel, read_shape
from pytest_llmperf.emulator.flags.launch import Launch, Machine
from pytest_llmperf.emulator.flags.parser import StartError, only, without_serve
from pytest_llmperf.emulator.flags.sglang_parser import METHODS, sglang_parser
from pytest_llmperf.emulator.flags.speculation import speculation
from pytest_llmperf.emulator.flags.tiers import disk_tier, host_tier, lmcache_tiers
from pytest_llmperf.emulator.quantities import UsageError

_GIB = 2**30
_MOST_DRAFTING = 48
_FP8_KV = ("fp8_e4m3", "fp8_e5m2")


def sglang_launch(
    argv: Sequence[str],
    machine: Machine,
    env: Mapping[str, str],
    *,
    split: Link | None = None,
    acceptance: tuple[float, ...] | None = None,
) -> Launch:
    """Resolve SGLang's arguments as it would on that machine; arguments and errors as those of vllm_launch."""
    found = sglang_parser().read(without_serve(argv))
    only(found, "sglang", pp_size=(1,), stream_interval=(1,), speculative_eagle_topk=(1,), cuda_graph_config=(None,),
         dtype=("auto", "bfloat16", "float16", "half"), quantization=(None, "fp8"),
         kv_cache_dtype=("auto", "bf16", "bfloat16", *_FP8_KV), ep_size=(1, found.tp_size),
         hicache_storage_backend=(None, "file"), radix_eviction_policy=("lru",),
         load_balance_method=("auto", "round_robin"), hicache_write_policy=("write_through",))  # fmt: skip
    machine.check(found.tp_size, found.dp_size, 2 if split else 1)
    if found.model_path is None:
        raise UsageError("sglang: which model? Say --model-path MODEL.")
    try:
        shape = read_shape(found.model_path)
    except UnknownModel as error:
        raise StartError(str(error)) from None
    chunk = _chunk(found, machine.gpu)
    fraction = found.mem_fraction_static or default_utilization("sglang", machine.gpu, chunk, found.tp_size)
    drafts = _speculation(found, shape, acceptance)
    config = _config(found, shape, machine.gpu, env, chunk=chunk, fraction=fraction, drafts=drafts, split=split)
    return Launch(
        config=config,
        host=found.host,
        port=found.port,
        model=found.model_path,
        served_names=(found.served_model_name or found.model_path,),
        cached_details=found.enable_cache_report,
        tokenizer=not found.skip_tokenizer_init,
        incremental=found.incremental_streaming_output,
        metrics=found.enable_metrics,
        utilization=fraction,
        facts={
            "dtype": found.dtype,
            "quantization": found.quantization,
            "kv_cache_dtype": found.kv_cache_dtype,
            "chunked_prefill_size": -1 if not config.chunked_prefill else chunk,
            "max_prefill_tokens": found.max_prefill_tokens,
            "disable_cuda_graph": not config.cuda_graphs,
            "disable_radix_cache": found.disable_radix_cache,
            "enable_mixed_chunk": found.enable_mixed_chunk,
            "speculative_algorithm": found.speculative_algorithm,
        },
    )


def _chunk(found: argparse.Namespace, gpu: Gpu) -> int:
    """Tokens of a prefill step; SGLang's own choice grows with the GPU's memory."""
    if found.chunked_prefill_size is None:
        gib = gpu.memory_bytes / _GIB
        return 2048 if gib < 35 else 4096 if gib < 60 else 8192
    return found.max_prefill_tokens if found.chunked_prefill_size <= 0 else int(found.chunked_prefill_size)


def _config(
    found: argparse.Namespace,
    shape: ModelShape,
    gpu: Gpu,
    env: Mapping[str, str],
    *,
    chunk: int,
    fraction: float,
    drafts: Speculation | None,
    split: Link | None,
) -> EngineConfig:
    weights: Dtype = "fp8" if found.quantization == "fp8" or shape.published == "fp8" else "bfloat16"
    kv: Dtype = "fp8" if found.kv_cache_dtype in _FP8_KV else "bfloat16"
    length = found.context_length or shape.max_positions
    try:
        fit = kv_blocks(shape, gpu, found.tp_size, weights, kv, found.page_size, fraction, chunk, engine="sglang")
    except DoesNotFit as error:
        raise StartError(f"Not enough memory. Please try to increase --mem-fraction-static. ({error})") from None
    blocks = min(fit, found.max_total_tokens // found.page_size) if found.max_total_tokens else fit
    tokens = blocks * found.page_size
    graphs = not found.disable_cuda_graph and found.cuda_graph_backend_decode != "disabled"
    largest = found.cuda_graph_max_bs or (24 if gpu.memory_bytes < 35 * _GIB else 512 if found.tp_size >= 4 else 256)
    return EngineConfig(
        engine="sglang",
        shape=shape,
        gpu=gpu,
        max_model_len=length,
        max_num_batched_tokens=chunk,
        max_num_seqs=_max_running(found, tokens, length, drafts),
        block_size=found.page_size,
        num_blocks=blocks,
        prefix_caching=not found.disable_radix_cache,
        chunked_prefill=found.chunked_prefill_size is None or found.chunked_prefill_size > 0,
        policy=found.schedule_policy,
        weights=weights,
        kv=kv,
        tensor_parallel=found.tp_size,
        data_parallel=found.dp_size,
        expert_parallel=found.ep_size > 1,
        cuda_graphs=graphs,
        max_graph_size=largest if graphs else 0,
        async_scheduling=not found.disable_overlap_schedule,
        speculation=drafts,
        tiers=_tiers(found, gpu, env, tokens * kv_bytes_per_gpu(shape, kv, found.tp_size)),
        transfer=split,
        max_prefill_tokens=found.max_prefill_tokens,
        mixed_chunk=found.enable_mixed_chunk,
        conservativeness=found.schedule_conservativeness,
    )


def _max_running(found: argparse.Namespace, tokens: int, length: int, drafts: Speculation | None) -> int:
    """Requests that run at once on each replica of `tokens` KV tokens (0.5.15: model_runner_kv_cache_mixin)."""
    asked = found.max_running_requests or (_MOST_DRAFTING if drafts else None)
    most = min(max(int(tokens / length * 512), 2048), 4096) if asked is None else asked // found.dp_size
    return max(1, min(int(most), tokens // 2))


def _tiers(found: argparse.Namespace, gpu: Gpu, env: Mapping[str, str], kv_bytes: float) -> tuple[Tier, ...]:
    """What lies below `kv_bytes` of KV cache on each GPU."""
    if found.enable_lmcache:
        named = {"LMCACHE_CONFIG_FILE": found.lmcache_config_file} if found.lmcache_config_file else {}
        return lmcache_tiers(gpu, found.tp_size * found.dp_size, {**env, **named}, server=True)
    if not found.enable_hierarchical_cache:
        return ()
    workers = found.tp_size * found.dp_size
    per_gpu = found.hicache_size * 1e9 or found.hicache_ratio * kv_bytes
    host = replace(host_tier(gpu, per_gpu * workers, found.page_size), own=True)
    return (host, disk_tier(1e12, found.page_size)) if found.hicache_storage_backend else (host,)


def _speculation(
    found: argparse.Namespace, shape: ModelShape, acceptance: tuple[float, ...] | None
) -> Speculation | None:
    if found.speculative_algorithm is None:
        return None
    steps = found.speculative_num_steps
    if steps is None:
        if found.speculative_num_draft_tokens is None:
            raise UsageError("sglang: say --speculative-num-steps; how SGLang chooses it by itself is not emulated.")
        steps = found.speculative_num_draft_tokens - (0 if found.speculative_algorithm == "NGRAM" else 1)
    asked: dict[str, object] = {"method": METHODS[found.speculative_algorithm], "num_speculative_tokens": steps}
    if found.speculative_draft_model_path:
        asked["model"] = found.speculative_draft_model_path
    drafts = speculation(asked, shape, found.model_path)
    if acceptance is None:
        return drafts
    return replace(drafts, acceptance=(acceptance + (acceptance[-1],) * steps)[:steps])
