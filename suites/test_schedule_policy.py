"""SGLang's scheduling by prefixes (lpm, dfs-weight), which gains throughput only if prefixes compete for the cache."""

from dataclasses import dataclass

from pytest_llmperf import EngineSpec, Perf, by_kind, closed, random_tokens, sglang, shared_prefix


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    context: int = 16384
    #: Of the cache: about two of the prefixes fit.
    tokens: int = 12000
    prefix: int = 4000
    groups: int = 6
    waiting: int = 18
    requests: int = 90
    more: float = 1.3
    margin: float = 1.2


CASES = by_kind(
    cpu=Case("tiny", 4096, tokens=3000, prefix=1024, requests=54, more=1.05, margin=1.25),
    l4=Case("phi-4-mini"), a100=Case(), h100=Case(), h200=Case(),
)  # fmt: skip


def first_come(case: Case) -> EngineSpec:
    """A small cache, and one request at a time, so that there is an order to choose."""
    return sglang(case.model, context_length=case.context, max_total_tokens=case.tokens, max_running_requests=1)


def claim_that_policy_saves_prefills(policy: str, case: Case, perf: Perf) -> None:
    """First come, first served evicts each prefix before its next use. The other policy serves those requests together
    that wait for the same prefix."""
    perf.claim(
        first_come(case).with_flags(schedule_policy=policy),
        first_come(case),
        shared_prefix(prefix=case.prefix, suffix=32, output=4, groups=case.groups, arrivals=closed(case.waiting),
                      requests=case.requests),
        f"request_throughput(a) / request_throughput(b) >= {case.more}",
        mechanism=["prefix_cache_hit_rate(a) >= 50%", "prefix_cache_hit_rate(b) <= 20%"],
        allow={"ttft_p50": 1.5, "tpot_mean": 1.5},  # whose prefix nobody shares waits for longer
    )


@CASES
def test_longest_prefix_first_saves_prefills(case: Case, perf: Perf) -> None:
    claim_that_policy_saves_prefills("lpm", case, perf)


@CASES
def test_unique_prompts_gain_nothing(case: Case, perf: Perf) -> None:
    """That the longest prefix does go first is what the other test shows."""
    perf.claim(
        first_come(case).with_flags(schedule_policy="lpm"),
        first_come(case),
        random_tokens(input=case.prefix // 4, output=4, arrivals=closed(case.waiting), requests=case.requests),
        f"request_throughput(a) / request_throughput(b) <= {case.margin}",
        # Pages hold one token, so that two prompts that begin alike by chance share one.
        mechanism=["prefix_cache_hit_rate(a) <= 1%", "prefix_cache_hit_rate(b) <= 1%"],
        allow={"ttft_p50": 1.6, "tpot_mean": 1.3},
    )


@CASES
def test_depth_first_order_saves_prefills(case: Case, perf: Perf) -> None:
    """dfs-weight serves the subtree first in which most requests wait, so prefixes stay cached as under lpm."""
    claim_that_policy_saves_prefills("dfs-weight", case, perf)
