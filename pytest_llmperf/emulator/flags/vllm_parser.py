"""vLLM's flags: those with an effect here, and those known to have none."""

from __future__ import annotations

from pytest_llmperf.emulator.flags.parser import EngineParser, human_int, json_object, positive
from pytest_llmperf.emulator.flags.vllm_harmless import HARMLESS


def vllm_parser() -> EngineParser:
    """The flags that have an effect here, and those known to have none."""
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
