"""vLLM's command line: `serve MODEL --flag …`, with the defaults that 0.26 to 0.32 resolve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_llmperf.emulator.config import Link
from pytest_llmperf.emulator.flags.launch import Launch, Machine
from pytest_llmperf.emulator.flags.model import served_shape
from pytest_llmperf.emulator.flags.parser import only, without_serve
from pytest_llmperf.emulator.flags.vllm_config import FP8_KV, vllm_config
from pytest_llmperf.emulator.flags.vllm_extras import vllm_speculation, vllm_tiers
from pytest_llmperf.emulator.flags.vllm_parser import vllm_parser
from pytest_llmperf.emulator.quantities import UsageError


def vllm_launch(
    argv: Sequence[str],
    machine: Machine,
    env: Mapping[str, str],
    *,
    split: Link | None = None,
    acceptance: tuple[float, ...] | None = None,
) -> Launch:
    """Resolve vLLM's arguments as vLLM would on this machine.

    Args:
        argv: with or without a leading "serve".
        machine: GPUs.
        env: environment variables. Only LMCache's variables are read.
        split: link between prefill GPUs and decode GPUs; None if each GPU does prefill and decode.
        acceptance: acceptance probability per draft position, instead of the default of the speculation method.

    Raises:
        UsageError: the emulator cannot emulate an argument.
        StartError: vLLM itself would refuse to start, for instance because the model does not fit.
    """
    namespace = vllm_parser().read(without_serve(argv))
    only(namespace, "vllm", pipeline_parallel_size=(1,), scheduling_policy=("fcfs",), stream_interval=(1,),
         long_prefill_token_threshold=(0,), dtype=("auto", "bfloat16", "float16", "half"),
         quantization=(None, "fp8"), kv_cache_dtype=("auto", "bfloat16", *FP8_KV),
         scheduler_reserve_full_isl=(True,))  # fmt: skip
    machine.check(namespace.tensor_parallel_size, namespace.data_parallel_size, 2 if split else 1)
    model = namespace.model_tag or namespace.model
    if model is None:
        raise UsageError("vllm: which model? Write `serve MODEL …`, or --model MODEL.")
    shape = served_shape(model, namespace.quantization)
    drafts = vllm_speculation(namespace, shape, model, acceptance)
    config = vllm_config(
        namespace, shape, machine.gpu, drafts=drafts, tiers=vllm_tiers(namespace, machine.gpu, env), split=split
    )
    return Launch(
        config=config,
        host=namespace.host,
        port=namespace.port,
        model=model,
        served_names=tuple(namespace.served_model_name or [model]),
        cached_details=namespace.enable_prompt_tokens_details,
        usage_always=namespace.enable_force_include_usage,
        tokenizer=not namespace.skip_tokenizer_init,
        metrics=not namespace.disable_log_stats,
        utilization=namespace.gpu_memory_utilization,
        facts={
            "dtype": "torch.float16" if namespace.dtype in ("float16", "half") else "torch.bfloat16",
            "enforce_eager": namespace.enforce_eager,
            "quantization": f"auto_{shape.packed.method}" if shape.packed else namespace.quantization,
            "cache_dtype": namespace.kv_cache_dtype,
            "speculative_config": namespace.speculative_config,
        },
    )
