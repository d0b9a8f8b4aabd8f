"""vLLM 0.26–0.33: arguments, environment, routes, counters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pytest_llmperf.engines.adapter import EngineAdapter, Placement
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.json_answers import json_object, section
from pytest_llmperf.engines.lmcache.settings import CONNECTORS, in_process_settings
from pytest_llmperf.engines.spec import command_line, flags_of
from pytest_llmperf.errors import EngineError
from pytest_llmperf.metrics.server import TIERS
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.model.lmcache import LMCache
from pytest_llmperf.model.ranks import gpus_of
from pytest_llmperf.shapes import ModelShape
from pytest_llmperf.telemetry.prometheus import Scrape

COUNTERS = MappingProxyType({
    "prompt_tokens": "vllm:prompt_tokens_total",
    "prompt_tokens_cached": "vllm:prompt_tokens_cached_total",
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "external_cache_queries": "vllm:external_prefix_cache_queries_total",
    "external_cache_hits": "vllm:external_prefix_cache_hits_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "admission_rejections": "vllm:admission_rejections_total",
    "kv_loaded_bytes": "vllm:kv_offload_load_bytes_total",
    "kv_stored_bytes": "vllm:kv_offload_store_bytes_total",
    "kv_tier_read_bytes": "vllm:kv_offload_tiering_read_bytes_total",
    "kv_tier_written_bytes": "vllm:kv_offload_tiering_write_bytes_total",
    "transferred_bytes": "vllm:nixl_bytes_transferred_sum",
    "transfers": "vllm:nixl_bytes_transferred_count",
    "transfer_s_sum": "vllm:nixl_xfer_time_seconds_sum",
    "failed_transfers": "vllm:nixl_num_failed_transfers_total",
    "expired_transfers": "vllm:nixl_num_kv_expired_reqs_total",
    "requests_finished": "vllm:request_success_total",
    "engine_steps": "vllm:iteration_tokens_total_count",
    "queue_time_s_sum": "vllm:request_queue_time_seconds_sum",
    "queue_time_count": "vllm:request_queue_time_seconds_count",
    "tpot_s_sum": "vllm:request_time_per_output_token_seconds_sum",
    "tpot_count": "vllm:request_time_per_output_token_seconds_count",
    "spec_drafts": "vllm:spec_decode_num_drafts_total",
    "spec_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "spec_accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
})
SPEC_COUNTERS = ("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens")
KV_USAGE = "vllm:kv_cache_usage_perc"
GAUGES = MappingProxyType({
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
})
CACHE_FACTS = ("block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching", "kv_cache_size_tokens")
ATTENTION_BLOCK = "effective_attention_block_size"  # of a hybrid model, whose other layers have blocks of their own
CONFIG_FACTS = {
    "scheduler_config": ("max_num_batched_tokens", "max_num_seqs", "async_scheduling"),
    "parallel_config": (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
    ),
    "model_config": ("max_model_len", "dtype", "enforce_eager", "quantization"),
}

# On a CPU the default executor's workers spin and starve the client: whole streams arrive in one read.
CPU_ENV = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
CPU_FLAGS = {"dtype": "bfloat16", "enforce_eager": True}
# Without it vLLM kills its engine process before that has told LMCache, which then holds the dead one's KV cache for
# two minutes: 115,855 MiB of an H200, where no engine starts. Below the grace that we give ourselves.
LMCACHE_SERVER_FLAGS = {"shutdown_timeout": 10}
NO_GRAPHS = (0, "NONE")  # of compilation_config.cudagraph_mode, as JSON shows it
SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
SERVER_INFO_TIMEOUT_S = 60.0  # vLLM also collects facts of the machine, by programs that took over 10 s on a busy one
MOVING_TIMEOUT_S = 120.0  # a server of 33 GB in host memory needed 11 s to fall asleep and 0.4 s to wake up
MULTICAST = ("NCCL_NVLS_ENABLE", "VLLM_ALLREDUCE_USE_SYMM_MEM")


class VllmAdapter(EngineAdapter):
    """The vLLM server, driven through its OpenAI routes and Prometheus page."""

    api = 1
    name = "vllm"
    emulated = True
    program: tuple[str, ...] = ("vllm.entrypoints.cli.main", "serve")
    context_flag = "max_model_len"
    two_largest: Mapping[str, object] = MappingProxyType({"logprobs": 2, "return_tokens_as_token_ids": True})
    counter_names = COUNTERS
    gauge_names = GAUGES
    tells_lmcache = True  # unless a second SIGTERM, ours beside its API server's, ends its engine process meanwhile
    sleep_flags: Mapping[str, Flag] = MappingProxyType({"enable_sleep_mode": True})
    memory_in_log: Mapping[str, str] = MappingProxyType({
        "weights": r"Model loading took ([\d.]+) GiB",
        "graphs": r"Graph capturing finished in .* took ([\d.]+) GiB",
        "kv": r"Available KV cache memory: ([\d.]+) GiB",
    })

    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        module, command = self.program
        words = ["-m", module, command] if placement.environment.is_python else [command]
        flags = self._flags(spec, placement)
        return [*words, placement.model.path_or_hub_id, *command_line(flags)]

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:
        env = {
            "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONHASHSEED": "0",        # block hashes must agree between processes and restarts
        }
        if placement.kind == "cpu":
            env |= CPU_ENV
            if gpus_of(flags_of(spec)) > 1:
                del env["VLLM_ENABLE_V1_MULTIPROCESSING"]
        if spec.lmcache is not None:
            env |= in_process_settings(spec.lmcache)
        bundle = placement.environment.pythonpath
        if bundle is not None and not (bundle / "flashinfer").exists():
            env[SAMPLER] = "0"
        if os.environ.get("NCCL_NVLS_ENABLE") == "0":  # a host that forbids NVLink multicast
            env["VLLM_ALLREDUCE_USE_SYMM_MEM"] = "0"
        return env

    def host_variables(self, spec: EngineSpec, placement: Placement) -> tuple[str, ...]:
        if placement.kind == "cpu":
            return ()
        return (SAMPLER, *(MULTICAST if gpus_of(flags_of(spec)) > 1 else ()))

    def ready(self, client: httpx.Client) -> bool:  # noqa: ARG002 - it listens when it can serve
        return True

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:
        response = client.post("/reset_prefix_cache", params={"reset_external": str(external).lower()})
        if response.status_code == 404:
            return False
        if response.status_code != 200 or json_object(response).get("success", True) is not True:
            raise EngineError(
                f"vLLM did not reset its prefix cache ({response.status_code} {response.text[:100]!r}): "
                "blocks are still held. Wait until no request runs, or measure with fresh=True."
            )
        return True

    def draft_model(self, spec: EngineSpec) -> str | None:
        name = _speculation(spec).get("model")
        return name if isinstance(name, str) else None

    def with_draft_model(self, spec: EngineSpec, path: str) -> EngineSpec:
        return spec.with_flags(speculative_config={**_speculation(spec), "model": path})

    def tiers_in_one(self, spec: EngineSpec, keep: str) -> str | None:
        flags = flags_of(spec)
        offloads = bool(flags.get("kv_offloading_size")) and flags.get("kv_offloading_backend") != "lmcache"
        if keep == "engine" and (offloads or "Offload" in str(flags.get("kv_transfer_config"))):
            return 'vLLM empties offloaded KV cache only together with GPU memory. Keep "l1", too, or neither tier.'
        return None

    def share_flags(
        self, spec: EngineSpec, shape: ModelShape | None, kv_bytes: int, share: float  # noqa: ARG002 - bytes need no shape
    ) -> Mapping[str, Flag]:
        """The flags of a KV cache of a stated size. vLLM refuses to start on a GPU with less free memory than
        `gpu_memory_utilization`, so both are set."""
        return {"gpu_memory_utilization": share, "kv_cache_memory_bytes": kv_bytes}

    def sleep(self, client: httpx.Client) -> None:
        _set_sleeping(client, sleeping=True)

    def wake(self, client: httpx.Client) -> None:
        _set_sleeping(client, sleeping=False)

    def profiler_flags(self, folder: Path, steps: int) -> Mapping[str, Flag]:
        """vLLM has the routes of its profiler only with this flag, and reads no VLLM_TORCH_PROFILER_DIR any more."""
        config = {"profiler": "torch", "torch_profiler_dir": str(folder), "torch_profiler_with_stack": False,
                  "torch_profiler_dump_cuda_time_total": False, "ignore_frontend": True, "max_iterations": steps}
        return {"profiler_config": config}

    def profiler_request(self, folder: Path, steps: int) -> Mapping[str, object]:  # noqa: ARG002 - the flags say both
        return {}

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        values = dict(super().counters(scrape))
        positions = scrape.by_label("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
        values |= {f"spec_accepted_pos_{position}": value for position, value in positions.items()}
        tiers = scrape.by_label("vllm:prompt_tokens_cached_by_source_total", "source")
        values |= {f"cached_tokens_{tier}": tiers[tier] for tier in TIERS if tier in tiers}
        sources = scrape.by_label("vllm:prompt_tokens_by_source_total", "source")
        if "local_compute" in sources:
            values["prompt_tokens_computed"] = sources["local_compute"]
        if "generation_tokens" in values and "spec_draft_tokens" not in values:
            values |= dict.fromkeys(SPEC_COUNTERS, 0.0)  # vLLM shows them only where it speculates
        return values

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        usage = scrape.largest(KV_USAGE)
        return dict(super().gauges(scrape)) | ({} if usage is None else {"kv_usage": usage})

    def facts(self, scrape: Scrape) -> Mapping[str, str]:
        labels = scrape.labels("vllm:cache_config_info")
        facts = {name: labels[name] for name in CACHE_FACTS if labels.get(name, "None") != "None"}
        attention = labels.get(ATTENTION_BLOCK, "None")
        return facts | ({ATTENTION_BLOCK: attention} if attention not in ("None", facts.get("block_size")) else {})

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:
        answer = json_object(client.get("/server_info", params={"config_format": "json"},
                                        timeout=SERVER_INFO_TIMEOUT_S))
        config = section(answer, "vllm_config")
        values = {name: section(config, part).get(name) for part, names in CONFIG_FACTS.items() for name in names}
        if section(config, "compilation_config").get("cudagraph_mode") in NO_GRAPHS:
            values["enforce_eager"] = True  # other flags switch graphs off, too, and leave this one as it was
        return {name: str(value) for name, value in values.items() if value is not None}

    def _flags(self, spec: EngineSpec, placement: Placement) -> dict[str, object]:
        defaults: dict[str, object] = {
            "host": "127.0.0.1",
            "port": placement.port,
            "served_model_name": placement.served_name,
            "generation_config": "vllm",  # a model's own sampling defaults would change what is measured
            "enable_prompt_tokens_details": True,
            "disable_uvicorn_access_log": True,
            "seed": 0,
        }
        if placement.model.weights == "dummy":
            defaults["load_format"] = "dummy"
        if placement.kind == "cpu":
            defaults |= CPU_FLAGS
            if gpus_of(flags_of(spec)) == 1:
                defaults["distributed_executor_backend"] = "uni"
        if spec.lmcache is not None:
            defaults["kv_transfer_config"] = _connector(spec.lmcache, placement)
            if not spec.lmcache.in_process:
                defaults |= LMCACHE_SERVER_FLAGS
        return defaults | flags_of(spec)


VLLM = VllmAdapter()


def _speculation(spec: EngineSpec) -> Mapping[str, object]:
    config = flags_of(spec).get("speculative_config")
    return config if isinstance(config, Mapping) else {}


def _set_sleeping(client: httpx.Client, *, sleeping: bool) -> None:
    route, params = ("/sleep", {"level": 1}) if sleeping else ("/wake_up", {})
    response = client.post(route, params=params, timeout=MOVING_TIMEOUT_S)
    if response.status_code != 200 or json_object(client.get("/is_sleeping")).get("is_sleeping") is not sleeping:
        raise EngineError(f"vLLM does not {'sleep' if sleeping else 'wake up'}: {route} answered "
                          f"{response.status_code} {response.text[:100]!r}. Read the reason in its log.")


def _connector(lmcache: LMCache, placement: Placement) -> dict[str, object]:
    """What makes vLLM use LMCache."""
    connector: dict[str, object] = {"kv_connector": CONNECTORS[lmcache.in_process], "kv_role": "kv_both"}
    if placement.lmcache is not None:
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": placement.lmcache.port}
        connector["kv_connector_extra_config"] = extra
    return connector
