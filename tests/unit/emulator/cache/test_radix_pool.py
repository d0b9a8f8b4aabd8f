"""SGLang's pool of tokens: each is free, in the tree, or owned by one sequence."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.emulator.cache.radix import RadixCache
from pytest_llmperf.emulator.core.sequence import Sequence


def sequence(prompt: tuple[int, ...], salt: str = "") -> Sequence:
    return Sequence(id=0, prompt=prompt, max_tokens=4, arrived_ns=0, salt=salt)


PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)


@settings(max_examples=300, deadline=None)
@given(
    page=st.integers(1, 4),
    capacity=st.integers(8, 40),
    enabled=st.booleans(),
    actions=st.lists(
        st.tuples(st.sampled_from(["admit", "keep", "finish", "retract"]), PROMPT, st.integers(0, 20)), max_size=40
    ),
)
def test_radix_pool_never_loses_tokens(
    page: int, capacity: int, enabled: bool, actions: list[tuple[str, tuple[int, ...], int]]
) -> None:
    cache = RadixCache(capacity, page, enabled)
    running: list[Sequence] = []
    for action, prompt, number in actions:
        if action == "admit":
            new = sequence(prompt)
            shared = cache.hold(new)
            assert shared < len(prompt)
            if cache.allocate(new, len(prompt)):
                running.append(new)
            else:
                cache.release(new)
        elif running:
            chosen = running[number % len(running)]
            if action == "keep":
                cache.keep(chosen, min(number, len(chosen.prompt)))
            else:
                running.remove(chosen)
                cache.release(chosen, len(chosen.prompt) if action == "finish" else None)
        assert cache.empty + cache.tree.size + sum(held.owned for held in cache._held.values()) == cache.capacity
        assert cache.empty >= 0
        assert all(cache.needed(s, len(s.prompt)) == 0 for s in running)
    for left in running:
        cache.release(left)
    assert cache.free == cache.capacity
    assert cache.reset()
    assert cache.empty == cache.capacity


def test_finished_prompt_is_cached_up_to_second_last_token() -> None:
    cache = RadixCache(100)
    first = sequence((1, 2, 3, 4, 5))
    assert cache.hold(first) == 0
    assert cache.allocate(first, 5)
    cache.release(first, 5)
    assert cache.hold(sequence((1, 2, 3, 4, 5))) == 4
    assert cache.hold(sequence((1, 2, 3, 9))) == 3
    assert cache.hold(sequence((1, 2, 3, 4, 5), salt="other")) == 0


def test_computed_prompt_is_shared_during_sequence() -> None:
    cache = RadixCache(10)
    first, second = sequence((1, 2, 3, 4)), sequence((1, 2, 3, 4, 5))
    cache.hold(first)
    assert cache.allocate(first, 4)
    cache.keep(first, 4)
    assert cache.hold(second) == 4
    assert cache.allocate(second, 5)
    assert cache.empty == 5


def test_two_that_computed_the_same_keep_one_copy() -> None:
    cache = RadixCache(10)
    pair = [sequence((1, 2, 3, 4)), sequence((1, 2, 3, 4))]
    for member in pair:
        cache.hold(member)
        assert cache.allocate(member, 4)
    assert cache.empty == 2
    for member in pair:
        cache.keep(member, 4)
    assert cache.empty == 6


def test_retracted_sequence_leaves_no_blocks() -> None:
    cache = RadixCache(10)
    seq = sequence((1, 2, 3, 4))
    cache.hold(seq)
    assert cache.allocate(seq, 4)
    cache.release(seq)
    assert cache.empty == 10


def test_tokens_in_use_are_never_evicted() -> None:
    cache = RadixCache(8)
    first, second = sequence((1, 2, 3, 4)), sequence((5, 6, 7, 8, 9))
    cache.hold(first)
    assert cache.allocate(first, 4)
    cache.keep(first, 4)
    cache.hold(second)
    assert not cache.allocate(second, 5)
    cache.release(first, 4)
    assert cache.allocate(second, 5)


def test_usage_includes_held_but_not_cached_tokens() -> None:
    cache = RadixCache(10)
    seq = sequence((1, 2, 3, 4))
    cache.hold(seq)
    assert cache.allocate(seq, 4)
    assert cache.usage == 0.4
    cache.release(seq, 4)
    assert (cache.usage, cache.tree.size) == (0.0, 4)


def test_cache_reset_is_refused_while_sequence_runs() -> None:
    cache = RadixCache(10)
    seq = sequence((1, 2, 3, 4))
    cache.hold(seq)
    assert not cache.reset()
    cache.release(seq)
    assert cache.reset()
