"""SGLang's radix cache: requests that share a long prefix get their first token sooner."""

from dataclasses import dataclass

from pytest_llmperf import Arrivals, Perf, by_kind, closed, poisson, sglang, shared_prefix


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    context: int = 16384
    prefix: int = 4000
    suffix: object = (32, 96)
    output: int = 16
    arrivals: Arrivals = poisson(4)
    requests: int = 45
    sooner: float = 2.0  # hosts measured 3.8 to 4.8; one start a side leaves 4.7 between 3.1 and 6.7


@by_kind(
    # One request at a time, since two cores soon have a queue that hides all else. SGLang's CPU attention computes a
    # cached prefix's share again, so least is gained on long ones: 1.7× at 640 tokens, 1.35× at 3584. With the prior's
    # spread of starts, 1.7× proves 1.1× with one start a side.
    cpu=Case("tiny", 4096, prefix=640, suffix=16, output=4, arrivals=closed(1), requests=30, sooner=1.1),
    l4=Case("phi-4-mini", arrivals=poisson(1)), a100=Case(arrivals=poisson(2)), h100=Case(), h200=Case(),
)  # fmt: skip
def test_shared_prefixes_come_from_the_radix_tree(case: Case, perf: Perf) -> None:
    cached = sglang(case.model, context_length=case.context)
    perf.claim(
        cached,
        cached.with_flags(disable_radix_cache=True),
        shared_prefix(prefix=case.prefix, suffix=case.suffix, output=case.output, groups=3, arrivals=case.arrivals,
                      requests=case.requests),
        f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}",
        mechanism=["prefix_cache_hit_rate(a) >= 70%", "prefix_cache_hit_rate(b) == 0"],
    )
