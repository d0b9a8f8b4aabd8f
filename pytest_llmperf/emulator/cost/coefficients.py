"""Fitted coefficients of the step-time model that datasheets lack, with their provenance."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.kinds.rows import HardwareKind

_FITTED_GPUS = ("h100", "h200")


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Shares of the datasheet's peak, and overheads in seconds.

    Args:
        weight_bandwidth: share of memory bandwidth when reading weights.
        kv_bandwidth, kv_bandwidth_fp8: the same when attention reads a KV cache in bfloat16, and in fp8.
        matrix, matrix_fp8, attention: share of peak FLOP/s of matrix products in bfloat16 and fp8, and of attention.
        expert_bandwidth, expert_matrix: the same for routed experts, on top of the dense ones.
        expert_tile: the work of an expert is padded to whole tiles of so many rows.
        expert_alike: the tokens of a batch choose similar experts. They visit as many experts as
            tokens ** expert_alike tokens with independent choices.
        sharpness: exponent p of max(a, b) ≈ (a^p + b^p)^(1/p) between reading weights and computing.
        step_s, layer_s, sequence_s: fixed time of a step, of a layer, and of a sequence in a step.
        fp8_layer_s: further time of a layer that brings its activations into fp8.
        token_s: of a token outside of matrix products, times hidden size and layers (normalisation, residual, copies).
        sync_s, sync_sequence_s: further time of a step, and of a sequence in it, where scheduling does not overlap.
        expert_token_s: of one token's copy for one routed expert, as token_s: sorting tokens by expert and back.
        expert_layer_s: further time of a layer with routed experts.
        expert_ungraphed_layer_s: what a layer with routed experts adds to ungraphed_layer_s.
        stream_s: least time of a step per sequence in it: the front end cannot pass tokens on faster.
        eager_layer_s, ungraphed_layer_s: least time of a layer whose kernels are launched without a CUDA graph: with
            graphs disabled, and in a batch of a kind or size that was not captured.
        allreduce_s, allreduce_bandwidth: latency of one all-reduce, and share of the link's bandwidth.
        ingress_s, ingress_token_s: from the client's send to the queue and back, fixed and per token of the prompt.
        provenance: source of these numbers. The text starts with "data sheet only" if none was measured on this GPU.
    """

    weight_bandwidth: float
    kv_bandwidth: float
    kv_bandwidth_fp8: float
    matrix: float
    matrix_fp8: float
    attention: float
    expert_bandwidth: float
    expert_matrix: float
    expert_tile: float
    expert_alike: float
    sharpness: float
    step_s: float
    layer_s: float
    fp8_layer_s: float
    sequence_s: float
    token_s: float
    sync_s: float
    sync_sequence_s: float
    expert_token_s: float
    expert_layer_s: float
    expert_ungraphed_layer_s: float
    stream_s: float
    eager_layer_s: float
    ungraphed_layer_s: float
    allreduce_s: float
    allreduce_bandwidth: float
    ingress_s: float
    ingress_token_s: float
    provenance: str


def stored() -> dict[str, Any]:
    """The shipped file: `provenance` and, per engine, the numbers."""
    text = files("pytest_llmperf.emulator.cost").joinpath("coefficients.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def family_of(config: EngineConfig) -> str:
    """Which mixtures of experts share coefficients: engine, format of the experts, kind of attention, scheduling.

    "vllm fp8 full", "sglang fp8 latent", "vllm mxfp4 windowed"; "" for a dense model.
    """
    shape = config.shape
    if not shape.moe:
        return ""
    attention = "windowed" if shape.window_layers else "linear" if shape.linear_layers else "full"
    if shape.latent is not None:
        attention = "sparse" if shape.latent.top_k else "latent"
    form = "mxfp4" if shape.expert_bits else config.weights
    return f"{config.engine} {form} {attention}{'' if config.async_scheduling else ' sync'}"


def coefficients_for(
    engine: str, gpu: HardwareKind, family: str = "", fitted: str | None = None
) -> Coefficients:
    """The shipped numbers of an engine, for a GPU and a family of mixtures.

    A family without numbers has the numbers of its engine. `fitted` is a file of `llmperf fit`, whose numbers replace
    the shipped ones if it is of this engine.
    """
    data = stored()
    origin = data["provenance"]["summary"]
    if gpu.name not in _FITTED_GPUS:
        origin = f"data sheet only: not fitted on {gpu.name}; shares of its peaks were {origin}"
    numbers = data["engines"][engine] | data["families"].get(family, {})
    if fitted is not None:
        of_host = json.loads(Path(fitted).read_text(encoding="utf-8"))
        numbers = {**numbers, **(of_host["numbers"] if of_host["engine"] == engine else {})}
    return from_numbers(numbers, origin)


def digest_of(path: str) -> str:
    """The first eight hexadecimal digits of the SHA-256 of a file of fitted coefficients."""
    return sha256(Path(path).read_bytes()).hexdigest()[:8]


def numbers_of(coefficients: Coefficients) -> dict[str, float]:
    """Coefficients by name."""
    names = [field.name for field in fields(coefficients) if field.name != "provenance"]
    return {name: getattr(coefficients, name) for name in names}


def from_numbers(numbers: dict[str, float], provenance: str) -> Coefficients:
    """Coefficients by name; all of them must be there."""
    names = [field.name for field in fields(Coefficients) if field.name != "provenance"]
    return Coefficients(**{name: numbers[name] for name in names}, provenance=provenance)
