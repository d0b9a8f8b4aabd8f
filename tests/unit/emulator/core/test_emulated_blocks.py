"""vLLM's block pool: which blocks are found, which are taken first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.emulator.core.blocks import BlockPool
from pytest_llmperf.emulator.core.sequence import Sequence


def sequence(*tokens: int, generated: int = 0, salt: str = "") -> Sequence:
    return Sequence(0, tokens, 10, 0, salt=salt, generated=generated)


def hold(pool: BlockPool, first: Sequence, full: int | None = None) -> Sequence:
    """Admits it with all its tokens computed."""
    hits = pool.cached_blocks(first)
    pool.share(first, hits)
    pool.take(first, -(-first.length // pool.block_size) - len(hits))
    pool.keep(first, first.length // pool.block_size if full is None else full)
    return first


def lookup(pool: BlockPool, sequence: Sequence) -> int:
    """Tokens of its longest cached prefix."""
    return len(pool.cached_blocks(sequence)) * pool.block_size



def test_one_block_is_never_given_out():
    pool = BlockPool(10, 4, True)
    assert pool.free == pool.usable == 9
    hold(pool, sequence(*range(36)))
    assert (pool.free, pool.usage) == (0, 1.0)


def test_the_last_token_of_a_known_prompt_is_computed_again():
    pool = BlockPool(20, 4, True)
    hold(pool, sequence(*range(12)))
    lengths = {12: 8, 13: 12, 11: 8, 9: 8, 8: 4, 4: 0, 3: 0}
    assert {n: lookup(pool, sequence(*range(n))) for n in lengths} == lengths


def test_block_is_found_only_behind_equal_prefix():
    pool = BlockPool(20, 4, True)
    hold(pool, sequence(1, 2, 3, 4, 5, 6, 7, 8))
    assert lookup(pool, sequence(9, 9, 9, 9, 5, 6, 7, 8, 1)) == 0
    assert lookup(pool, sequence(1, 2, 3, 4, 9, 9, 9, 9, 1)) == 4


def test_draft_model_on_target_states_recomputes_last_block():
    pool = BlockPool(20, 4, True, last_again=True)
    hold(pool, sequence(*range(12)))
    assert {n: lookup(pool, sequence(*range(n))) for n in (3, 5, 12, 13)} == {3: 0, 5: 0, 12: 4, 13: 8}


def test_block_pool_does_not_share_blocks_between_salts():
    pool = BlockPool(20, 4, True)
    hold(pool, sequence(*range(8), salt="a"))
    assert lookup(pool, sequence(*range(9))) == 0
    assert lookup(pool, sequence(*range(9), salt="b")) == 0
    assert lookup(pool, sequence(*range(9), salt="a")) == 8


def test_generated_blocks_are_found_by_the_next_turn():
    pool = BlockPool(20, 4, True)
    first = hold(pool, sequence(*range(6), generated=7))
    pool.release(first)
    turn = sequence(*first.tokens(0, 13), 77, 78)
    assert lookup(pool, turn) == 12
    assert first.tokens(0, 13)[6:] == tuple(first.token(position) for position in range(6, 13))


def test_disabled_prefix_caching_finds_and_hashes_no_block():
    pool = BlockPool(20, 4, False)
    seq = hold(pool, sequence(*range(8)))
    pool.release(seq)
    assert lookup(pool, sequence(*range(9))) == 0
    assert seq.hashes == []


def test_empty_blocks_are_reused_before_cached_blocks_and_tails_before_heads():
    pool = BlockPool(8, 4, True)  # seven blocks
    first, two = hold(pool, sequence(*range(8))), hold(pool, sequence(*range(100, 111)))
    pool.release(first)
    pool.release(two)
    hold(pool, sequence(*range(200, 212)))  # two empty ones were left and one of two's was not full
    assert lookup(pool, sequence(*range(9))) == 8
    assert lookup(pool, sequence(*range(100, 112))) == 8
    hold(pool, sequence(300))
    assert lookup(pool, sequence(*range(9))) == 4
    hold(pool, sequence(301))
    assert lookup(pool, sequence(*range(9))) == 0
    hold(pool, sequence(302))
    assert lookup(pool, sequence(*range(100, 112))) == 4


def test_block_that_was_hit_is_evicted_last():
    pool = BlockPool(6, 4, True)
    for start in (0, 100):
        pool.release(hold(pool, sequence(*range(start, start + 8))))
    again = hold(pool, sequence(*range(9)))
    assert pool.free == 2
    pool.release(again)
    for start in (200, 300):
        hold(pool, sequence(*range(start, start + 4)))
    assert lookup(pool, sequence(*range(9))) == 8
    assert lookup(pool, sequence(*range(100, 109))) == 4


def test_a_shared_block_is_held_until_the_last_holder_leaves():
    pool = BlockPool(10, 4, True)
    seq = hold(pool, sequence(*range(8)))
    two, three = (hold(pool, sequence(*range(9))) for _ in range(2))
    assert pool.free == 9 - 2 - 2
    pool.release(seq)
    pool.release(three)
    assert pool.free == 9 - 3
    pool.release(two)
    assert pool.free == 9


def test_older_of_two_equal_blocks_is_found_first():
    pool = BlockPool(10, 4, True)
    first, two = sequence(*range(5)), sequence(*range(5))
    for each in (first, two):
        pool.take(each, 2)
        pool.keep(each, 1)
    assert pool.cached_blocks(sequence(*range(5))) == first.blocks[:1]
    older_block = two.blocks[0]
    pool.release(first)
    hold(pool, sequence(*range(50, 50 + 28)))  # takes all that is free
    assert pool.cached_blocks(sequence(*range(5))) == [older_block]


def test_reset_needs_all_blocks_back():
    pool = BlockPool(10, 4, True)
    seq = hold(pool, sequence(*range(9)))
    assert not pool.reset()
    assert lookup(pool, sequence(*range(9))) == 8
    pool.release(seq)
    assert pool.reset()
    assert lookup(pool, sequence(*range(9))) == 0
    assert pool.free == 9


def test_leaked_blocks_are_never_free_again():
    pool = BlockPool(10, 4, True)
    pool.release(hold(pool, sequence(*range(36))))
    pool.leak(2)
    assert (pool.free, pool.leaked) == (7, 2)
    assert not pool.reset()
    pool.leak(100)
    assert pool.free == 0


class Reference:
    """The same rules with one queue of (block, content), as they are told: every full block by all tokens before it."""

    def __init__(self, usable: int, size: int) -> None:
        self.size = size
        self.queue: list[list[object]] = [[None] for _ in range(usable)]
        self.held: dict[int, list[list[object]]] = {}
        self.counts: dict[int, int] = {}

    def find(self, tokens: tuple[int, ...]) -> list[list[object]]:
        hits = []
        for end in range(self.size, len(tokens), self.size):
            same = [b for b in self.registered if b[0] == tokens[:end]]
            if not same:
                break
            hits.append(min(same, key=lambda b: b[1]))
        return hits

    @property
    def registered(self) -> list[list[object]]:
        held = (block for blocks in self.held.values() for block in blocks)
        return list({id(block): block for block in [*self.queue, *held] if block[0] is not None}.values())

    def admit(self, name: int, tokens: tuple[int, ...], time: int) -> int | None:
        hits = self.find(tokens)
        idle = sum(any(b is q for q in self.queue) for b in hits)
        lacking = -(-len(tokens) // self.size) - len(hits)
        if lacking > len(self.queue) - idle:
            return None
        self.queue = [q for q in self.queue if not any(q is b for b in hits)]
        new = [self.queue.pop(0) for _ in range(lacking)]
        self.held[name] = [*hits, *new]
        for block in self.held[name]:
            self.counts[id(block)] = self.counts.get(id(block), 0) + 1
        for index, block in enumerate(self.held[name][len(hits) :], len(hits)):
            block[:] = [None]
            if (index + 1) * self.size <= len(tokens):
                block[:] = [tokens[: (index + 1) * self.size], time]
        return len(hits)

    def leave(self, name: int) -> None:
        first, last = [], []
        for block in reversed(self.held.pop(name)):
            self.counts[id(block)] -= 1
            if not self.counts[id(block)]:
                (first if block[0] is None else last).append(block)
        self.queue = first + self.queue + last


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("admit"), st.integers(0, 2), st.integers(1, 30), st.integers(0, 29)),
            st.tuples(st.just("leave"), st.integers(0, 9)),
        ),
        max_size=60,
    ),
    st.integers(3, 20),
)
def test_block_pool_matches_single_queue_reference(actions, usable):
    pool, reference = BlockPool(usable + 1, 4, True), Reference(usable, 4)
    held: dict[int, Sequence] = {}
    for time, action in enumerate(actions):
        if action[0] == "leave":
            names = sorted(held)
            if names:
                name = names[action[1] % len(names)]
                pool.release(held.pop(name))
                reference.leave(name)
        else:
            _, text, length, fork = action
            tokens = tuple(text if position < fork else 50 + text for position in range(length))
            hits = reference.admit(time, tokens, time)
            seq = sequence(*tokens)
            blocks = pool.cached_blocks(seq)
            if hits is None:
                assert -(-length // 4) - len(blocks) > pool.free - pool.idle_among(blocks)
                continue
            assert len(blocks) == hits
            held[time] = hold(pool, seq)
        assert pool.free == len(reference.queue)
