"""Replicas behind a router: a router that knows prefixes pays where prefixes repeat, and only there. A replica dies.

The number of groups is odd, so a router that takes the replicas in turn sends each group to all of them.
"""

from dataclasses import dataclass

import pytest

from pytest_llmperf import (
    Perf,
    by_kind,
    closed,
    kill,
    poisson,
    random_tokens,
    replicas,
    restart,
    shared_prefix,
    vllm,
    vllm_router,
)


@dataclass(frozen=True)
class Case:
    model: str = "llama-3.1-8b"
    rate: float = 8  # of requests to two replicas
    prefix: int = 4096
    busy_rate: float = 20  # more than one replica serves without a queue


CASES = by_kind(l4=Case("phi-4-mini", rate=2, busy_rate=4, prefix=2048), a100=Case(rate=4, busy_rate=6), h100=Case(),
                h200=Case())
COUNTS = pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.gpus(2)),
                                           pytest.param(4, marks=pytest.mark.gpus(4))])


@by_kind(cpu=Case("tiny"))
def test_cache_aware_router_sends_a_prefix_to_one_replica(case: Case, perf: Perf) -> None:
    engine = vllm(case.model, max_model_len=4096)
    load = shared_prefix(prefix=1024, suffix=64, output=8, groups=9, arrivals=closed(3), requests=45)
    aware = replicas(engine, 2, router=vllm_router(policy="cache_aware"))
    by_prefix = perf.measure(aware, load)
    by_turn = perf.measure(aware.with_router(policy="round_robin"), load)
    perf.check(by_prefix, "error_rate == 0", "prefix_cache_hit_rate >= 65%")  # 9 of 45 prefixes are computed
    perf.check(by_turn, "error_rate == 0", "prefix_cache_hit_rate <= 60%", "replica_imbalance <= 1.2")  # 18 of 45


@CASES
@COUNTS
def test_cache_aware_router_answers_repeated_prefixes_sooner(case: Case, count: int, perf: Perf) -> None:
    aware = replicas(vllm(case.model, max_model_len=8192), count, router=vllm_router(policy="cache_aware"))
    perf.claim(
        aware,
        aware.with_router(policy="round_robin"),
        shared_prefix(prefix=case.prefix, suffix=(64, 128), output=16, groups=15 * count - 1, requests=60 * count,
                      arrivals=poisson(case.rate * count / 2)),
        "ttft_mean(b) / ttft_mean(a) >= 1.2",
        mechanism=["prefix_cache_hit_rate(a) >= 63%", "prefix_cache_hit_rate(b) <= 58%", "replica_imbalance(a) <= 2.5"],
    )


@CASES
@COUNTS
def test_router_gains_nothing_from_prompts_that_share_nothing(case: Case, count: int, perf: Perf) -> None:
    aware = replicas(vllm(case.model, max_model_len=8192), count, router=vllm_router(policy="cache_aware"))
    load = random_tokens(input=(500, 1500), output=16, arrivals=poisson(case.rate * count / 2), requests=60 * count)
    by_prefix = perf.measure(aware, load, starts=2)
    by_turn = perf.measure(aware.with_router(policy="round_robin"), load, starts=2)
    for run in (by_prefix, by_turn):
        perf.check(run, "error_rate == 0", "prefix_cache_hit_rate == 0", "replica_slowdown <= 1.07")
    perf.compare("itl_p50(by_turn) / itl_p50(by_prefix) <= 1.1", by_turn=by_turn, by_prefix=by_prefix)


@CASES
@pytest.mark.gpus(2)
def test_one_hot_prefix_makes_the_cache_aware_router_slower(case: Case, perf: Perf) -> None:
    """All prompts begin alike, so all of them go to one replica until 64 more wait there than elsewhere."""
    aware = replicas(vllm(case.model, max_model_len=8192), 2, router=vllm_router(policy="cache_aware"))
    perf.claim(
        aware.with_router(policy="round_robin"),
        aware,
        shared_prefix(prefix=1200, suffix=(1000, 2000), output=64, groups=1, arrivals=poisson(case.busy_rate),
                      requests=150),
        "ttft_p50(b) / ttft_p50(a) >= 1.3",
        mechanism=["replica_imbalance(a) <= 1.3", "replica_imbalance(b) >= 1.4"],
    )


@CASES
@pytest.mark.gpus(2)
@pytest.mark.parametrize(("retries", "failed_share"), [pytest.param(True, "5%", id="retries"),
                                                       pytest.param(False, "60%", id="no_retries")])
def test_killed_replica_is_missed_until_its_restart(case: Case, retries: bool, failed_share: str, perf: Perf) -> None:
    """One replica alone carries the load. Without retries the requests that the router sends to the dead one fail."""
    router = vllm_router(policy="round_robin", retries=retries)
    run = perf.measure(
        replicas(vllm(case.model, max_model_len=8192), 2, router=router),
        random_tokens(input=512, output=64, arrivals=poisson(case.rate), requests=round(120 * case.rate)),
        events=[kill(replica=1, at_requests=0.2), restart(replica=1, at_requests=0.25)],
    )
    perf.check(run, "error_rate(before) == 0", f"error_rate(during) <= {failed_share}", "error_rate(after) == 0",
               "hung_requests == 0", "ttft_p50(after) / ttft_p50(before) <= 1.2", "recovery_time <= 100s")
