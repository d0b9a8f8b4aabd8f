"""vLLM and SGLang on one workload: a report. The faster engine depends on the model, the load and the versions, so the
ratios are reported with their intervals and not judged. The test only checks that the engines answer all requests."""

from dataclasses import dataclass

import pytest

from pytest_llmperf import Arrivals, Perf, by_kind, closed, poisson, random_tokens, sglang, trace, vllm

SHAREGPT = "suites/tasks/sharegpt_lengths.jsonl"  # lengths alone: log-normal, with the means of ShareGPT


@dataclass(frozen=True)
class Case:
    #: The attention backends are named, so that they stand in the results and an engine that lacks one refuses it.
    sglang_attention: str
    vllm_attention: str = "FLASH_ATTN"
    model: str = "llama-3.1-8b"
    context: int = 16384
    input: tuple[int, int] = (256, 2048)
    output: tuple[int, int] = (32, 256)
    arrivals: Arrivals = poisson(4)
    requests: int = 100


@dataclass(frozen=True)
class Lengths:
    model: str = "llama-3.1-8b"
    requests: int = 120
    #: Of the rates 1, 4 and 10, so that each GPU is far from its capacity at 1 and near it at 10.
    scale: float = 1.0


@by_kind(
    # One request at a time: where a server keeps both cores busy, the load generator cannot send in time.
    cpu=Case("torch_native", "CPU_ATTN", "tiny", 4096, input=(64, 512), output=(8, 64), arrivals=closed(1),
             requests=30),
    l4=Case("flashinfer", model="phi-4-mini", arrivals=poisson(1)),
    a100=Case("flashinfer", arrivals=poisson(2)),
    h100=Case("fa3"),
    h200=Case("triton"),  # measured with an SGLang that has no FlashAttention 3 (docs/gpu_runners.md): not at its best
)
def test_the_same_chat_on_both(case: Case, perf: Perf) -> None:
    chat = random_tokens(input=case.input, output=case.output, arrivals=case.arrivals, requests=case.requests)
    on_vllm = vllm(case.model, max_model_len=case.context, attention_backend=case.vllm_attention)
    on_sglang = sglang(case.model, context_length=case.context, attention_backend=case.sglang_attention)
    sides = {"vllm": perf.measure(on_vllm, chat), "sglang": perf.measure(on_sglang, chat)}
    for run in sides.values():
        perf.check(run, "error_rate == 0", "preemptions == 0")
    perf.compare(*(f"{metric}(sglang) / {metric}(vllm)" for metric in ("ttft_p50", "tpot_mean", "e2el_p50")), **sides)


@by_kind(cpu=Lengths("tiny", requests=30, scale=0.2), l4=Lengths("phi-4-mini", scale=0.2), a100=Lengths(),
         h100=Lengths(), h200=Lengths())
@pytest.mark.parametrize("rate", [1, 4, 10, None], ids=["1", "4", "10", "all_at_once"])
def test_both_keep_up_with_every_rate(rate: float | None, case: Lengths, perf: Perf) -> None:
    """Lengths as ShareGPT's. An engine keeps up with a rate below its capacity, whatever the other one's latencies."""
    arrivals = closed(case.requests) if rate is None else poisson(rate * case.scale)
    requests = case.requests if rate is None else min(case.requests, 60 * rate)
    kept_up = [] if rate is None else [f"request_throughput >= {0.5 * rate * case.scale:g}/s"]
    engines = {"vllm": vllm(case.model, max_model_len=4096), "sglang": sglang(case.model, context_length=4096)}
    chat = trace(path=SHAREGPT, arrivals=arrivals, requests=requests, most_tokens=1024)
    sides = perf.measure_each(engines, chat, runs=2)
    for run in sides.values():
        perf.check(run, "error_rate == 0", *kept_up)
    perf.compare(
        *(f"{metric}(sglang) / {metric}(vllm)" for metric in ("ttft_p50", "itl_p50", "e2el_p50", "output_throughput")),
        **sides,
    )
