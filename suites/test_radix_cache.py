"""SGLang's radix cache: requests that share a long prefix get their first token sooner."""

from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, poisson, sglang, shared_prefix, with_flags

LLAMA = {"model": "llama-3.1-8b", "context": 16384, "prefix": 4000, "rate": 4, "requests": 45, "sooner": 3.0}
CASES = by_kind(
    # On a CPU a cached prefix still costs its attention, so less is gained than on a GPU.
    cpu={"model": "tiny", "context": 4096, "prefix": 2048, "rate": 2, "requests": 12, "sooner": 1.2},
    l4=LLAMA | {"model": "phi-4-mini", "rate": 1},
    a100=LLAMA | {"rate": 2},
    h100=LLAMA,
    h200=LLAMA,
)


@CASES
def test_shared_prefixes_come_from_the_radix_tree(case: SimpleNamespace, perf: Perf) -> None:
    cached = sglang(case.model, context_length=case.context)
    uncached = with_flags(cached, disable_radix_cache=True)
    questions = shared_prefix(
        prefix=case.prefix, suffix=(32, 96), output=16, groups=3, arrivals=poisson(case.rate), requests=case.requests
    )
    perf.claim(
        cached,
        uncached,
        questions,
        f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}",
        mechanism=["prefix_cache_hit_rate(a) >= 70%", "prefix_cache_hit_rate(b) == 0"],
    )
