"""Chunked prefill: a small token budget per step keeps long prompts from stalling the streams that run beside them.

The price is time to first token: a prompt then needs several steps.
"""

from itertools import pairwise
from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, closed, mixed, poisson, random_tokens, vllm

LLAMA = {
    "model": "llama-3.1-8b",
    "context": 16384,
    "budget": 1024,
    "most": 8192,
    "prompt": 7800,
    "prompts": 24,
    "streams": 16,
    "answer": 200,
    "smoother": 2.0,
    "prices": {"ttft_p50": 2.5},
}
CASES = by_kind(
    cpu={
        "model": "tiny",
        "context": 2048,
        "budget": 256,
        "most": 2048,
        "prompt": 1200,
        "prompts": 8,
        "streams": 2,
        "answer": 60,
        "smoother": 2.0,
        # Five chunks take longer than the whole prompt at once on a CPU, and every stream waits: 7 and 22 % were seen.
        "prices": {"ttft_p50": 3.0, "tpot_mean": 1.5},
    },
    l4=LLAMA | {"model": "phi-4-mini", "streams": 8, "prices": {"ttft_p50": 3.0}},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)

# `rate` is near what steps of 256 tokens can prefill, and well below what steps of 8192 can.
LOAD = {"model": "llama-3.1-8b", "context": 16384, "budget": 256, "most": 8192, "smoother": 4.0, "sooner": 1.3}
BOTH = by_kind(
    l4=LOAD | {"model": "phi-4-mini", "rate": 3},
    a100=LOAD | {"rate": 6.5, "sooner": 1.05},
    h100=LOAD | {"rate": 15},
    h200=LOAD | {"rate": 17},
)
BUDGETS = (256, 512, 1024, 2048, 4096)
WHOLE = {"model": "llama-3.1-8b", "context": 16384, "budget": 2048, "prompt": 15_800, "streams": 16, "smoother": 2.5}
OFF = by_kind(l4=WHOLE | {"model": "phi-4-mini", "streams": 8}, a100=WHOLE, h100=WHOLE, h200=WHOLE)

# From 256 to 4096 tokens a step, 16 times the work, less what every step costs and reads anyway.
STEPS = {
    "model": "llama-3.1-8b", "context": 16384, "budgets": BUDGETS, "prompt": 7800, "prompts": 8, "streams": 4,
    "answer": 100, "runs": 2, "longer": 3.0,
}  # fmt: skip
CURVE = by_kind(
    cpu=STEPS | {"model": "tiny", "context": 2048, "budgets": (256, 512, 1024), "prompt": 1200, "prompts": 8,
                 "streams": 2, "answer": 60, "runs": 3, "longer": 1.5},
    l4=STEPS | {"model": "phi-4-mini"},
    a100=STEPS,
    h100=STEPS,
    h200=STEPS,
)  # fmt: skip


@CASES
def test_small_chunks_smooth_itl(case: SimpleNamespace, perf: Perf) -> None:
    small = vllm(case.model, max_model_len=case.context, max_num_batched_tokens=case.budget)
    large = small.with_flags(max_num_batched_tokens=case.most)
    traffic = mixed(
        stream={"input": 64, "output": case.answer, "arrivals": closed(case.streams), "requests": 6 * case.streams},
        # One long prompt after the other, however fast the machine: p99 must see their stalls, so more than 1 % of the
        # gaps have to be some.
        prefill={"input": case.prompt, "output": 4, "arrivals": closed(1), "requests": case.prompts},
    )
    claim = perf.claim(
        small,
        large,
        traffic,
        f"itl_p99(b) / itl_p99(a) >= {case.smoother}",
        mechanism=[f"chunk_budget(a) <= {case.budget}", f"chunk_budget(b) >= {case.prompt}"],
        allow=case.prices,
    )
    if case.kind != "cpu":  # every CPU is another one
        # p99 ITL is the step with a chunk of prefill, median ITL the step without. TTFT of short prompts beside long
        # ones is the host's CPU (35 to 83 ms on three H200 hosts), so the claim judges its price side by side.
        perf.compare_with_baseline(claim.a, primaries=["itl_p99", "itl_p50"])


@OFF
def test_without_chunks_a_prompt_is_one_stall(case: SimpleNamespace, perf: Perf) -> None:
    off = vllm(case.model, max_model_len=case.context, enable_chunked_prefill=False)
    chunked = vllm(case.model, max_model_len=case.context, max_num_batched_tokens=case.budget)
    traffic = mixed(
        stream={"input": 64, "output": 200, "arrivals": closed(case.streams), "requests": 3 * case.streams},
        prefill={"input": case.prompt, "output": 4, "arrivals": closed(1), "requests": 12},
    )
    perf.claim(
        chunked,
        off,
        traffic,
        f"itl_p99(b) / itl_p99(a) >= {case.smoother}",
        mechanism=[f"chunk_budget(a) <= {case.budget}", f"chunk_budget(b) >= {case.prompt}"],
        allow={"ttft_p50": 2.5},
    )


@BOTH
def test_the_budget_trades_first_tokens_for_smooth_streams(case: SimpleNamespace, perf: Perf) -> None:
    small = vllm(case.model, max_model_len=case.context, max_num_seqs=256, max_num_batched_tokens=case.budget)
    large = small.with_flags(max_num_batched_tokens=case.most)
    prompts = random_tokens(input=2000, output=32, arrivals=poisson(case.rate), requests=80)
    perf.claim(
        small,
        large,
        prompts,
        f"itl_p99(b) / itl_p99(a) >= {case.smoother}",
        mechanism=[f"chunk_budget(a) <= {case.budget}", f"chunk_budget(b) >= {case.most}"],
        allow={"ttft_p50": 50.0},
    )
    perf.claim(large, small, prompts, f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}", allow={"tpot_mean": 10.0})


@CURVE
def test_stalls_grow_with_the_budget(case: SimpleNamespace, perf: Perf) -> None:
    """A step with a whole chunk takes as long as its tokens need, and its streams wait for it: p99 ITL is that step."""
    traffic = mixed(
        stream={"input": 64, "output": case.answer, "arrivals": closed(case.streams), "requests": 3 * case.streams},
        prefill={"input": case.prompt, "output": 4, "arrivals": closed(1), "requests": case.prompts},
    )
    engines = {
        vllm(case.model, max_model_len=case.context, max_num_seqs=64, max_num_batched_tokens=budget): budget
        for budget in case.budgets
    }
    sides = {}
    for engine in perf.together(*engines):
        budget = engines[engine]
        sides[f"of_{budget}"] = run = perf.measure(engine, traffic, runs=case.runs)
        perf.check(run, f"chunk_budget == {budget}", "error_rate == 0")
    names = [f"of_{budget}" for budget in case.budgets]
    perf.compare(
        *(f"itl_p99({larger}) / itl_p99({smaller})" for smaller, larger in pairwise(names)),
        *(f"ttft_p50({larger}) / ttft_p50({smaller})" for smaller, larger in pairwise(names)),
        f"itl_p99({names[-1]}) / itl_p99({names[0]}) >= {case.longer}",
        **sides,
    )
