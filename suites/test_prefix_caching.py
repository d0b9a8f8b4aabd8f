"""Prefix caching: requests that share a long prefix get their first token sooner."""

from types import SimpleNamespace

from pytest_llmperf import Perf, by_kind, poisson, shared_prefix, vllm, with_flags

CASES = by_kind(
    cpu={"model": "tiny", "context": 4096, "prefix": 1408, "rate": 4, "sooner": 2.0},
    l4={"model": "phi-4-mini", "context": 16384, "prefix": 4000, "rate": 1, "sooner": 3.0},
    a100={"model": "llama-3.1-8b", "context": 16384, "prefix": 4000, "rate": 2, "sooner": 3.0},
    h100={"model": "llama-3.1-8b", "context": 16384, "prefix": 4000, "rate": 4, "sooner": 3.0},
    h200={"model": "llama-3.1-8b", "context": 16384, "prefix": 4000, "rate": 4, "sooner": 3.0},
)


@CASES
def test_shared_prefixes_come_from_the_cache(case: SimpleNamespace, perf: Perf) -> None:
    cached = vllm(case.model, max_model_len=case.context, enable_prefix_caching=True)
    uncached = with_flags(cached, enable_prefix_caching=False)
    questions = shared_prefix(
        prefix=case.prefix, suffix=(32, 96), output=16, groups=3, arrivals=poisson(case.rate), requests=45
    )
    perf.claim(
        cached,
        uncached,
        questions,
        f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}",
        mechanism=["prefix_cache_hit_rate(a) >= 80%", "prefix_cache_hit_rate(b) == 0"],
        baseline=case.kind != "cpu",  # every CPU is another one
    )
