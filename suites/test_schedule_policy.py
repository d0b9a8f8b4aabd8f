"""SGLang's scheduling by prefixes (lpm, dfs-weight), which gains throughput only if prefixes compete for the cache."""

from types import SimpleNamespace

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, random_tokens, sglang, shared_prefix

# The cache holds about two of the prefixes. First come, first served then evicts each one before its next use; the
# other policy serves those together that wait for the same one.
LLAMA = {
    "model": "llama-3.1-8b", "context": 16384, "tokens": 12000, "prefix": 4000, "groups": 6, "waiting": 18,
    "requests": 90, "more": 1.3, "margin": 1.2,
}  # fmt: skip
CASES = by_kind(
    cpu={
        "model": "tiny", "context": 4096, "tokens": 3000, "prefix": 1024, "groups": 6, "waiting": 18,
        "requests": 54, "more": 1.05, "margin": 1.25,
    },
    l4=LLAMA | {"model": "phi-4-mini"},
    a100=LLAMA,
    h100=LLAMA,
    h200=LLAMA,
)  # fmt: skip


def first_come(case: SimpleNamespace) -> EngineSpec:
    """A small cache, and one request at a time, so that there is an order to choose."""
    return sglang(case.model, context_length=case.context, max_total_tokens=case.tokens, max_running_requests=1)


@CASES
def test_longest_prefix_first_saves_prefills(case: SimpleNamespace, perf: Perf) -> None:
    fcfs = first_come(case)
    questions = shared_prefix(
        prefix=case.prefix,
        suffix=32,
        output=4,
        groups=case.groups,
        arrivals=closed(case.waiting),
        requests=case.requests,
    )
    perf.claim(
        fcfs.with_flags(schedule_policy="lpm"),
        fcfs,
        questions,
        f"request_throughput(a) / request_throughput(b) >= {case.more}",
        mechanism=["prefix_cache_hit_rate(a) >= 50%", "prefix_cache_hit_rate(b) <= 20%"],
        allow={"ttft_p50": 1.5, "tpot_mean": 1.5},  # whose prefix nobody shares waits for longer
    )


@CASES
def test_unique_prompts_gain_nothing(case: SimpleNamespace, perf: Perf) -> None:
    """That the longest prefix does go first is what the other test shows."""
    fcfs = first_come(case)
    unique = random_tokens(input=case.prefix // 4, output=4, arrivals=closed(case.waiting), requests=case.requests)
    perf.claim(
        fcfs.with_flags(schedule_policy="lpm"),
        fcfs,
        unique,
        f"request_throughput(a) / request_throughput(b) <= {case.margin}",
        # Pages hold one token, so that two prompts that begin alike by chance share one.
        mechanism=["prefix_cache_hit_rate(a) <= 1%", "prefix_cache_hit_rate(b) <= 1%"],
        allow={"ttft_p50": 1.6, "tpot_mean": 1.3},
    )


@CASES
def test_depth_first_order_saves_prefills(case: SimpleNamespace, perf: Perf) -> None:
    """dfs-weight serves the subtree first in which most requests wait, so prefixes stay cached as under lpm."""
    fcfs = first_come(case)
    questions = shared_prefix(
        prefix=case.prefix,
        suffix=32,
        output=4,
        groups=case.groups,
        arrivals=closed(case.waiting),
        requests=case.requests,
    )
    perf.claim(
        fcfs.with_flags(schedule_policy="dfs-weight"),
        fcfs,
        questions,
        f"request_throughput(a) / request_throughput(b) >= {case.more}",
        mechanism=["prefix_cache_hit_rate(a) >= 50%", "prefix_cache_hit_rate(b) <= 20%"],
        allow={"ttft_p50": 1.5, "tpot_mean": 1.5},  # whose prefix nobody shares waits for longer
    )
