"""What the emulator does with the flags of the engines; names, types, defaults and choices come from the releases."""

from __future__ import annotations

from pytest_llmperf.emulator.flags.parser import EngineFlags

METHODS = {"EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp", "STANDALONE": "draft_model", "NGRAM": "ngram"}
FP8_KV = {"vllm": ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head"), "sglang": ("fp8_e4m3", "fp8_e5m2")}
_HALF = ("auto", "bfloat16", "float16", "half")

VLLM = EngineFlags(
    engine="vllm",
    version="0.32.0",
    effective=(
        "model_tag", "model", "served-model-name", "host", "port", "max-model-len", "max-num-batched-tokens",
        "max-num-seqs", "block-size", "gpu-memory-utilization", "kv-cache-memory-bytes", "num-gpu-blocks-override",
        "kv-cache-dtype", "dtype", "quantization", "tensor-parallel-size", "data-parallel-size",
        "pipeline-parallel-size", "scheduling-policy", "performance-mode", "optimization-level",
        "compilation-config", "cudagraph-capture-sizes", "max-cudagraph-capture-size", "speculative-config",
        "spec-method", "spec-model", "spec-tokens", "kv-offloading-size", "kv-offloading-backend",
        "kv-transfer-config", "stream-interval", "long-prefill-token-threshold", "disable-log-stats",
        "enforce-eager", "scheduler-reserve-full-isl", "enable-prefix-caching", "enable-chunked-prefill",
        "async-scheduling", "enable-expert-parallel", "enable-prompt-tokens-details", "enable-force-include-usage",
        "load-format", "skip-tokenizer-init",
    ),
    resolved={
        "model": None, "host": "127.0.0.1", "block_size": 16, "compilation_config": {},
        "enable_prefix_caching": True, "enable_chunked_prefill": True,
    },
    from_zero=("port", "long-prefill-token-threshold", "max-cudagraph-capture-size", "cudagraph-capture-sizes",
               "kv-cache-memory-bytes"),
    only={
        "pipeline_parallel_size": (1,), "scheduling_policy": ("fcfs",), "stream_interval": (1,),
        "long_prefill_token_threshold": (0,), "dtype": _HALF, "quantization": (None, "fp8"),
        "kv_cache_dtype": ("auto", "bfloat16", *FP8_KV["vllm"]), "scheduler_reserve_full_isl": (True,),
    },
    harmless=(
        "disable-uvicorn-access-log", "disable-fastapi-docs", "enable-log-requests", "enable-log-outputs",
        "enable-log-deltas", "log-error-stack", "enable-server-load-tracking", "enable-request-id-headers",
        "enable-offline-docs", "trust-remote-code", "use-tqdm-on-load", "enable-auto-tool-choice",
        "enable-tokenizer-info-endpoint", "kv-cache-metrics", "cudagraph-metrics", "enable-mfu-metrics",
        "enable-logging-iteration-details", "aggregate-engine-logging", "fail-on-environ-validation",
        "jit-monitor-verbose", "disable-hybrid-kv-cache-manager", "disable-cascade-attn",
        "enable-flashinfer-autotune", "return-tokens-as-token-ids", "disable-custom-all-reduce", "numa-bind",
        "enable-per-request-metrics", "allow-credentials", "ray-workers-use-nsight",
        "enable-layerwise-nvtx-tracing", "language-model-only", "enable-sleep-mode", "seed",
        "generation-config", "override-generation-config", "uvicorn-log-level", "log-level", "log-config-file",
        "disable-access-log-for-endpoints", "tokenizer", "tokenizer-mode", "tokenizer-revision", "revision",
        "code-revision", "download-dir", "config-format", "hf-config-path", "hf-token", "model-impl",
        "max-logprobs", "logprobs-mode", "distributed-executor-backend", "master-addr", "master-port",
        "distributed-timeout-seconds", "data-parallel-backend", "data-parallel-address", "data-parallel-rpc-port",
        "prefix-caching-hash-algo", "kv-cache-metrics-sample", "max-log-len", "shutdown-timeout", "chat-template",
        "chat-template-content-format", "response-role", "tool-call-parser", "reasoning-parser",
        "attention-backend", "attention-config", "safetensors-load-strategy", "model-loader-extra-config",
        "pt-load-map-location", "max-parallel-loading-workers", "otlp-traces-endpoint",
        "show-hidden-metrics-for-version", "jit-monitor-mode", "root-path", "allowed-origins", "allowed-methods",
        "allowed-headers", "runner", "convert", "fingerprint-mode", "fingerprint-value",
        "h11-max-incomplete-event-size", "h11-max-header-count", "profiler-config", "structured-outputs-config",
        "kernel-config", "moe-backend", "linear-backend", "additional-config", "renderer-num-workers",
        "all2all-backend", "expert-placement-strategy", "sse-keep-alive-interval",
        "per-request-spec-decode-metrics", "collect-detailed-traces", "ignore-patterns", "numa-bind-nodes",
        "numa-bind-cpus", "middleware",
    ),
)  # fmt: skip

SGLANG = EngineFlags(
    engine="sglang",
    version="0.5.23",
    effective=(
        "model-path", "load-format", "served-model-name", "host", "port", "context-length", "mem-fraction-static",
        "max-running-requests", "max-total-tokens", "chunked-prefill-size", "max-prefill-tokens",
        "schedule-conservativeness", "schedule-policy", "page-size", "kv-cache-dtype", "dtype", "quantization",
        "tp-size", "dp-size", "pp-size", "ep-size", "cuda-graph-max-bs-decode", "cuda-graph-backend-decode",
        "speculative-algorithm", "speculative-draft-model-path", "speculative-num-steps", "speculative-eagle-topk",
        "speculative-num-draft-tokens", "hicache-ratio", "hicache-size", "hicache-storage-backend",
        "hicache-write-policy", "radix-eviction-policy", "load-balance-method", "lmcache-config-file",
        "stream-interval", "cuda-graph-config", "disable-radix-cache", "disable-cuda-graph",
        "disable-overlap-schedule", "enable-mixed-chunk", "enable-metrics", "enable-cache-report",
        "incremental-streaming-output", "skip-tokenizer-init", "enable-lmcache", "enable-hierarchical-cache",
    ),
    resolved={
        "page_size": 1, "cuda_graph_backend_decode": "full", "speculative_eagle_topk": 1, "hicache_ratio": 2.0,
        "disable_cuda_graph": False,
    },
    from_zero=("port", "chunked-prefill-size", "hicache-size"),
    only={
        "pp_size": (1,), "stream_interval": (1,), "speculative_eagle_topk": (1,), "cuda_graph_config": (None,),
        "dtype": _HALF, "quantization": (None, "fp8"), "schedule_policy": ("fcfs", "lpm", "dfs-weight"),
        "kv_cache_dtype": ("auto", "bf16", "bfloat16", *FP8_KV["sglang"]), "hicache_storage_backend": (None, "file"),
        "radix_eviction_policy": ("lru",), "load_balance_method": ("auto", "round_robin"),
        "hicache_write_policy": ("write_through",), "speculative_algorithm": (None, *METHODS),
    },
    harmless=(
        "trust-remote-code", "log-requests", "skip-server-warmup", "enable-deterministic-inference",
        "show-time-cost", "enable-metrics-for-all-schedulers", "disable-custom-all-reduce",
        "stream-response-default-include-usage", "disable-flashinfer-autotune", "enable-request-time-stats-logging",
        "enable-memory-saver", "tokenizer-path", "tokenizer-mode", "random-seed", "log-level",
        "log-level-http", "log-requests-level", "sampling-defaults", "watchdog-timeout", "decode-log-interval",
        "attention-backend", "prefill-attention-backend", "decode-attention-backend", "sampling-backend", "device",
        "nccl-port", "dist-init-addr", "nnodes", "node-rank", "base-gpu-id", "download-dir", "revision",
        "chat-template", "reasoning-parser", "tool-call-parser", "json-model-override-args",
        "model-loader-extra-config", "api-key", "admin-api-key", "file-storage-path",
        "speculative-draft-load-format", "hicache-storage-prefetch-policy", "hicache-io-backend",
        "hicache-mem-layout", "bucket-time-to-first-token", "bucket-inter-token-latency",
        "bucket-e2e-request-latency",
    ),
)  # fmt: skip
FLAGS = {"vllm": VLLM, "sglang": SGLANG}
