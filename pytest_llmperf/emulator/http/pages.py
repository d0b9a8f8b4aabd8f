"""Information pages of a server: models, version, configuration, and LMCache's counters and controls."""

from __future__ import annotations

from urllib.parse import parse_qs

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.flags.tables import FLAGS
from pytest_llmperf.emulator.http.metrics_page import CONTENT_TYPE, Page
from pytest_llmperf.emulator.http.replies import Refusal, Reply, json_reply

LMCACHE_ROUTES = {"/lmcache/metrics", "/lmcache/cache/clear"}
_TIERS = {"l1": "cpu", "l2": "disk"}


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


def lmcache_page(deployment: Deployment) -> Reply:
    """LMCache's metrics page: queried tokens, hits by tier, chunks read from disk, and evictions."""
    hits = deployment.tier_hits
    looked_up = sum(tiers.looked_up_tokens for tiers in deployment.tiers)
    counted = {"requested": looked_up, "hit": sum(hits.values())}
    counted |= {f"hit_{tier}": hits.get(name, 0) for tier, name in _TIERS.items()}
    read = counted["hit_l2"] // deployment.tiers[0].chunk_tokens * deployment.config.tensor_parallel
    made_room = sum(store.evictions for store in deployment.stores if store.tier.name == _TIERS["l1"])
    rows = [(f"lookup_{name}_tokens", "Prompt tokens.", value) for name, value in counted.items()]
    rows += [
        ("l2_prefetch_load_completed_chunks", "Chunks that were read from disk.", read),
        ("l1_eviction_loop_ticks", "Looks whether room must be made.", 1 + counted["requested"]),
        ("l1_eviction_loop_triggered", "Times that room was made.", made_room),
    ]
    page = Page()
    for name, text, value in rows:
        page.add(f"lmcache_mp_{name}_total", "counter", text, [({}, value)])
    return Reply(200, page.body(), CONTENT_TYPE)


def clear_tier(deployment: Deployment, query: str) -> Reply:
    """POST /lmcache/cache/clear?tier=l1: empties that tier; one that is not there is empty."""
    (tier,) = parse_qs(query).get("tier", [""])
    if tier not in _TIERS:
        return Refusal(400, f"tier must be one of {', '.join(_TIERS)}", "Bad Request").reply()
    if _TIERS[tier] in deployment.tier_hits:
        deployment.clear_tiers(_TIERS[tier])
    return json_reply({"cleared": tier})
