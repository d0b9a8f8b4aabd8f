"""vLLM and SGLang on one workload: a report. The faster engine depends on the model, the load and the versions, so the
ratios are reported with their intervals and not judged. The test only checks that the engines answer all requests."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, by_kind, closed, poisson, random_tokens, sglang, trace, vllm

# The attention backends are named, so that they stand in the results and an engine that lacks one refuses it.
LLAMA = {
    "model": "llama-3.1-8b", "context": 16384, "input": (256, 2048), "output": (32, 256), "arrivals": poisson(4),
    "requests": 100,
    "attention": {"vllm": "FLASH_ATTN", "sglang": "fa3"},
}  # fmt: skip
AMPERE = {"vllm": "FLASH_ATTN", "sglang": "flashinfer"}
CASES = by_kind(
    cpu={
        # One request at a time: where a server keeps both cores busy, the load generator cannot send in time.
        "model": "tiny", "context": 4096, "input": (64, 512), "output": (8, 64), "arrivals": closed(1), "requests": 30,
        "attention": {"vllm": "CPU_ATTN", "sglang": "torch_native"},
    },
    l4=LLAMA | {"model": "phi-4-mini", "arrivals": poisson(1), "attention": AMPERE},
    a100=LLAMA | {"arrivals": poisson(2), "attention": AMPERE},
    h100=LLAMA,
    # Measured with an SGLang that has no FlashAttention 3 (docs/gpu_runners.md): not SGLang at its best.
    h200=LLAMA | {"attention": {"vllm": "FLASH_ATTN", "sglang": "triton"}},
)  # fmt: skip

SHAREGPT = "suites/tasks/sharegpt_lengths.jsonl"  # lengths alone: log-normal, with the means of ShareGPT
# `scale`: of the rates 1, 4 and 10, so that each GPU is far from its capacity at 1 and near it at 10.
CHAT = {"model": "llama-3.1-8b", "context": 4096, "requests": 120, "scale": 1.0}
LENGTHS = by_kind(
    cpu=CHAT | {"model": "tiny", "requests": 30, "scale": 0.2},
    l4=CHAT | {"model": "phi-4-mini", "scale": 0.2},
    a100=CHAT,
    h100=CHAT,
    h200=CHAT,
)


@CASES
def test_the_same_chat_on_both(case: SimpleNamespace, perf: Perf) -> None:
    chat = random_tokens(
        input=case.input, output=case.output, arrivals=case.arrivals, requests=case.requests
    )
    on_vllm = perf.measure(
        vllm(case.model, max_model_len=case.context, attention_backend=case.attention["vllm"]), chat
    )
    on_sglang = perf.measure(
        sglang(case.model, context_length=case.context, attention_backend=case.attention["sglang"]), chat
    )
    perf.check(on_vllm, "error_rate == 0", "preemptions == 0")
    perf.check(on_sglang, "error_rate == 0", "preemptions == 0")
    perf.compare(
        "ttft_p50(sglang) / ttft_p50(vllm)",
        "tpot_mean(sglang) / tpot_mean(vllm)",
        "e2el_p50(sglang) / e2el_p50(vllm)",
        vllm=on_vllm,
        sglang=on_sglang,
    )


@LENGTHS
@pytest.mark.parametrize("rate", [1, 4, 10, None], ids=["1", "4", "10", "all_at_once"])
def test_both_keep_up_with_every_rate(rate: float | None, case: SimpleNamespace, perf: Perf) -> None:
    """Lengths as ShareGPT's. An engine keeps up with a rate below its capacity, whatever the other one's latencies."""
    arrivals = closed(case.requests) if rate is None else poisson(rate * case.scale)
    requests = case.requests if rate is None else min(case.requests, 60 * rate)
    chat = trace(path=SHAREGPT, arrivals=arrivals, requests=requests, most_tokens=1024)
    of_vllm, of_sglang = vllm(case.model, max_model_len=case.context), sglang(case.model, context_length=case.context)
    measured = {spec: perf.measure(spec, chat, runs=2) for spec in perf.together(of_vllm, of_sglang)}
    on_vllm, on_sglang = measured[of_vllm], measured[of_sglang]
    for run in measured.values():
        perf.check(run, "error_rate == 0")
        if rate is not None:
            perf.check(run, f"request_throughput >= {0.5 * rate * case.scale:g}/s")
    perf.compare(
        *(f"{metric}(sglang) / {metric}(vllm)" for metric in ("ttft_p50", "itl_p50", "e2el_p50", "output_throughput")),
        vllm=on_vllm,
        sglang=on_sglang,
    )
