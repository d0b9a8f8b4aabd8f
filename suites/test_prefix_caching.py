"""Prefix caching: requests that share a long prefix get their first token sooner."""

from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, closed, poisson, shared_prefix, vllm

LLAMA = {
    "model": "llama-3.1-8b", "context": 16384, "prefix": 4000, "arrivals": poisson(4), "requests": 45, "sooner": 3.0,
}  # fmt: skip
CASES = by_kind(
    # One request at a time: two cores that prefill 1,000 tokens a second soon have a queue that times out.
    cpu={
        "model": "tiny", "context": 4096, "prefix": 1024, "arrivals": closed(1), "requests": 24, "sooner": 2.0,
    },
    l4=LLAMA | {"model": "phi-4-mini", "arrivals": poisson(1)},
    a100=LLAMA | {"arrivals": poisson(2)},
    h100=LLAMA,
    h200=LLAMA,
)  # fmt: skip


@CASES
def test_shared_prefixes_come_from_the_cache(case: SimpleNamespace, perf: Perf) -> None:
    cached = vllm(case.model, max_model_len=case.context, enable_prefix_caching=True)
    uncached = cached.with_flags(enable_prefix_caching=False)
    questions = shared_prefix(
        prefix=case.prefix,
        suffix=(32, 96),
        output=16,
        groups=3,
        arrivals=case.arrivals,
        requests=case.requests,
    )
    claim = perf.claim(
        cached,
        uncached,
        questions,
        f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}",
        mechanism=["prefix_cache_hit_rate(a) >= 80%", "prefix_cache_hit_rate(b) == 0"],
    )
    if case.kind != "cpu":  # every CPU is another one
        # Mean TTFT differs by 9 % (sd) between six H200 hosts, median TTFT by 11 %, so 15 % is seldom proven.
        perf.compare_with_baseline(claim.a, primaries=["ttft_mean", "itl_p50"], margins={"ttft_mean": 0.3})
