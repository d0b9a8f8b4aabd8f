"""Lower bounds of latencies from memory bandwidth and peak arithmetic. No engine can be faster."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from pytest_llmperf.engines.models import SHAPES, ResolvedModel
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import SpecError
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.kinds.rows import HardwareKind
from pytest_llmperf.model.datasheet import LatencyBound
from pytest_llmperf.model.deployment import PrefillDecode
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.ranks import DATA, PIPELINE, TENSOR, size_of
from pytest_llmperf.shapes import ModelShape
from pytest_llmperf.workload.arguments import integer

BYTES_PER_WEIGHT = {"fp8": 1}  # of a `quantization`; others are not known
# An engine can compute with activations of 8 bits where the weights are integers of 4 bits.
BYTES_WITH_INTEGERS = 1
# Flags that change the model's dimensions, or spread one sequence over GPUs in a way that is not known here.
UNKNOWN_SHAPE = ("hf_overrides", "json_model_override_args")
UNKNOWN_SPREAD = ("context_parallel", "cp_size")
SPECULATION = "spec"  # how the names of flags begin that switch it on, in vLLM and SGLang


def decode_floor_ms(model: str, kind: str, *, gpus: int = 1, kv_tokens: int = 0) -> float:
    """Lower bound in ms of a decode step: bytes that the step reads ÷ memory bandwidth.

    The bound is the memory term of the roofline model (Williams, Waterman and Patterson, CACM 52(4), 2009). A step of
    few streams does about one multiplication per weight and stream. The GPU could do far more meanwhile, so memory
    bandwidth limits the step. The step reads all weights of the token's path; of routed experts it reads only the
    active ones. The embedding table is not read, except where the model also uses the table as output projection.
    Sampling and launches take additional time, so no server reaches the bound.

    Args:
        model: name of a shape in the model registry; a step reads the stored weights.
        kind: hardware kind of the GPU.
        gpus: number of GPUs over which tensor parallelism splits weights and KV cache evenly.
        kv_tokens: tokens of all streams in the KV cache, which the step reads, too.

    Raises:
        SpecError: the model or the kind is unknown, or a number is not a whole number, `gpus` ≥ 1 and `kv_tokens` ≥ 0.
    """
    count = integer("decode_floor_ms", "gpus", gpus)
    tokens = integer("decode_floor_ms", "kv_tokens", kv_tokens, least=0)
    shape, gpu = _known("decode_floor_ms", model, kind)
    read_bytes = shape.decode_bytes + tokens * shape.kv_bytes_per_token()
    return read_bytes / count / gpu.bandwidth_bytes_per_s * 1e3


def prefill_peak_per_s(model: str, kind: str) -> float:
    """Upper bound of the prompt tokens that one GPU computes in a second: peak bfloat16 arithmetic ÷ FLOP of a token.

    Args:
        model: name of a shape in the model registry.
        kind: hardware kind of the GPU.

    Raises:
        SpecError: the model or the kind is unknown.
    """
    shape, gpu = _known("prefill_peak_per_s", model, kind)
    return gpu.bf16_flops / shape.prompt_flops


def _known(call: str, model: str, kind: str) -> tuple[ModelShape, HardwareKind]:
    if model not in list(SHAPES) or kind not in list(GPU_KINDS):
        raise SpecError(f"{call}({model!r}, {kind!r}): write one of the models {', '.join(SHAPES)} and one "
                        f"of the kinds {', '.join(GPU_KINDS)}.")
    return SHAPES[model], GPU_KINDS[kind]


def latency_bound(spec: EngineSpec, model: ResolvedModel | None, facts: Mapping[str, str]) -> LatencyBound | None:
    """Lower bound of the latencies of an engine; None if the model, the GPU or the effect of a flag is unknown.

    A step reads the weights on a token's path; of routed experts it reads only the active ones. Tensor parallelism
    splits these weights over GPUs, and second-level caches may still contain a part of the weights. Pipeline
    parallelism does not shorten a step, because the stages run in sequence. A prompt is computed at the summed peak of
    all GPUs. KV cache, attention, communication and overheads take additional time, so no engine reaches the bound.

    Args:
        spec, model: the started engine. An endpoint has no bound, because its GPUs and flags are unknown.
        facts: configuration that the server resolved.
    """
    if isinstance(spec, PrefillDecode) and spec.prefill.spec.flags != spec.decode.spec.flags:
        return None
    shape, flags = None if model is None else model.shape, flags_of(spec)
    tokens = _tokens_per_step(flags, facts)
    spread = any(part in name for name in flags for part in UNKNOWN_SPREAD)
    if shape is None or spec.kind is None or spec.kind not in GPU_KINDS or tokens is None or spread:
        return None
    weights = _weights(shape, flags)
    if weights is None or any(name in flags for name in UNKNOWN_SHAPE):
        return None
    read_bytes, operand = weights
    ranks = {group: size_of(flags, group) for group in (TENSOR, PIPELINE, DATA)}
    reading = ranks[TENSOR] * (ranks[DATA] if shape.experts > 1 else 1)  # whole experts may lie on any rank
    computing, gpu, name = prod(ranks.values()), GPU_KINDS[spec.kind], spec.kind.upper()
    read = max(0.0, read_bytes / reading - gpu.cache_bytes)
    flops = gpu.flops(operand)
    return LatencyBound(
        gpus=f"{computing} × {name}" if computing > 1 else name,
        step_ns=read / gpu.bandwidth_bytes_per_s * 1e9,
        prompt_token_ns=shape.prompt_flops / flops / computing * 1e9,
        tokens_per_step=tokens,
        reading=f"{read / 1e9:.3g} GB of weights per GPU ÷ {gpu.bandwidth_bytes_per_s / 1e12:.3g} TB/s",
        computing=f"{shape.prompt_flops / 1e9:.3g} GFLOP per prompt token ÷ {flops * computing / 1e12:.4g} TFLOP/s",
    )


def _weights(shape: ModelShape, flags: Mapping[str, object]) -> tuple[float, int] | None:
    """Lower bounds of the bytes of weights that a step reads, and of the bytes per operand of a matrix product.

    A wider `dtype` only increases the real time. None if a flag quantises the weights in an unknown way.
    """
    quantization = flags.get("quantization")
    if shape.quantization is not None:
        return (shape.decode_bytes, BYTES_WITH_INTEGERS) if quantization is None else None
    weight = 2 if quantization is None else BYTES_PER_WEIGHT.get(str(quantization))
    return None if weight is None else (shape.decode_bytes * weight / 2, weight)


def _tokens_per_step(flags: Mapping[str, object], facts: Mapping[str, str]) -> int | None:
    """Largest number of tokens that a step generates for one sequence: all drafts and one more. None if unknown."""
    if not any(name.startswith(SPECULATION) for name in flags):
        return 1
    config = flags.get("speculative_config")
    drafts = config.get("num_speculative_tokens") if isinstance(config, Mapping) else None
    if isinstance(drafts, int):
        return drafts + 1
    resolved = facts.get("speculative_num_draft_tokens", "")
    given = flags.get("speculative_num_draft_tokens", int(resolved) if resolved.isdigit() else None)
    return given + 1 if isinstance(given, int) else None
