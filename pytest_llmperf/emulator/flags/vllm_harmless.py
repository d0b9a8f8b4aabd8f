"""vLLM's flags that change nothing that is emulated: logging, loading, TLS, tool calls, kernels of equal speed."""

from pytest_llmperf.emulator.flags.parser import Harmless

HARMLESS = Harmless(
    switches=(
        "disable-uvicorn-access-log", "disable-fastapi-docs", "enable-log-requests", "enable-log-outputs",
        "enable-log-deltas", "log-error-stack", "enable-server-load-tracking", "enable-request-id-headers",
        "enable-offline-docs", "trust-remote-code", "use-tqdm-on-load", "enable-auto-tool-choice",
        "enable-tokenizer-info-endpoint", "kv-cache-metrics", "cudagraph-metrics", "enable-mfu-metrics",
        "enable-logging-iteration-details", "aggregate-engine-logging", "fail-on-environ-validation",
        "jit-monitor-verbose", "disable-hybrid-kv-cache-manager", "calculate-kv-scales", "disable-cascade-attn",
        "enable-flashinfer-autotune", "return-tokens-as-token-ids", "disable-custom-all-reduce",
        "numa-bind", "enable-per-request-metrics", "allow-credentials",
        "ray-workers-use-nsight", "enable-layerwise-nvtx-tracing", "language-model-only",
    ),
    single=(
        "seed", "load-format", "generation-config", "override-generation-config", "uvicorn-log-level", "log-level",
        "log-config-file", "disable-access-log-for-endpoints", "tokenizer", "tokenizer-mode", "tokenizer-revision",
        "revision", "code-revision", "download-dir", "config-format", "hf-config-path", "hf-token", "model-impl",
        "max-logprobs", "logprobs-mode", "distributed-executor-backend", "master-addr", "master-port",
        "distributed-timeout-seconds", "data-parallel-backend", "data-parallel-address", "data-parallel-rpc-port",
        "prefix-caching-hash-algo", "kv-cache-metrics-sample", "max-log-len", "shutdown-timeout", "chat-template",
        "chat-template-content-format", "response-role", "tool-call-parser", "reasoning-parser", "attention-backend",
        "attention-config", "safetensors-load-strategy", "model-loader-extra-config", "pt-load-map-location",
        "max-parallel-loading-workers", "otlp-traces-endpoint", "show-hidden-metrics-for-version",
        "jit-monitor-mode", "root-path", "allowed-origins", "allowed-methods", "allowed-headers", "runner", "convert",
        "fingerprint-mode", "fingerprint-value", "h11-max-incomplete-event-size", "h11-max-header-count",
        "timeout-keep-alive", "profiler-config", "structured-outputs-config", "kernel-config", "moe-backend",
        "linear-backend", "additional-config", "renderer-num-workers", "all2all-backend", "expert-placement-strategy",
        "sse-keep-alive-interval", "per-request-spec-decode-metrics",
    ),
    several=("collect-detailed-traces", "ignore-patterns", "numa-bind-nodes", "numa-bind-cpus", "middleware"),
)  # fmt: skip
