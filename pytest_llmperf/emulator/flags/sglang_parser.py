"""SGLang's flags: flags with an emulated effect, and flags that are accepted and ignored."""

from __future__ import annotations

from pytest_llmperf.emulator.flags.parser import EngineParser, Harmless, json_object, positive

METHODS = {"EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp", "STANDALONE": "draft_model", "NGRAM": "ngram"}
_HARMLESS = Harmless(
    switches=(
        "trust-remote-code", "log-requests", "skip-server-warmup", "enable-deterministic-inference", "show-time-cost",
        "enable-metrics-for-all-schedulers", "disable-custom-all-reduce", "stream-response-default-include-usage",
        "disable-flashinfer-autotune", "enable-request-time-stats-logging",
        "enable-memory-saver",
    ),
    single=(
        "tokenizer-path", "tokenizer-mode", "load-format", "random-seed", "log-level", "log-level-http",
        "log-requests-level", "sampling-defaults", "watchdog-timeout", "decode-log-interval", "attention-backend",
        "prefill-attention-backend", "decode-attention-backend", "sampling-backend", "device", "nccl-port",
        "dist-init-addr", "nnodes", "node-rank", "base-gpu-id", "download-dir", "revision", "chat-template",
        "reasoning-parser", "tool-call-parser",
        "json-model-override-args", "model-loader-extra-config", "api-key", "admin-api-key", "file-storage-path",
        "speculative-draft-load-format", "hicache-storage-prefetch-policy", "hicache-io-backend", "hicache-mem-layout",
    ),
    several=("bucket-time-to-first-token", "bucket-inter-token-latency", "bucket-e2e-request-latency"),
)  # fmt: skip


def sglang_parser() -> EngineParser:
    """The flags that have an effect here, and those known to have none."""
    parser = EngineParser("sglang", _HARMLESS)
    add = parser.add_argument
    add("--model-path", "--model")
    add("--served-model-name")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--context-length", type=positive)
    add("--mem-fraction-static", type=float)
    add("--max-running-requests", type=positive)
    add("--max-total-tokens", type=positive)
    add("--chunked-prefill-size", type=int)
    add("--max-prefill-tokens", type=positive, default=16384)
    add("--schedule-conservativeness", type=float, default=1.0)
    add("--schedule-policy", choices=("fcfs", "lpm", "dfs-weight"), default="fcfs")
    add("--page-size", type=positive, default=1)
    add("--kv-cache-dtype", default="auto")
    add("--dtype", default="auto")
    add("--quantization")
    add("--tp-size", "--tp", "--tensor-parallel-size", type=positive, default=1)
    add("--dp-size", "--dp", "--data-parallel-size", type=positive, default=1)
    add("--pp-size", "--pp", "--pipeline-parallel-size", type=positive, default=1)
    add("--ep-size", "--ep", "--expert-parallel-size", type=positive, default=1)
    add("--cuda-graph-max-bs-decode", type=positive)
    add("--cuda-graph-backend-decode", choices=("disabled", "full", "breakable"), default="full")
    add("--speculative-algorithm", choices=tuple(METHODS))
    add("--speculative-draft-model-path", "--speculative-draft-model")
    add("--speculative-num-steps", type=positive)
    add("--speculative-eagle-topk", type=positive, default=1)
    add("--speculative-num-draft-tokens", type=positive)
    add("--hicache-ratio", type=float, default=2.0)
    add("--hicache-size", type=float, default=0.0)
    add("--hicache-storage-backend")
    add("--hicache-write-policy", default="write_through")
    add("--radix-eviction-policy", default="lru")
    add("--load-balance-method", default="auto")
    add("--lmcache-config-file")
    add("--stream-interval", type=positive, default=1)
    add("--cuda-graph-config", type=json_object)
    for name in (
        "disable-radix-cache", "disable-cuda-graph", "disable-overlap-schedule", "enable-mixed-chunk", "enable-metrics",
        "enable-cache-report", "incremental-streaming-output", "skip-tokenizer-init", "enable-lmcache",
    ):  # fmt: skip
        parser.switch(f"--{name}", default=False)
    parser.switch("--enable-hierarchical-cache", "--enable-hicache", default=False)
    return parser
