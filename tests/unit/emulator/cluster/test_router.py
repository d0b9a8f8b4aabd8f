"""Which engine gets a prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.emulator.cluster.router import CacheAware, EngineLoad, LeastLoaded, RoundRobin, make_router


def loads(*in_flight: int) -> list[EngineLoad]:
    return [EngineLoad(count) for count in in_flight]


A, B = tuple(range(100)), tuple(range(500, 600))


def test_round_robin_router_chooses_engines_in_order() -> None:
    router = RoundRobin()
    assert [router.choose(A, "", loads(0, 0, 0)) for _ in range(4)] == [0, 1, 2, 0]


def test_least_loaded_takes_the_shortest_queue_and_of_equals_the_next() -> None:
    router = LeastLoaded()
    assert router.choose(A, "", loads(3, 1, 2)) == 1
    assert [router.choose(A, "", loads(0, 0, 0)) for _ in range(3)] == [1, 2, 0]


def test_waiting_requests_weigh_more_on_engine_with_full_kv_cache() -> None:
    router = LeastLoaded()
    assert router.choose(A, "", [EngineLoad(4, waiting=2, kv_usage=0.5), EngineLoad(5)]) == 0
    assert router.choose(A, "", [EngineLoad(4, waiting=2, kv_usage=0.9), EngineLoad(5)]) == 1


def test_cache_aware_router_sends_known_prefix_to_same_engine() -> None:
    router = CacheAware(3)
    assert router.choose(A, "", loads(1, 0, 2)) == 1
    assert router.choose((*A, 1), "", loads(1, 5, 2)) == 1
    assert router.choose((*A, 1), "salt", loads(1, 5, 0)) == 2
    assert router.choose(B, "salt", loads(1, 5, 2)) == 0
    assert router.choose(B, "", loads(1, 5, 0)) == 2


def test_a_prefix_must_be_more_than_three_tenths_of_the_prompt() -> None:
    router = CacheAware(2)
    assert router.choose(A[:30], "", loads(1, 0)) == 1
    assert router.choose(A[:99], "", loads(1, 9)) == 1
    assert router.choose(B[:30], "", loads(1, 0)) == 1
    assert router.choose(B, "", loads(1, 9)) == 0


def test_imbalance_needs_both_thresholds() -> None:
    router = CacheAware(2)
    assert router.choose(A, "", loads(0, 1)) == 0
    assert router.choose(A, "", loads(64, 0)) == 0
    assert router.choose(A, "", loads(250, 180)) == 0
    assert router.choose(A, "", loads(65, 0)) == 1


def test_cache_aware_router_prefers_shortest_queue_among_engines_with_prefix() -> None:
    router = CacheAware(2)
    router.choose(A, "", loads(0, 1))
    assert router.choose(A, "", loads(65, 0)) == 1
    assert router.choose(A, "", loads(3, 1)) == 1
    assert router.choose(A, "", loads(1, 3)) == 0


def test_router_reset_forgets_prefixes() -> None:
    router = CacheAware(2)
    router.choose(A, "", loads(0, 1))
    router.reset()
    assert router.choose(A, "", loads(1, 0)) == 1


def test_cache_aware_router_keeps_tree_below_limit() -> None:
    router = CacheAware(1, tree_tokens=250)
    for start in range(10):
        router.choose(tuple(range(1000 * start, 1000 * start + 100)), "", loads(0))
    assert router._trees[0].size <= 250


@given(
    name=st.sampled_from(["cache-aware", "least-loaded", "round-robin"]),
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=10).map(tuple), max_size=20),
    queues=st.lists(st.integers(0, 200), min_size=2, max_size=4),
)
def test_every_router_chooses_existing_engine(name: str, prompts: list[tuple[int, ...]], queues: list[int]) -> None:
    router = make_router(name, len(queues))  # type: ignore[arg-type]
    assert all(0 <= router.choose(prompt, "", loads(*queues)) < len(queues) for prompt in prompts)
