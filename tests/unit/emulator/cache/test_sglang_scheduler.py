"""SGLang's rules of admission, chunking, retraction and order, without any clock."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.emulator.cache.radix_tree import Node
from pytest_llmperf.emulator.config import EngineConfig, Speculation
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.core.sglang_policy import NewTokenRatio, by_longest_prefix, by_subtree_weight
from pytest_llmperf.emulator.core.sglang_scheduler import SglangScheduler
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES

IDS = itertools.count()
CONFIG = EngineConfig(
    engine="sglang",
    shape=SHAPES["tiny"],
    gpu=GPU_KINDS["h200"],
    max_model_len=100_000,
    max_num_batched_tokens=100,
    max_num_seqs=64,
    block_size=1,
    num_blocks=10_000,
    async_scheduling=False,
)


def sequence(prompt: tuple[int, ...] | int, max_tokens: int = 4) -> Sequence:
    number = next(IDS)
    tokens = prompt if isinstance(prompt, tuple) else tuple(100_000 * (number + 1) + i for i in range(prompt))
    return Sequence(number, tokens, max_tokens, 0)


def scheduler(**changes: object) -> SglangScheduler:
    return SglangScheduler(replace(CONFIG, **changes))  # type: ignore[arg-type]


def step(engine: SglangScheduler) -> list[tuple[Sequence, int]]:
    batch = engine.schedule(0)
    if batch is None:
        return []
    engine.complete(batch, 0)
    return [row[:2] for row in batch.rows]


def drain(engine: SglangScheduler, steps: int = 3_000) -> list[list[tuple[Sequence, int]]]:
    done = []
    while engine.waiting or engine.running:
        done.append(step(engine))
        assert done[-1]
        assert len(done) < steps
    return done


def test_a_prefill_stops_the_decodes() -> None:
    engine = scheduler()
    first, second = sequence(10), sequence(20)
    engine.add(first)
    assert step(engine) == [(first, 10)]
    assert step(engine) == [(first, 1)]
    engine.add(second)
    assert step(engine) == [(second, 20)]
    assert step(engine) == [(first, 1), (second, 1)]


def test_mixed_chunks_decode_along() -> None:
    engine = scheduler(mixed_chunk=True)
    first, second = sequence(10), sequence(200)
    engine.add(first)
    step(engine)
    engine.add(second)
    assert step(engine) == [(second, 99), (first, 1)]


def test_long_prompt_is_split_and_remainder_has_priority() -> None:
    engine = scheduler()
    long, short = sequence(250), sequence(30)
    engine.add(long)
    engine.add(short)
    assert [step(engine) for _ in range(3)] == [[(long, 100)], [(long, 100)], [(long, 50), (short, 30)]]
    assert (long.generated, short.generated) == (1, 1)


def test_without_chunks_a_prompt_is_whole_and_above_the_prefill_limit_alone() -> None:
    engine = scheduler(chunked_prefill=False, max_prefill_tokens=100)
    long, other = sequence(250), sequence(30)
    engine.add(long)
    engine.add(other)
    assert step(engine) == [(long, 250)]
    assert step(engine) == [(other, 30)]


def test_without_chunks_a_second_prompt_must_fit_whole() -> None:
    engine = scheduler(chunked_prefill=False, max_prefill_tokens=100)
    first, second, third = sequence(40), sequence(60), sequence(39)
    for member in (first, second, third):
        engine.add(member)
    assert step(engine) == [(first, 40)]
    assert step(engine) == [(second, 60), (third, 39)]


@pytest.mark.parametrize(("pool", "admitted"), [(8215, 2), (8214, 1)])
def test_admission_reserves_at_most_4096_of_the_requested_tokens(pool: int, admitted: int) -> None:
    """Each prompt of 10 tokens takes 10, one page and 4,096 tokens, and must leave one token."""
    engine = scheduler(num_blocks=pool)
    for _ in range(2):
        engine.add(sequence(10, max_tokens=5000))
    assert len(step(engine)) == admitted


def test_max_running_requests_limits_batch_size() -> None:
    engine = scheduler(max_num_seqs=2)
    three = [sequence(5) for _ in range(3)]
    for member in three:
        engine.add(member)
    assert max(len(batch) for batch in drain(engine)) == 2
    assert all(sequence.end == "length" for sequence in three)


def test_admission_reserves_max_tokens() -> None:
    engine = scheduler(num_blocks=300)
    first, second = sequence(10, max_tokens=240), sequence(10, max_tokens=60)
    engine.add(first)
    engine.add(second)
    assert step(engine) == [(first, 10)]
    assert step(engine) == [(first, 1)]
    assert engine.waiting == [second]


def test_reserved_output_tokens_are_limited() -> None:
    engine = scheduler(num_blocks=9_000, max_num_batched_tokens=8192)
    pair = [sequence(100, max_tokens=5_000), sequence(100, max_tokens=5_000)]
    for member in pair:
        engine.add(member)
    assert len(step(engine)) == 2


def test_admission_includes_share_of_remaining_output_of_running_sequences() -> None:
    def admitted(conservativeness: float) -> bool:
        engine = scheduler(num_blocks=200, conservativeness=conservativeness)
        first, second = sequence(10, max_tokens=101), sequence(20, max_tokens=99)
        engine.add(first)
        step(engine)
        engine.add(second)
        return step(engine) == [(second, 20)]

    assert not admitted(1.0)  # 190 - 0.7 × 100 = 120 = 20 + 99 + 1
    assert admitted(0.99)


def test_full_pool_stops_admission_until_sequence_finishes() -> None:
    engine = scheduler(num_blocks=200)
    first, second, small = sequence(10, max_tokens=101), sequence(60, max_tokens=99), sequence(1, max_tokens=1)
    engine.add(first)
    step(engine)
    engine.add(second)
    step(engine)
    engine.add(small)
    while first.end is None:
        assert step(engine) == [(first, 1)]
    assert step(engine) == [(second, 60), (small, 1)]


def over_admitted() -> tuple[SglangScheduler, Sequence, Sequence]:
    """A pool of 60 tokens for two that need 50 and 42."""
    engine = scheduler(num_blocks=60, conservativeness=0.0)
    old, young = sequence(10, max_tokens=40), sequence(12, max_tokens=30)
    engine.add(old)
    for _ in range(6):
        step(engine)
    engine.add(young)
    assert step(engine) == [(young, 12)]
    return engine, old, young


def test_the_fewest_output_tokens_are_retracted_first() -> None:
    engine, old, young = over_admitted()
    for _ in range(30):
        if engine.counters.preemptions:
            break
        step(engine)
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert engine.waiting == [young]
    assert engine.ratio.current > 0.9


def test_with_drafts_the_latest_is_retracted_first() -> None:
    """SGLang 0.5.15 can then take requests from the back of the batch alone, whatever they have generated."""
    engine = scheduler(num_blocks=68, conservativeness=0.0, speculation=Speculation(1, (0.0,)))
    old, young = sequence(10, max_tokens=40), sequence(12, max_tokens=30)
    engine.add(old)
    step(engine)
    engine.add(young)
    step(engine)
    old.generated, young.generated = 1, 5
    for _ in range(30):
        if engine.counters.preemptions:
            break
        step(engine)
    assert (old.preemptions, young.preemptions) == (0, 1)


def test_without_a_tree_all_must_be_able_to_end() -> None:
    """A tree's reserve of a share would let the second in, and retract it later."""
    def admitted(blocks: int, **changes: object) -> bool:
        engine = scheduler(num_blocks=blocks, conservativeness=0.0, **changes)
        first, second = sequence(10, max_tokens=60), sequence(20, max_tokens=50)
        engine.add(first)
        step(engine)
        engine.add(second)
        return step(engine) == [(second, 20)]

    # 10 and 20 tokens are held; until the second has ended both take 50 more, and one of each stays free.
    assert [admitted(blocks, prefix_caching=False) for blocks in (132, 133)] == [False, True]
    assert admitted(100)


def test_finishing_sequences_make_room_for_admission() -> None:
    """Two that generate 20 tokens give back 30 each before the third needs them."""
    def admitted(blocks: int, together: bool) -> bool:
        engine = scheduler(num_blocks=blocks, prefix_caching=False)
        for member in (sequence(10, max_tokens=20), sequence(10, max_tokens=20)):
            engine.add(member)
        if not together:
            step(engine)
        engine.add(third := sequence(10, max_tokens=78))
        return (third, 10) in step(engine)

    # 30 are held; while the two generate the 19 that each lacks the third takes as many, and one of each stays free.
    assert [admitted(blocks, together=False) for blocks in (90, 91)] == [False, True]
    # In one batch the list is not sorted anew: the third, with the most to generate, stands before the last of them.
    assert [admitted(blocks, together=True) for blocks in (180, 181)] == [False, True]


def test_pool_without_radix_tree_causes_no_retraction() -> None:
    engine = scheduler(num_blocks=3_000, conservativeness=0.0, prefix_caching=False)
    for number in range(60):
        engine.add(sequence(30, max_tokens=40 + 7 * (number % 30)))
    drain(engine)
    assert engine.counters.preemptions == 0


def test_retraction_sets_new_token_ratio_to_used_share_plus_20_tokens() -> None:
    ratio = NewTokenRatio()
    seq = sequence(5, max_tokens=100)
    seq.generated = 10
    ratio.after_retraction([seq])
    assert ratio.current == pytest.approx(30 / 101)


def test_retracted_sequence_computes_generated_output_again() -> None:
    engine, _, young = over_admitted()
    rows = [row for batch in drain(engine) for row in batch if row[0] is young and row[1] > 1]
    assert len(rows) == 1
    assert 12 < rows[0][1] < 42
    assert young.generated == 30
    assert engine.cache.free == 60


def test_the_token_in_flight_of_a_retracted_sequence_is_dropped() -> None:
    engine = scheduler(num_blocks=60, conservativeness=0.0, async_scheduling=True)
    old, young = sequence(10, max_tokens=40), sequence(12, max_tokens=30)
    engine.add(old)
    coming = None
    for number in range(60):
        if number == 6:
            engine.add(young)
        batch, coming = coming or engine.schedule(0), None
        assert batch is not None
        coming = engine.schedule(0)
        generated = young.generated
        tokens, _ = engine.complete(batch, 0)
        if engine.counters.preemptions:
            assert any(row[0] is young for row in batch.rows)
            assert [seq for seq, _ in tokens] == [old]
            assert (young.generated, young.expected, young.stale) == (generated, 0, False)
            return
    pytest.fail("nothing was retracted")


def test_prompt_is_shared_immediately_after_computation() -> None:
    engine = scheduler()
    first, second = sequence(tuple(range(50)), max_tokens=20), sequence((*range(50), 1))
    engine.add(first)
    step(engine)
    engine.add(second)
    assert step(engine) == [(second, 1)]


def test_finished_sequence_lets_waiting_sequence_start() -> None:
    engine = scheduler(max_num_seqs=2)
    first, second, third = sequence(5, max_tokens=3), sequence(5, max_tokens=30), sequence(5)
    for member in (first, second, third):
        engine.add(member)
    assert [len(step(engine)) for _ in range(3)] == [2, 2, 2]
    assert first.end == "length"
    assert step(engine) == [(third, 5)]


def test_lpm_takes_the_longest_cached_prefix_first() -> None:
    engine = scheduler(policy="lpm", max_num_seqs=1)
    cached = tuple(range(50))
    engine.add(sequence(cached, max_tokens=1))
    drain(engine)
    cold, warm = sequence(60), sequence((*cached, 1))
    engine.add(cold)
    engine.add(warm)
    assert step(engine) == [(warm, 1)]


def test_lpm_policy_sorts_queue_by_cached_prefix() -> None:
    engine = scheduler(policy="lpm")
    cached = tuple(range(50))
    engine.add(sequence(cached, max_tokens=1))
    drain(engine)
    cold, first, second = sequence(60), sequence((*cached, *range(1000, 1100))), sequence((*cached, *range(2000, 2060)))
    for member in (cold, first, second):
        engine.add(member)
    assert step(engine) == [(first, 100)]
    assert engine.waiting == [second, cold]


def test_dfs_weight_policy_serves_prefix_with_most_waiting_sequences_first() -> None:
    engine = scheduler(policy="dfs-weight")
    rare, common = tuple(range(50)), tuple(range(100, 150))
    for cached in (rare, common):
        engine.add(sequence(cached, max_tokens=1))
    drain(engine)
    lone = sequence((*rare, *range(1000, 1100)))
    pair = [sequence((*common, *range(start, start + 100))) for start in (2000, 3000)]
    for member in (lone, *pair):
        engine.add(member)
    assert step(engine) == [(pair[0], 100)]
    assert engine.waiting == [pair[1], lone]


def test_dfs_weight_policy_serves_deeper_sequences_first() -> None:
    root = Node((), None)
    upper = root.children[(1,)] = Node((1,), root)
    lower = upper.children[(2,)] = Node((2,), upper)
    at_upper, at_lower, at_root = sequence(10), sequence(11), sequence(12)
    ends = {at_upper: upper, at_lower: lower, at_root: root}
    assert by_subtree_weight([at_root, at_upper, at_lower], ends.__getitem__) == [at_lower, at_upper, at_root]


def test_lpm_falls_back_to_fcfs_above_128() -> None:
    queue = [sequence((i,)) for i in range(129)]
    assert by_longest_prefix(queue, lambda s: s.prompt[0]) == queue
    assert by_longest_prefix(queue[1:], lambda s: s.prompt[0]) != queue[1:]


def test_lpm_policy_defers_prompt_that_will_share_prefix_with_earlier_prompt() -> None:
    shared = tuple(range(40))
    first, second, other = sequence((*shared, 1)), sequence((*shared, 2)), sequence(7)
    assert by_longest_prefix([first, second, other], lambda s: 0) == [first, other, second]


def test_lpm_policy_without_radix_tree_is_first_come_first_served() -> None:
    engine = scheduler(policy="lpm", prefix_caching=False)
    for _ in range(2):
        seq = sequence(tuple(range(50)), max_tokens=1)
        engine.add(seq)
        assert step(engine) == [(seq, 50)]
    assert engine.counters.prefix_cache_queries == 0


def test_new_token_ratio_falls_to_minimum_in_600_steps() -> None:
    ratio = NewTokenRatio()
    assert ratio.current == 0.7
    ratio.decay(300)
    assert ratio.current == pytest.approx(0.7 * (1 + 0.14) / 2)
    ratio.decay(301)
    assert ratio.current == ratio.least
    assert NewTokenRatio(2.0).current == 1.0


def test_request_larger_than_pool_is_refused() -> None:
    engine = scheduler(num_blocks=100)
    with pytest.raises(ValueError, match="98 tokens that one request can have"):
        engine.add(sequence(50, max_tokens=60))


def test_hits_are_counted_once_and_to_the_token() -> None:
    engine = scheduler()
    for extra in (1, 2):
        engine.add(sequence((*range(33), extra), max_tokens=1))
        drain(engine)
    assert (engine.counters.prefix_cache_queries, engine.counters.prefix_cache_hits) == (68, 33)
    assert (engine.counters.prompt_tokens, engine.counters.prompt_tokens_cached) == (68, 33)


def test_accepted_drafts_are_added_in_same_step() -> None:
    engine = scheduler(speculation=Speculation(3, (1.0, 1.0, 0.0)))
    seq = sequence(10, max_tokens=8)
    engine.add(seq)
    for expected in (10, 13, 16):
        step(engine)
        assert (seq.computed, seq.length) == (expected, expected + 1)
    assert [rows[0][1] for rows in drain(engine)] == [4]
    assert engine.counters.spec_accepted_per_position == {0: 3, 1: 3}
    assert seq.generated == 8
    assert engine.cache.free == 10_000


PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=40).map(tuple)


@settings(max_examples=250, deadline=None)
@given(
    requests=st.lists(st.tuples(PROMPT, st.integers(1, 30), st.integers(0, 20)), min_size=1, max_size=25),
    capacity=st.integers(80, 200),
    page=st.sampled_from([1, 1, 4]),
    chunk=st.sampled_from([None, 8, 16]),
    policy=st.sampled_from(["fcfs", "lpm"]),
    mixed=st.booleans(),
    ahead=st.booleans(),
    conservativeness=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_every_sequence_finishes_once_and_no_token_is_lost(
    requests: list[tuple[tuple[int, ...], int, int]],
    capacity: int,
    page: int,
    chunk: int | None,
    policy: str,
    mixed: bool,
    ahead: bool,
    conservativeness: float,
) -> None:
    engine = scheduler(
        num_blocks=capacity // page,
        block_size=page,
        max_num_batched_tokens=chunk or 100,
        chunked_prefill=chunk is not None,
        max_num_seqs=8,
        mixed_chunk=mixed and page == 1,
        policy=policy,
        conservativeness=conservativeness,
        async_scheduling=ahead,
    )
    cache = engine.cache
    pending = sorted(((at, sequence(prompt, new)) for prompt, new, at in requests), key=lambda pair: pair[0])
    everyone = [first for _, first in pending]
    given_out = dict.fromkeys(everyone, 0)
    ended: list[Sequence] = []
    coming = None
    for number in range(3_000):
        while pending and pending[0][0] <= number:
            engine.add(pending.pop(0)[1])
        batch, coming = coming or engine.schedule(0), None
        if batch is None:
            assert not engine.waiting
            assert not engine.running
            if not pending:
                break
            continue
        if ahead:
            coming = engine.schedule(0)
        prefill = [row for row in batch.rows if row[1] > 1 or row[0].generated == 0]
        assert chunk is None or sum(row[1] for row in prefill) <= chunk
        tokens, finished = engine.complete(batch, 0)
        for served, count in tokens:
            given_out[served] += count
        ended += finished
        assert cache.empty + cache.tree.size + sum(held.owned for held in cache._held.values()) == cache.capacity
        assert len(engine.running) <= 8 + mixed
    assert given_out == {sequence: sequence.max_tokens for sequence in everyone}
    assert sorted(sequence.id for sequence in ended) == sorted(sequence.id for sequence in everyone)
    assert cache.free == cache.capacity
    assert engine.counters.finished_length == len(everyone)
