"""The parser of vLLM's flags, which knows each flag as effective or harmless in the emulator."""

from __future__ import annotations

from pytest_llmperf.emulator.flags.parser import EngineParser, Harmless, human_int, json_object, positive


def vllm_parser() -> EngineParser:
    """A parser that stores effective flags and accepts harmless flags without effect."""
    parser = EngineParser("vllm", HARMLESS, ("--compilation-config", "--speculative-config", "--kv-transfer-config"))
    add = parser.add_argument
    add("model_tag", nargs="?")
    add("--model")
    add("--served-model-name", nargs="+")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--max-model-len", default=None)
    add("--max-num-batched-tokens", type=positive)
    add("--max-num-seqs", type=positive)
    add("--block-size", type=positive, default=16)
    add("--gpu-memory-utilization", type=float, default=0.92)
    add("--kv-cache-memory-bytes", type=human_int)
    add("--num-gpu-blocks-override", type=positive)
    add("--kv-cache-dtype", default="auto")
    add("--dtype", default="auto")
    add("--quantization", "-q")
    add("--tensor-parallel-size", "-tp", type=positive, default=1)
    add("--data-parallel-size", "-dp", type=positive, default=1)
    add("--pipeline-parallel-size", "-pp", type=positive, default=1)
    add("--scheduling-policy", default="fcfs")
    add("--performance-mode", choices=("balanced", "interactivity", "throughput"), default="balanced")
    add("--optimization-level", type=int, default=2)
    add("--compilation-config", "-cc", type=json_object, default={})
    add("--cudagraph-capture-sizes", type=int, nargs="+")
    add("--max-cudagraph-capture-size", type=int)
    add("--speculative-config", "-sc", type=json_object)
    add("--spec-method")
    add("--spec-model")
    add("--spec-tokens", type=positive)
    add("--kv-offloading-size", type=float)
    add("--kv-offloading-backend", choices=("native", "lmcache"), default="native")
    add("--kv-transfer-config", type=json_object)
    add("--stream-interval", type=positive, default=1)
    add("--long-prefill-token-threshold", type=int, default=0)
    add("--disable-log-stats", action="store_true")
    parser.switch("--enforce-eager", default=False)
    parser.switch("--scheduler-reserve-full-isl", default=True)
    parser.switch("--enable-prefix-caching", default=True)
    parser.switch("--enable-chunked-prefill", default=True)
    parser.switch("--async-scheduling")
    parser.switch("--enable-expert-parallel", "-ep", default=False)
    parser.switch("--enable-prompt-tokens-details", default=False)
    parser.switch("--enable-force-include-usage", default=False)
    parser.switch("--skip-tokenizer-init", default=False)
    return parser


#: Flags without effect on the emulated times: logging, loading, TLS, tool calls, kernels of equal speed.
HARMLESS = Harmless(
    switches=(
        "disable-uvicorn-access-log", "disable-fastapi-docs", "enable-log-requests", "enable-log-outputs",
        "enable-log-deltas", "log-error-stack", "enable-server-load-tracking", "enable-request-id-headers",
        "enable-offline-docs", "trust-remote-code", "use-tqdm-on-load", "enable-auto-tool-choice",
        "enable-tokenizer-info-endpoint", "kv-cache-metrics", "cudagraph-metrics", "enable-mfu-metrics",
        "enable-logging-iteration-details", "aggregate-engine-logging", "fail-on-environ-validation",
        "jit-monitor-verbose", "disable-hybrid-kv-cache-manager", "disable-cascade-attn",
        "enable-flashinfer-autotune", "return-tokens-as-token-ids", "disable-custom-all-reduce",
        "numa-bind", "enable-per-request-metrics", "allow-credentials",
        "ray-workers-use-nsight", "enable-layerwise-nvtx-tracing", "language-model-only",
        "enable-sleep-mode",
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
        "profiler-config", "structured-outputs-config", "kernel-config", "moe-backend",
        "linear-backend", "additional-config", "renderer-num-workers", "all2all-backend", "expert-placement-strategy",
        "sse-keep-alive-interval", "per-request-spec-decode-metrics",
    ),
    several=("collect-detailed-traces", "ignore-patterns", "numa-bind-nodes", "numa-bind-cpus", "middleware"),
)  # fmt: skip
