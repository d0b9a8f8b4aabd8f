"""SGLang 0.5.15–0.5.23: arguments, environment, routes, counters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pytest_llmperf.engines.adapter import EngineAdapter, Placement
from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.json_answers import json_object
from pytest_llmperf.engines.control.reader import COMPLETIONS, completion_body
from pytest_llmperf.engines.lmcache.settings import in_process_settings
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.spec import command_line, flags_of
from pytest_llmperf.errors import EngineError, SpecError
from pytest_llmperf.model.engine import EngineSpec, Flag
from pytest_llmperf.model.ranks import TENSOR, gpus_of, size_of
from pytest_llmperf.model.request import Request
from pytest_llmperf.shapes import ModelShape
from pytest_llmperf.telemetry.prometheus import Scrape

GENERATE = "/generate"
HICACHE = ("enable_hierarchical_cache", "enable_hicache")
MOVING_TIMEOUT_S = 120.0  # to move weights between GPU and host
FLUSH_TIMEOUT_S = 5  # how long a flush waits until requests and stores end

COUNTERS = {
    "prompt_tokens": "sglang:prompt_tokens_total",
    "generation_tokens": "sglang:generation_tokens_total",
    "requests_finished": "sglang:num_requests_total",
    "spec_drafts": "sglang:spec_verify_calls_total",
    "expert_balance_sum": "sglang:eplb_balancedness_sum",  # one value per step, from the first rank of a replica
    "expert_balance_steps": "sglang:eplb_balancedness_count",
    "process_start_time_s": "process_start_time_seconds",
    "kv_loaded_bytes": "sglang:load_back_bytes_total",
    "kv_stored_bytes": "sglang:hicache_backup_bytes_total",
}
OF_THE_SCHEDULER = {
    "preemptions": "sglang:num_retracted_requests_total",
    "queue_time_s_sum": "sglang:queue_time_seconds_sum",
    "queue_time_count": "sglang:queue_time_seconds_count",
}
CACHED_TOKENS = "sglang:cached_tokens_total"
KV_USAGE = "sglang:token_usage"
GAUGES = {
    "running": "sglang:num_running_reqs",
    "waiting": "sglang:num_queue_reqs",
}
FACTS = (
    "version", "context_length", "chunked_prefill_size", "max_prefill_tokens", "max_running_requests", "page_size",
    "schedule_policy", "disable_radix_cache", "disable_overlap_schedule", "tp_size", "dp_size", "pp_size", "dtype",
    "kv_cache_dtype", "quantization", "attention_backend", "speculative_algorithm", "speculative_num_draft_tokens",
)  # fmt: skip

# Where one of its processes has died, SGLang waits 65 s for dumps of the others before it ends, and answers nothing.
AT_ONCE_WHEN_IT_CRASHES = {"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}

CPU_FLAGS: dict[str, object] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_overlap_schedule": True,
    "mem_fraction_static": 0.1,
    "max_total_tokens": 40000,
}
FLASHINFER = "SGLANG_IS_FLASHINFER_AVAILABLE"
# Flags of a server without FlashInfer. The attention backend is one of its conditions.
WITHOUT_FLASHINFER: dict[str, object] = {
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_prefill_cuda_graph": True,
    "cuda_graph_max_bs_decode": 64,
}


class SglangAdapter(EngineAdapter):
    """The SGLang server, driven through its OpenAI routes, or through /generate where it has no tokenizer."""

    api = 1
    name = "sglang"
    emulated = True
    program: tuple[str, ...] = ("sglang.launch_server",)
    context_flag = "context_length"
    sizes_by_free_memory = True
    two_largest: Mapping[str, object] = MappingProxyType({"return_logprob": True, "top_logprobs_num": 2})
    sleep_flags: Mapping[str, Flag] = MappingProxyType({"enable_memory_saver": True})
    memory_in_log: Mapping[str, str] = MappingProxyType({
        "weights": r"Load weight end\..*mem usage=([\d.]+) GB",
        "graphs": r"[Cc]apture .*graph end\..*mem usage=([\d.]+) GB",
        "kv": r"K size: ([\d.]+) GB, V size: ([\d.]+) GB",
    })

    def arguments(self, spec: EngineSpec, placement: Placement) -> list[str]:
        command = ["-m", *self.program] if placement.environment.is_python else ["serve"]
        flags = self._flags(spec, placement)
        return [*command, "--model-path", placement.model.path_or_hub_id, *command_line(flags)]

    def environment(self, spec: EngineSpec, placement: Placement) -> dict[str, str]:
        env = {
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # /health reports, and generates nothing
            "PYTHONHASHSEED": "0",
            **AT_ONCE_WHEN_IT_CRASHES,
        }
        if spec.lmcache is not None:
            env |= in_process_settings(spec.lmcache)
        if _lacks_flashinfer(placement.environment):
            env[FLASHINFER] = "false"
        if placement.kind == "cpu":
            env["OMP_NUM_THREADS"] = "1"
            if (ranks := size_of(flags_of(spec), TENSOR)) > 1:
                env["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in range(ranks))
        return env

    def host_variables(self, spec: EngineSpec, placement: Placement) -> tuple[str, ...]:
        if placement.kind == "cpu":
            return ()
        return (FLASHINFER, *(("NCCL_NVLS_ENABLE",) if gpus_of(flags_of(spec)) > 1 else ()))

    def post(self, spec: EngineSpec, request: Request, model: str) -> tuple[str, bytes]:
        continued = isinstance(request.prompt, tuple) and (request.continues or request.answer_used)
        # The OpenAI routes answer with text: without a tokenizer there is none, and a next turn needs token ids.
        if continued or flags_of(spec).get("skip_tokenizer_init") is True:
            return GENERATE, generate_body(request)
        return COMPLETIONS, completion_body(request, model)

    def reset_cache(self, client: httpx.Client, *, external: bool) -> bool:  # noqa: ARG002 - it empties all it has
        response = client.post("/flush_cache", params={"timeout": FLUSH_TIMEOUT_S})
        if response.status_code == 404:
            return False
        if response.status_code != 200:
            raise EngineError(
                f"SGLang did not flush its cache ({response.status_code} {response.text[:100]!r}): requests still run. "
                "Wait until no request runs, or measure with fresh=True."
            )
        return True

    def draft_model(self, spec: EngineSpec) -> str | None:
        name = flags_of(spec).get("speculative_draft_model_path")
        return name if isinstance(name, str) else None

    def with_draft_model(self, spec: EngineSpec, path: str) -> EngineSpec:
        return spec.with_flags(speculative_draft_model_path=path)

    def tiers_in_one(self, spec: EngineSpec, keep: str) -> str | None:  # noqa: ARG002 - neither without the other
        if any(flags_of(spec).get(name) is True for name in HICACHE):
            return 'SGLang empties its own host memory (HiCache) and its cache together. Keep both "engine" and "l1".'
        return None

    def share_flags(
        self, spec: EngineSpec, shape: ModelShape | None, kv_bytes: int, share: float  # noqa: ARG002 - the tokens decide
    ) -> Mapping[str, Flag] | None:
        """Tensor parallelism splits the KV heads over the GPUs. Each GPU keeps at least one head."""
        if shape is None:
            return None
        heads_on_each_gpu = max(1, shape.kv_heads // size_of(flags_of(spec), TENSOR))
        return {"max_total_tokens": kv_bytes * shape.kv_heads // (shape.kv_bytes_per_token() * heads_on_each_gpu)}

    def sleep(self, client: httpx.Client) -> None:
        """SGLang has no route that reports whether its memory is released."""
        _move_memory(client, "/release_memory_occupation")

    def wake(self, client: httpx.Client) -> None:
        _move_memory(client, "/resume_memory_occupation")

    def profiler_flags(self, folder: Path, steps: int) -> Mapping[str, Flag]:  # noqa: ARG002 - a request names both
        return {}

    def profiler_request(self, folder: Path, steps: int) -> Mapping[str, object]:
        return {"output_dir": str(folder), "num_steps": steps, "with_stack": False, "record_shapes": False}

    def counters(self, scrape: Scrape) -> Mapping[str, float]:
        values = {name: scrape.counter(sample) for name, sample in COUNTERS.items()}
        values |= {name: _of_first_ranks(scrape, sample) for name, sample in OF_THE_SCHEDULER.items()}
        if values["generation_tokens"] is None:
            return {name: value for name, value in values.items() if value is not None}
        values |= _cached(scrape, values["prompt_tokens"])
        values["preemptions"] = values["preemptions"] or 0.0  # absent until the first
        values |= _speculation(values, scrape.largest("sglang:spec_num_draft_tokens"))
        return {name: value for name, value in values.items() if value is not None}

    def gauges(self, scrape: Scrape) -> Mapping[str, float]:
        values = {name: _of_first_ranks(scrape, sample) for name, sample in GAUGES.items()}
        values["kv_usage"] = scrape.largest(KV_USAGE)
        return {name: value for name, value in values.items() if value is not None}

    def resolved(self, client: httpx.Client) -> Mapping[str, str]:
        answer = _server_info(client)
        values = {name: str(answer[name]) for name in FACTS if answer.get(name) is not None}
        sizes = ("page_size", "max_total_num_tokens", "chunked_prefill_size")
        page, tokens, chunk = (answer.get(name) for name in sizes)
        if isinstance(page, int) and page > 0:
            values["block_size"] = str(page)
            if isinstance(tokens, int):
                values["num_gpu_blocks"], values["kv_cache_size_tokens"] = str(tokens // page), str(tokens)
        if isinstance(chunk, int) and chunk > 0:  # -1: prompts are not divided
            values["max_num_batched_tokens"] = str(chunk)
        if isinstance(experts := answer.get("ep_size"), int):
            values["enable_expert_parallel"] = str(experts > 1)
        if answer.get("enable_dp_attention"):  # the chunk is that of one rank, and 0.5.23 moves dp_size to attn_dp_size
            for name in ("chunked_prefill_size", "dp_size"):
                values.pop(name, None)
        return values

    def loaded(self, client: httpx.Client) -> str | None:
        path = _server_info(client).get("model_path")
        return None if path is None else str(path)

    def _flags(self, spec: EngineSpec, placement: Placement) -> dict[str, object]:
        defaults: dict[str, object] = {
            "host": "127.0.0.1",
            "port": placement.port,
            "served_model_name": placement.served_name,
            "sampling_defaults": "openai",  # a model's own sampling defaults would change what is measured
            "enable_metrics": True,
            "enable_cache_report": True,
            "log_level_http": "warning",
            "random_seed": 0,
        }
        if placement.model.weights == "dummy":
            defaults["load_format"] = "dummy"
        if placement.kind == "cpu":
            defaults |= CPU_FLAGS
        elif _lacks_flashinfer(placement.environment):
            defaults |= WITHOUT_FLASHINFER
        if spec.lmcache is not None:
            defaults |= _lmcache_flags(spec, placement)
        return defaults | flags_of(spec)


SGLANG = SglangAdapter()


def _lacks_flashinfer(environment: Environment) -> bool:
    """Whether the environment is an unpacked bundle without a usable FlashInfer."""
    bundle = environment.pythonpath
    return environment.is_python and bundle is not None and not list(bundle.glob("flashinfer_python-*.dist-info"))


def _move_memory(client: httpx.Client, route: str) -> None:
    response = client.post(route, json={}, timeout=MOVING_TIMEOUT_S)
    if response.status_code != 200:
        raise EngineError(f"SGLang does not move its memory: {route} answered {response.status_code} "
                          f"{response.text[:100]!r}. Read the reason in its log.")


def generate_body(request: Request) -> bytes:
    """JSON body of a streamed native generation of exactly `request.output_tokens` tokens."""
    prompt = {"input_ids": list(request.prompt)} if isinstance(request.prompt, tuple) else {"text": request.prompt}
    sampling = {"max_new_tokens": request.output_tokens, "ignore_eos": True, "temperature": 0}
    return json.dumps(prompt | {"sampling_params": sampling, "stream": True}, separators=(",", ":")).encode()


def _server_info(client: httpx.Client) -> dict[str, object]:
    """The arguments that the server resolved. Some builds before 0.5.23 know only the older route."""
    return json_object(client.get("/server_info")) or json_object(client.get("/get_server_info"))


def _of_first_ranks(scrape: Scrape, sample: str) -> float | None:
    """Sum of a counter over the data-parallel ranks. A data-parallel rank has several tensor-parallel ranks, which may
    all report the same counter, so only the first one counts.

    Under DP attention tp_rank continues over the data-parallel ranks, so the first rank of the second group is not 0.
    With priorities the page has a sample per priority and their sum, which has no priority label; only the sum counts.
    """
    groups: dict[str, dict[tuple[int, int], float]] = {}
    for rank_sample in scrape.samples:
        if rank_sample.name == sample and not rank_sample.labels.get("priority"):
            rank = int(rank_sample.labels.get("pp_rank", 0)), int(rank_sample.labels.get("tp_rank", 0))
            ranks = groups.setdefault(rank_sample.labels.get("dp_rank", ""), {})
            ranks[rank] = ranks.get(rank, 0.0) + rank_sample.value
    return sum(ranks[min(ranks)] for ranks in groups.values()) if groups else None


def _cached(scrape: Scrape, prompt_tokens: float | None) -> dict[str, float | None]:
    """Cached prompt tokens by source. SGLang shows a source only after its first hit."""
    by_source = scrape.by_label(CACHED_TOKENS, "cache_source")
    total = by_source.pop("total", None) if by_source else scrape.counter(CACHED_TOKENS)
    known = bool(by_source) or total is None  # a total without sources says nothing of the tiers
    device = by_source.pop("device", 0.0)
    tiers = {"device": device, "host": by_source.get("host", 0.0),
             "disk": sum(value for name, value in by_source.items() if name.startswith("storage"))}
    external: float | None = sum(by_source.values())  # host memory (HiCache) and storage (LMCache among others)
    if total is not None and total > device + (external or 0.0):
        external = None  # some of them name no source
    return {
        "prompt_tokens_cached": device + (external or 0.0) if total is None else total,
        "external_cache_hits": external,
        "external_cache_queries": None if prompt_tokens is None else prompt_tokens - device,
        **({f"cached_tokens_{tier}": value for tier, value in tiers.items()} if known else {}),
    }


def _speculation(counters: Mapping[str, float | None], draft_tokens: float | None) -> dict[str, float | None]:
    """Drafts and what came of them. SGLang counts verification steps; the rest follows from its tokens.

    Every request has one token of its prefill, and every step one that no draft is needed for.
    """
    steps, tokens, requests = (counters[name] for name in ("spec_drafts", "generation_tokens", "requests_finished"))
    if tokens is None or not steps:
        return {"spec_drafts": 0.0, "spec_draft_tokens": 0.0, "spec_accepted_tokens": 0.0}
    drafted = None if not draft_tokens else steps * (draft_tokens - 1)  # the first is the root, not a guess
    return {"spec_draft_tokens": drafted, "spec_accepted_tokens": tokens - (requests or 0.0) - steps}


def _lmcache_flags(spec: EngineSpec, placement: Placement) -> dict[str, object]:
    if spec.lmcache is not None and spec.lmcache.in_process:
        raise SpecError("sglang(…).with_lmcache(in_process=True): SGLang knows LMCache as a server only. Leave it out.")
    values: dict[str, object] = {"enable_lmcache": True}
    if placement.lmcache is not None:
        values["lmcache_config_file"] = str(placement.lmcache.launch.config_file)
    return values
