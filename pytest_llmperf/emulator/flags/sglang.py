"""SGLang's command line: `--model-path MODEL --flag …`, with the defaults that 0.5.15 to 0.5.23 resolve."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_llmperf.emulator.config import EngineConfig, Link, Speculation, Tier
from pytest_llmperf.emulator.cost.capacity import DoesNotFit, kv_blocks, kv_bytes_per_gpu, sglang_utilization
from pytest_llmperf.emulator.flags.launch import Launch, Machine, served_shape
from pytest_llmperf.emulator.flags.parser import EngineParser, StartError, only
from pytest_llmperf.emulator.flags.speculation import speculation
from pytest_llmperf.emulator.flags.tables import FP8_KV, METHODS, SGLANG
from pytest_llmperf.emulator.flags.tiers import disk_tier, host_tier, lmcache_tiers
from pytest_llmperf.emulator.quantities import UsageError
from pytest_llmperf.kinds.rows import HardwareKind
from pytest_llmperf.shapes import Dtype, ModelShape

_GIB = 2**30
_MOST_DRAFTING = 48
_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def sglang_launch(
    argv: Sequence[str],
    machine: Machine,
    env: Mapping[str, str],
    *,
    split: Link | None = None,
    acceptance: tuple[float, ...] | None = None,
) -> Launch:
    """Resolve SGLang's arguments as SGLang would on this machine. Arguments and errors are as in `vllm_launch`."""
    namespace = EngineParser(SGLANG).read(argv)
    only(namespace, "sglang", {"ep_size": (1, namespace.tp_size)})
    machine.check(namespace.tp_size, namespace.dp_size, 2 if split else 1)
    if namespace.model_path is None:
        raise UsageError("sglang: which model? Say --model-path MODEL.")
    shape = served_shape(namespace.model_path, namespace.quantization)
    chunk = _chunk(namespace, machine.gpu)
    fraction = namespace.mem_fraction_static or sglang_utilization(machine.gpu, chunk, namespace.tp_size)
    drafts = _speculation(namespace, shape, acceptance)
    config = _config(namespace, shape, machine.gpu, env, chunk=chunk, fraction=fraction, drafts=drafts, split=split)
    return Launch(
        config=config,
        host=namespace.host,
        port=namespace.port,
        model=namespace.model_path,
        served_names=(namespace.served_model_name or namespace.model_path,),
        cached_details=namespace.enable_cache_report,
        tokenizer=not namespace.skip_tokenizer_init,
        incremental=namespace.incremental_streaming_output,
        metrics=namespace.enable_metrics,
        utilization=fraction,
        facts={
            "dtype": namespace.dtype,
            "quantization": namespace.quantization,
            "kv_cache_dtype": namespace.kv_cache_dtype,
            "chunked_prefill_size": -1 if not config.chunked_prefill else chunk,
            "max_prefill_tokens": namespace.max_prefill_tokens,
            "disable_cuda_graph": not config.cuda_graphs,
            "disable_radix_cache": namespace.disable_radix_cache,
            "enable_mixed_chunk": namespace.enable_mixed_chunk,
            "speculative_algorithm": namespace.speculative_algorithm,
        },
    )


def _chunk(options: argparse.Namespace, gpu: HardwareKind) -> int:
    """Tokens of a prefill step; SGLang's own choice grows with the GPU's memory."""
    if options.chunked_prefill_size is None:
        gib = gpu.memory_bytes / _GIB
        return 2048 if gib < 35 else 4096 if gib < 60 else 8192 if gib < 160 else 16384
    return options.max_prefill_tokens if options.chunked_prefill_size <= 0 else int(options.chunked_prefill_size)


def _context_length(requested: int | None, shape: ModelShape, env: Mapping[str, str]) -> int:
    """Longest sequence; SGLang refuses a sequence that is longer than the model's, unless a variable allows it."""
    length = requested or shape.max_positions
    if length > shape.max_positions and env.get(_LONGER, "").lower() not in ("1", "true", "yes"):
        raise StartError(
            f"Warning: User-specified context_length ({length}) is greater than the derived context_length "
            f"({shape.max_positions}). To allow overriding this maximum, set the env var {_LONGER}=1"
        )
    return length


def _config(
    options: argparse.Namespace,
    shape: ModelShape,
    gpu: HardwareKind,
    env: Mapping[str, str],
    *,
    chunk: int,
    fraction: float,
    drafts: Speculation | None,
    split: Link | None,
) -> EngineConfig:
    weights: Dtype = "fp8" if options.quantization == "fp8" or shape.published == "fp8" else "bfloat16"
    kv: Dtype = "fp8" if options.kv_cache_dtype in FP8_KV["sglang"] else "bfloat16"
    length = _context_length(options.context_length, shape, env)
    try:
        fit = kv_blocks(shape, gpu, options.tp_size, weights, kv, options.page_size, fraction, chunk, engine="sglang")
    except DoesNotFit as error:
        raise StartError(f"Not enough memory. Please try to increase --mem-fraction-static. ({error})") from None
    blocks = min(fit, options.max_total_tokens // options.page_size) if options.max_total_tokens else fit
    tokens = blocks * options.page_size
    graphs = not options.disable_cuda_graph and options.cuda_graph_backend_decode != "disabled"
    largest = options.cuda_graph_max_bs_decode or (
        24 if gpu.memory_bytes < 35 * _GIB else 512 if options.tp_size >= 4 or gpu.memory_bytes >= 160 * _GIB else 256
    )
    return EngineConfig(
        engine="sglang",
        shape=shape,
        gpu=gpu,
        max_model_len=length,
        max_num_batched_tokens=chunk,
        max_num_seqs=_max_running(options, tokens, length, drafts),
        block_size=options.page_size,
        num_blocks=blocks,
        prefix_caching=not options.disable_radix_cache,
        chunked_prefill=options.chunked_prefill_size is None or options.chunked_prefill_size > 0,
        policy=options.schedule_policy,
        weights=weights,
        kv=kv,
        tensor_parallel=options.tp_size,
        data_parallel=options.dp_size,
        expert_parallel=options.ep_size > 1,
        cuda_graphs=graphs,
        max_graph_size=largest if graphs else 0,
        async_scheduling=not options.disable_overlap_schedule,
        speculation=drafts,
        tiers=_tiers(options, gpu, env, tokens * kv_bytes_per_gpu(shape, kv, options.tp_size)),
        transfer=split,
        max_prefill_tokens=options.max_prefill_tokens,
        mixed_chunk=options.enable_mixed_chunk,
        conservativeness=options.schedule_conservativeness,
    )


def _max_running(options: argparse.Namespace, tokens: int, length: int, drafts: Speculation | None) -> int:
    """Largest number of running requests on a replica with `tokens` KV tokens (0.5.15: model_runner_kv_cache_mixin)."""
    limit = options.max_running_requests or (_MOST_DRAFTING if drafts else None)
    most = min(max(int(tokens / length * 512), 2048), 4096) if limit is None else limit // options.dp_size
    return max(1, min(int(most), tokens // 2))


def _tiers(options: argparse.Namespace, gpu: HardwareKind, env: Mapping[str, str], kv_bytes: float) -> tuple[Tier, ...]:
    """The KV cache tiers below GPU memory, for `kv_bytes` of KV cache on each GPU."""
    if options.enable_lmcache:
        named = {"LMCACHE_CONFIG_FILE": options.lmcache_config_file} if options.lmcache_config_file else {}
        return lmcache_tiers(gpu, options.tp_size * options.dp_size, {**env, **named}, server=True)
    if not options.enable_hierarchical_cache:
        return ()
    workers = options.tp_size * options.dp_size
    per_gpu = options.hicache_size * 1e9 or options.hicache_ratio * kv_bytes
    host = replace(host_tier(gpu, per_gpu * workers, options.page_size), owned=True)
    return (host, disk_tier(1e12, options.page_size)) if options.hicache_storage_backend else (host,)


def _speculation(
    options: argparse.Namespace, shape: ModelShape, acceptance: tuple[float, ...] | None
) -> Speculation | None:
    if options.speculative_algorithm is None:
        return None
    steps = options.speculative_num_steps
    if steps is None:
        if options.speculative_num_draft_tokens is None:
            raise UsageError("sglang: say --speculative-num-steps; how SGLang chooses it by itself is not emulated.")
        steps = options.speculative_num_draft_tokens - (0 if options.speculative_algorithm == "NGRAM" else 1)
    fields: dict[str, object] = {"method": METHODS[options.speculative_algorithm], "num_speculative_tokens": steps}
    if options.speculative_draft_model_path:
        fields["model"] = options.speculative_draft_model_path
    if options.speculative_algorithm == "NGRAM":
        fields |= {"prompt_lookup_min": 1, "prompt_lookup_max": 12}
    return speculation(fields, shape, options.model_path, acceptance, dummy=options.load_format == "dummy")
