"""The models that a name stands for: those of which a folder can be built, with their config.json."""

from __future__ import annotations

import json
from typing import Any

from pytest_llmperf import shapes
from pytest_llmperf.shapes import ModelShape, Quantization

_LLAMA_3_1 = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 128000, "eos_token_id": 128001,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}

# One factor for each of the 48 rotated pairs: head_dim 128, three quarters of it rotated.
_PHI_4_LONG_FACTORS = [
    1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649, 2.446418898,
    2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533, 5.984965424,
    6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651, 14.64173252,
    16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23, 32.6,
    32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77,
]

#: Name → what config.json has beside the dimensions.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _LLAMA_3_1,
    "llama-3.1-8b-gptq-int4": _LLAMA_3_1,
    "llama-3.1-8b-awq-int4": _LLAMA_3_1,
    "llama-3.1-70b": _LLAMA_3_1,
    "qwen3-8b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "bos_token_id": 151643, "eos_token_id": 151645,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "max_window_layers": 36, "sliding_window": None,
        "use_sliding_window": False,
    },
    "phi-4-mini": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "bos_token_id": 199999, "eos_token_id": 199999,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 4096, "sliding_window": 262144, "pad_token_id": 199999,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": _PHI_4_LONG_FACTORS},
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "bos_token_id": 1, "eos_token_id": 2,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "bos_token_id": 151643,
        "eos_token_id": 151645,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "max_window_layers": 48, "sliding_window": None,
        "use_sliding_window": False, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "intermediate_size": 6144, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "tiny": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 0, "eos_token_id": 1,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    },
}
SHAPES = {name: shapes.SHAPES[name] for name in CONFIGS}


def config_json(shape: ModelShape) -> str:
    """The text of config.json for a shape of the registry, in the form that model publishers use."""
    config = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0",  # without it transformers 5 suspects a faulty tokenizer, and says so
        "use_cache": True,
    }
    if shape.quantization is not None:
        config["quantization_config"] = quantization_config(shape.quantization)
    return json.dumps(config | CONFIGS[shape.name], indent=2, sort_keys=True) + "\n"


def quantization_config(quantization: Quantization) -> dict[str, Any]:
    """The section `quantization_config` of config.json, with the keys that publishers of checkpoints write.

    vLLM 0.26.0 reads from the headers of a GPTQ checkpoint which layers are quantised. Dummy weights have no headers,
    and vLLM would quantise no layer. So the section names the modules, as checkpoints of Optimum do.
    """
    common: dict[str, Any] = {"quant_method": quantization.method, "bits": quantization.bits,
                              "group_size": quantization.group_size}
    if quantization.method == "awq":
        return common | {"zero_point": quantization.zero_points, "version": "gemm", "modules_to_not_convert": None}
    modules = [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["self_attn.o_proj"],
               ["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]
    return common | {"sym": not quantization.zero_points, "desc_act": False, "true_sequential": True,
                     "modules_in_block_to_quantize": modules}
