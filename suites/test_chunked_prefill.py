"""Chunked prefill: a small token budget per step keeps long prompts from stalling the streams that run beside them.

The price is time to first token: a prompt then needs several steps.
"""

from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, closed, mixed, vllm, with_flags

LLAMA = {
    "model": "llama-3.1-8b",
    "context": 16384,
    "budget": 1024,
    "most": 8192,
    "prompt": 7800,
    "streams": 16,
    "answer": 200,
    "smoother": 2.0,
    "price": 2.5,
}
CASES = by_kind(
    cpu={
        "model": "tiny",
        "context": 4096,
        "budget": 256,
        "most": 4096,
        "prompt": 3500,
        "streams": 2,
        "answer": 100,
        "smoother": 2.0,
        "price": 3.0,
    },
    l4=LLAMA | {"model": "phi-4-mini", "streams": 8, "price": 3.0},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)


@CASES
def test_small_chunks_smooth_itl(case: SimpleNamespace, perf: Perf) -> None:
    small = vllm(case.model, max_model_len=case.context, max_num_batched_tokens=case.budget)
    large = with_flags(small, max_num_batched_tokens=case.most)
    traffic = mixed(
        stream={"input": 64, "output": case.answer, "arrivals": closed(case.streams), "requests": 6 * case.streams},
        # One long prompt after the other, however fast the machine: p99 must see their stalls, so more than 1 % of the
        # gaps have to be some.
        prefill={"input": case.prompt, "output": 4, "arrivals": closed(1), "requests": 24},
    )
    perf.claim(
        small,
        large,
        traffic,
        f"itl_p99(b) / itl_p99(a) >= {case.smoother}",
        mechanism=[f"chunk_budget(a) <= {case.budget}", f"chunk_budget(b) >= {case.prompt}"],
        allow={"ttft_p50": case.price},
        baseline=case.kind != "cpu",  # every CPU is another one
    )
