"""Models known by name, and config.json for all others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_llmperf.shapes import SHAPES, Dtype, Latent, ModelShape, Quantization

_ALIASES = {
    "meta-llama/llama-3.1-8b": "llama-3.1-8b",
    "meta-llama/llama-3.1-8b-instruct": "llama-3.1-8b",
    "meta-llama/meta-llama-3.1-8b-instruct": "llama-3.1-8b",
    "hugging-quants/meta-llama-3.1-8b-instruct-gptq-int4": "llama-3.1-8b-gptq-int4",
    "hugging-quants/meta-llama-3.1-8b-instruct-awq-int4": "llama-3.1-8b-awq-int4",
    "meta-llama/llama-3.1-70b": "llama-3.1-70b",
    "meta-llama/llama-3.1-70b-instruct": "llama-3.1-70b",
    "meta-llama/llama-3.3-70b-instruct": "llama-3.1-70b",
    "qwen/qwen3-8b": "qwen3-8b",
    "qwen/qwen3-32b": "qwen3-32b",
    "qwen/qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen/qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen/qwen3-235b-a22b-fp8": "qwen3-235b-a22b",
    "qwen/qwen3.5-397b-a17b": "qwen3.5-397b-a17b",
    "microsoft/phi-4-mini-instruct": "phi-4-mini",
    "mistralai/mixtral-8x7b-instruct-v0.1": "mixtral-8x7b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "deepseek-ai/deepseek-r1": "deepseek-v3",
    "deepseek-ai/deepseek-v3": "deepseek-v3",
    "moonshotai/kimi-k2.5": "kimi-k2.5",
    "minimaxai/minimax-m2.5": "minimax-m2.5",
    "zhipuai/glm-5": "glm-5",
    "zai-org/glm-5": "glm-5",
}


class UnknownModel(ValueError):
    """Neither a known name nor a folder with a config.json that can be read."""


def read_shape(name_or_folder: str | Path) -> ModelShape:
    """The shape of a known model, or of a folder that holds config.json in Hugging Face form.

    Raises:
        UnknownModel: the model is unknown. The message lists the known models or the missing key of config.json.
    """
    name = str(name_or_folder).lower()
    shape = SHAPES.get(_ALIASES.get(name, name))
    if shape is not None:
        return shape
    path = Path(name_or_folder) / "config.json"
    if not path.is_file():
        raise UnknownModel(f"{name_or_folder}: not a folder with a config.json, and not one of {', '.join(SHAPES)}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnknownModel(f"{path}: {error}") from None
    try:
        return _from_config(str(name_or_folder), config.get("text_config", config))
    except KeyError as error:
        raise UnknownModel(f"{path} has no {error}") from None


def _from_config(name: str, config: dict[str, Any]) -> ModelShape:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 1
    moe = experts > 1
    intermediate = config.get("moe_intermediate_size") if moe else None
    quantization = config.get("quantization_config") or {}
    linear = sum(kind == "linear_attention" for kind in config.get("layer_types") or ())
    windowed = sum(kind == "sliding_attention" for kind in config.get("layer_types") or ())
    return ModelShape(
        name=name,
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=intermediate or config["intermediate_size"],
        vocab=config["vocab_size"],
        experts=experts,
        active_experts=config["num_experts_per_tok"] if moe else 1,
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=str(config.get("model_type", "")).startswith(("qwen3", "minimax")),
        max_positions=config.get("max_position_embeddings", 131072),
        shared_experts=config.get("n_shared_experts") or 0,
        dense_layers=(config.get("first_k_dense_replace") or 0) if moe else 0,
        dense_intermediate=config.get("intermediate_size") or 0,
        latent=_latent(config),
        window=(config.get("sliding_window") or 0) if windowed else 0,
        window_layers=windowed,
        linear_layers=linear,
        published=_published(quantization),
        expert_bits=4.25 if quantization.get("quant_method") == "mxfp4" else None,
        quantization=_quantization(quantization),
    )


def _latent(config: dict[str, Any]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        query_rank=config.get("q_lora_rank") or 0,
        kv_rank=config["kv_lora_rank"],
        rope=config["qk_rope_head_dim"],
        nope=config["qk_nope_head_dim"],
        value=config["v_head_dim"],
        top_k=config.get("index_topk") or 0,
    )


def _quantization(section: dict[str, Any]) -> Quantization | None:
    """Weights of GPTQ and AWQ. GPTQ's weights are symmetric by default and then have no zero points."""
    method = section.get("quant_method")
    if method not in ("gptq", "awq"):
        return None
    return Quantization(method, section.get("zero_point", not section.get("sym", True)), section["bits"],
                        section["group_size"])


def _published(quantization: dict[str, Any]) -> Dtype:
    quantized = json.dumps(quantization).lower()
    return "fp8" if "fp8" in quantized or "float-quantized" in quantized else "bfloat16"
