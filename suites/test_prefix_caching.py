"""Prefix caching: requests that share a long prefix get their first token sooner."""

from dataclasses import dataclass

from pytest_llmperf import (
    Arrivals,
    CheckResult,
    ClaimResult,
    Perf,
    Verdict,
    Workload,
    by_kind,
    closed,
    poisson,
    random_tokens,
    shared_prefix,
    vllm,
)


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    context: int = 16384
    prefix: int = 4000
    arrivals: Arrivals = poisson(4)
    requests: int = 45
    sooner: float = 2.0  # hosts measured 4.1 to 5.9; one start a side leaves 4.1 between 2.4 and 6.1


@dataclass(frozen=True)
class Lengths:
    model: str = "llama-3.1-8b"
    block: int = 16


def claim_of_sooner_first_tokens(case: Case, perf: Perf) -> ClaimResult:
    cached = vllm(case.model, max_model_len=case.context, enable_prefix_caching=True)
    uncached = cached.with_flags(enable_prefix_caching=False)
    return perf.claim(
        cached,
        uncached,
        shared_prefix(prefix=case.prefix, suffix=(32, 96), output=16, groups=3, arrivals=case.arrivals,
                      requests=case.requests),
        f"ttft_p50(b) / ttft_p50(a) >= {case.sooner}",
        mechanism=["prefix_cache_hit_rate(a) >= 80%", "prefix_cache_hit_rate(b) == 0"],
    )


@by_kind(l4=Case("phi-4-mini", arrivals=poisson(1)), a100=Case(arrivals=poisson(2)), h100=Case(), h200=Case())
def test_shared_prefixes_come_from_the_cache(case: Case, perf: Perf) -> None:
    claim = claim_of_sooner_first_tokens(case, perf)
    # Mean TTFT differs by 9 % (sd) between six H200 hosts, median TTFT by 11 %, so 15 % is seldom proven.
    perf.compare_with_baseline(claim.a, primaries=["ttft_mean", "itl_p50"], margins={"ttft_mean": (0.12, 0.5)})


# One request at a time: two cores that prefill 1,000 tokens a second soon have a queue that times out.
@by_kind(cpu=Case("tiny", 4096, prefix=1024, arrivals=closed(1), requests=24))
def test_shared_prefixes_come_from_the_cache_on_a_cpu(case: Case, perf: Perf) -> None:
    claim_of_sooner_first_tokens(case, perf)


GROUPS, SUFFIX, REQUESTS = 3, 64, 18


def questions(prefix: int) -> Workload:
    if prefix == 0:
        return random_tokens(input=SUFFIX, output=16, arrivals=closed(1), requests=REQUESTS)
    return shared_prefix(prefix=prefix, suffix=SUFFIX, output=16, groups=GROUPS, arrivals=closed(1), requests=REQUESTS)


def hit_rate_limits(prefix: int, block: int) -> list[str]:
    """All but the first request of each group find the whole blocks of their prefix."""
    if prefix == 0:
        return ["prefix_cache_hit_rate == 0"]
    hits = 100 * (prefix // block * block) * (1 - GROUPS / REQUESTS) / (prefix + SUFFIX)
    return [f"prefix_cache_hit_rate >= {hits - 1:.4g}%", f"prefix_cache_hit_rate <= {hits + 1:.4g}%"]


@by_kind(cpu=Lengths("tiny", block=128), l4=Lengths("phi-4-mini"), a100=Lengths(), h100=Lengths(), h200=Lengths())
def test_saved_time_grows_with_the_prefix(case: Lengths, perf: Perf) -> None:
    """Each token of a prefix saves its part of the prefill. On a GPU the first few hundred are free: a step takes as
    long as reading the weights takes."""
    cached = vllm(case.model, max_model_len=4096, enable_prefix_caching=True)
    engines = {"cached": cached, "without": cached.with_flags(enable_prefix_caching=False)}
    loads = {prefix: questions(prefix) for prefix in (0, 256, 512, 1024, 2048)}
    saved_ms = {}
    for prefix, sides in perf.measure_each(engines, loads, runs=2).items():
        perf.check(sides["cached"], *hit_rate_limits(prefix, case.block), "error_rate == 0")
        perf.check(sides["without"], "prefix_cache_hit_rate == 0", "error_rate == 0")
        limit = " >= 1.5" if prefix == max(loads) else ""
        perf.compare(f"ttft_mean(without) / ttft_mean(cached){limit}", **sides)
        saved_ms[prefix] = sides["without"].value("ttft_mean") - sides["cached"].value("ttft_mean")
    growth = saved_ms[2048] / saved_ms[1024] / 2
    # Two runs give no interval of this ratio, so real hardware reports it. Where attention is a large part of a
    # prefill, it grows towards 2.
    verdict = Verdict.REPORTED if not perf.emulated else Verdict.PASS if 0.7 < growth < 1.6 else Verdict.FAIL
    reason = f"a prefix of 2048 tokens saves {growth:.2f} times as much a token as one of 1024"
    perf.record(CheckResult.stated("saved time", verdict, reason))
