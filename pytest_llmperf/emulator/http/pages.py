"""Information pages of a server: models, version, configuration."""

from __future__ import annotations

from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.flags.tables import FLAGS
from pytest_llmperf.emulator.http.replies import Reply, json_reply


def models(launch: Launch, started_s: int) -> Reply:
    """GET /v1/models."""
    cards = [
        {
            "id": name,
            "object": "model",
            "created": started_s,
            "owned_by": launch.config.engine,
            "root": launch.model,
            "parent": None,
            "max_model_len": launch.config.max_model_len,
        }
        for name in launch.served_names
    ]
    return json_reply({"object": "list", "data": cards})


def version(launch: Launch) -> Reply:
    """GET /version."""
    return json_reply({"version": _version(launch), "emulated": launch.config.gpu.name})


def server_info(launch: Launch) -> Reply:
    """GET /server_info, in the form of the engine that is played."""
    return _sglang_server_info(launch) if launch.config.engine == "sglang" else _vllm_server_info(launch)


def _vllm_server_info(launch: Launch) -> Reply:
    """GET /server_info of vLLM in its development mode, with the emulated fields."""
    config, facts = launch.config, launch.facts
    graphs = "FULL_AND_PIECEWISE" if config.cuda_graphs else "NONE"
    resolved = {
        "model_config": {
            "model": launch.model,
            "served_model_name": launch.served_names[0],
            "max_model_len": config.max_model_len,
            "dtype": facts.get("dtype"),
            "enforce_eager": facts.get("enforce_eager"),
            "quantization": facts.get("quantization"),
        },
        "cache_config": {
            "block_size": config.block_size,
            "cache_dtype": facts.get("cache_dtype"),
            "enable_prefix_caching": config.prefix_caching,
            "gpu_memory_utilization": launch.utilization,
            "num_gpu_blocks": config.num_blocks,
        },
        "scheduler_config": {
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_num_seqs": config.max_num_seqs,
            "max_model_len": config.max_model_len,
            "enable_chunked_prefill": config.chunked_prefill,
            "async_scheduling": config.async_scheduling,
            "policy": config.policy,
        },
        "parallel_config": {
            "tensor_parallel_size": config.tensor_parallel,
            "pipeline_parallel_size": 1,
            "data_parallel_size": config.data_parallel,
            "enable_expert_parallel": config.expert_parallel,
        },
        "compilation_config": {"cudagraph_mode": graphs, "max_cudagraph_capture_size": config.max_graph_size},
        "speculative_config": facts.get("speculative_config"),
    }
    return json_reply({"vllm_config": resolved, "emulated": config.gpu.name})


def _sglang_server_info(launch: Launch) -> Reply:
    """GET /server_info and /get_server_info of SGLang: the resolved arguments and the scheduler's token limits."""
    config = launch.config
    arguments = {
        "model_path": launch.model,
        "served_model_name": launch.served_names[0],
        "tp_size": config.tensor_parallel,
        "dp_size": config.data_parallel,
        "pp_size": 1,
        "context_length": config.max_model_len,
        "mem_fraction_static": launch.utilization,
        "max_running_requests": config.max_num_seqs,
        "page_size": config.block_size,
        "schedule_policy": config.policy,
        "disable_overlap_schedule": not config.async_scheduling,
        **launch.facts,
    }
    tokens = config.num_blocks * config.block_size
    more = {"max_total_num_tokens": tokens, "max_req_input_len": min(config.max_model_len, tokens) - 1}
    return json_reply({**arguments, **more, "version": _version(launch), "emulated": config.gpu.name})


def sglang_model_info(launch: Launch) -> Reply:
    """GET /model_info of SGLang."""
    return json_reply({"model_path": launch.model, "tokenizer_path": launch.model, "is_generation": True})


def _version(launch: Launch) -> str:
    return f"{FLAGS[launch.config.engine].version}+emulated{launch.build}"
