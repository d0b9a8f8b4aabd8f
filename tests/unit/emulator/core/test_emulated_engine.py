"""What must hold for every workload, and that many steps at once are the same as one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_llmperf.emulator.config import Speculation
from pytest_llmperf.emulator.core.batch import End
from pytest_llmperf.emulator.core.blocks import BlockPool
from pytest_llmperf.emulator.core.engine import Engine
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.core.vllm_scheduler import VllmScheduler
from pytest_llmperf.shapes import SHAPES

REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 60_000_000),  # arrival
        st.integers(0, 2),  # which text
        st.integers(1, 90) | st.sampled_from([5, 17, 33]),  # prompt
        st.integers(1, 60) | st.sampled_from([30, 60]),  # max_tokens
        st.booleans(),  # continues with what the model said before
    ),
    min_size=1,
    max_size=14,
)
ENGINES = st.fixed_dictionaries(
    {
        "async_scheduling": st.booleans(),
        "prefix_caching": st.booleans(),
        "num_blocks": st.sampled_from([41, 48, 60, 101]),
        "max_num_seqs": st.sampled_from([2, 5, 16]),
        "max_num_batched_tokens": st.sampled_from([3, 16, 64, 200]),
        "block_size": st.sampled_from([4, 16]),
    }
)
TINY = SHAPES["tiny"]
SPECULATIONS = st.sampled_from(
    [None, Speculation(2, (0.8, 0.6)), Speculation(2, (0.9,)), Speculation(1, (0.0,)), Speculation(1, (0.9,), TINY)]
)


def workload(requests: list[tuple[int, int, int, int, bool]]) -> list[tuple[int, Sequence]]:
    arrivals = []
    for number, (arrival_ns, text, prompt, max_tokens, continues) in enumerate(requests):
        tokens = tuple((7 * text + position) % 50 for position in range(prompt))
        if continues:
            tokens = Sequence(0, tokens[: prompt // 2 + 1], 99, 0).tokens(0, prompt)
        arrivals.append((arrival_ns, Sequence(number, tokens, max_tokens, 0, salt="x" * (text == 2))))
    return arrivals


def idle_blocks(pool: BlockPool) -> list[int]:
    """In the order in which they would be taken."""
    return list(pool._idle)


def books_balance(engine: Engine) -> None:
    pool, scheduler = engine.scheduler.pool, engine.scheduler
    loading = [sequence for _, sequence in scheduler.loading]
    holders = Counter(block for s in [*scheduler.running, *loading] for block in s.blocks)
    assert pool.free + len(holders) + pool.leaked == pool.usable
    assert sorted([*holders, *pool._empty, *pool._idle]) == list(range(1, pool.usable + 1))
    assert {block: count - 1 for block, count in holders.items() if count > 1} == pool._further
    registered = [*pool._block.values(), *(block for twins in pool._twins.values() for block in twins)]
    assert sorted(registered) == sorted(pool._hash)
    assert {*pool._idle} <= pool._hash.keys()
    assert all(not s.blocks and not s.computed for s in scheduler.waiting)
    for sequence in scheduler.running:
        assert sequence.room == len(sequence.blocks) * pool.block_size
        assert sequence.computed <= sequence.room


CHUNKS_OF_ONE = {"num_blocks": 41, "max_num_seqs": 5, "max_num_batched_tokens": 3, "block_size": 4}


@settings(max_examples=300, deadline=None)
@given(REQUESTS, ENGINES, st.integers(0, 3))
@example(
    [(0, 0, 68, 31, False), (0, 0, 1, 31, False), (0, 0, 4, 26, False)],  # what a preempted one said, token by token
    CHUNKS_OF_ONE | {"async_scheduling": True, "prefix_caching": True},
    0,
)
def test_fast_forward_equals_single_steps_in_every_event(lab, requests, flags, shake):
    outcomes = []
    for leaping in (False, True):
        engine = lab.engine(lab.Shaky(shake) if shake else None, **flags)
        arrivals = workload(requests)
        events = lab.drive(engine, arrivals, leaping, books_balance)
        states = [(s.generated, s.computed, s.preemptions, s.cached_tokens) for _, s in arrivals]
        states += [(s.first_scheduled_ns, s.first_token_ns, s.ended_ns) for _, s in arrivals]
        pool = engine.scheduler.pool
        place = {block: number for number, block in enumerate(idle_blocks(pool))}
        contents = [pool._hash[block] for block in place]
        contents.append({key: [place[b] for b in (pool._block[key], *twins)] for key, twins in pool._twins.items()})
        outcomes.append((events, states, asdict(engine.counters), contents))
    assert outcomes[0] == outcomes[1]


@settings(max_examples=300, deadline=None)
@given(REQUESTS, ENGINES, SPECULATIONS, st.booleans())
def test_every_request_gets_all_tokens_in_increasing_time(lab, requests, flags, speculation, leaping):
    engine = lab.engine(speculation=speculation, **flags)
    arrivals = workload(requests)
    events = lab.drive(engine, arrivals, leaping, books_balance)
    given_out: Counter[int] = Counter()
    clock_ns = 0
    for event in events:
        assert clock_ns <= event.started_ns < event.ended_ns
        clock_ns = event.ended_ns
        given_out.update(dict(event.tokens))
    for arrival_ns, sequence in arrivals:
        assert given_out[sequence.id] == sequence.max_tokens == sequence.generated
        assert arrival_ns <= sequence.first_scheduled_ns < sequence.first_token_ns <= sequence.ended_ns
        assert sequence.end == "length"
    assert engine.wake_ns(0) is None or speculation
    counters = engine.counters
    assert counters.generation_tokens == sum(s.max_tokens for _, s in arrivals)
    assert counters.prompt_tokens == sum(s.prompt_length for _, s in arrivals)
    assert counters.finished_length == len(arrivals)
    assert counters.preemptions == sum(s.preemptions for _, s in arrivals)
    assert counters.prompt_tokens_cached == counters.prefix_cache_hits <= counters.prefix_cache_queries
    assert engine.gauges.kv_usage == 0.0
    assert engine.scheduler.reset_prefix_cache()


@settings(max_examples=200, deadline=None)
@given(REQUESTS, ENGINES)
def test_first_token_follows_a_step_per_chunk_of_uncached_prompt(lab, requests, flags):
    engine = lab.engine(**flags)
    arrivals = workload(requests)
    config = engine.scheduler._config
    events = lab.drive(engine, arrivals, True)
    for arrival_ns, sequence in arrivals:
        steps = [event for event in events if any(number == sequence.id for number, _ in event.tokens)]
        lacking = sequence.prompt_length - (sequence.cached_tokens or 0)
        chunks = -(-lacking // config.max_num_batched_tokens)
        between = [e for e in events if e.started_ns >= arrival_ns and e.ended_ns <= steps[0].ended_ns]
        assert len(between) >= chunks
        assert sequence.first_token_ns == steps[0].ended_ns > arrival_ns + 1_000_000 * chunks


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 90), st.integers(1, 20)), min_size=2, max_size=6), ENGINES)
def test_on_an_idle_engine_a_cache_never_makes_the_first_token_later(lab, requests, flags):
    first_ns = {}
    for caching in (False, True):
        engine = lab.engine(**{**flags, "prefix_caching": caching})
        spaced = [(i * 10**12, text, prompt, tokens, False) for i, (text, prompt, tokens) in enumerate(requests)]
        arrivals = workload(spaced)
        lab.drive(engine, arrivals, True)
        first_ns[caching] = [s.first_token_ns for _, s in arrivals]
    assert all(on <= off for on, off in zip(first_ns[True], first_ns[False], strict=True))


@settings(max_examples=100, deadline=None)
@given(REQUESTS, ENGINES, SPECULATIONS, st.lists(st.tuples(st.integers(1, 40), st.integers(0, 13)), max_size=6))
def test_aborted_sequences_leave_no_blocks(lab, requests, flags, speculation, aborts):
    engine = lab.engine(speculation=speculation, **flags)
    arrivals = workload(requests)
    sequences = [s for _, s in arrivals]
    count = 0

    def abort_some(engine: Engine) -> None:
        nonlocal count
        count += 1
        for at, which in aborts:
            if at == count and which < len(sequences) and sequences[which].arrived_ns:
                engine.scheduler.abort(sequences[which])
        books_balance(engine)

    lab.drive(engine, [(max(1, ns), s) for ns, s in arrivals], True, abort_some)
    assert all(s.end in ("length", "abort") for s in sequences)
    ended = Counter(s.end for s in sequences)
    assert (ended["length"], ended["abort"]) == (engine.counters.finished_length, engine.counters.finished_abort)
    assert engine.gauges.kv_usage == 0.0


def test_fast_forward_stops_at_arrival(lab):
    engine = lab.engine()
    engine.add(lab.sequence(1, 8, 50), 0)
    first = engine.step(0)
    skipped_ns = engine.fast_forward(first.ended_ns, first.ended_ns + 3_000_000)
    assert skipped_ns.ends_ns[-2] < first.ended_ns + 3_000_000 <= skipped_ns.ends_ns[-1]


def test_asynchronous_scheduling_lets_an_arrival_wait_for_one_more_step(lab):
    """The arriving request waits for a batch that was scheduled while the previous batch computed."""
    waits = {}
    for asynchronous in (False, True):
        engine = lab.engine(async_scheduling=asynchronous)
        late = lab.sequence(2, 8, 1)
        events = lab.drive(engine, [(0, lab.sequence(1, 8, 50)), (20_000_000, late)], False)
        waits[asynchronous] = [e for e in events if e.started_ns <= late.first_token_ns and e.ended_ns > 20_000_000]
    assert (len(waits[False]), len(waits[True])) == (3, 4)  # with the one that starts as the first token comes


def test_noise_is_drawn_anew_with_a_run(lab):
    engine = lab.engine(lab.Shaky(1))
    engine.add(lab.sequence(1, 8, 2), 0)
    first = engine.step(0)
    engine.begin_run()
    second = engine.step(first.ended_ns)
    other = lab.engine(lab.Shaky(1))
    other.add(lab.sequence(1, 8, 2), 0)
    again = other.step(0)
    assert again.ended_ns == first.ended_ns
    assert other.step(first.ended_ns).ended_ns != second.ended_ns


def test_idle_engine_makes_no_step(lab):
    engine = lab.engine()
    assert engine.wake_ns(0) is None
    assert engine.step(5) is None
    assert engine.fast_forward(5, None) is None
    assert engine.wake_ns(5) is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_fast_forward_equals_steps_if_running_sequence_fills_block_of_waiting_one(lab, asynchronous):
    """Which makes room for one step, until the running one takes its next block."""
    for held in range(4, 17):
        events = []
        for leaping in (False, True):
            engine = lab.engine(num_blocks=21, async_scheduling=asynchronous, max_num_batched_tokens=200)
            running, other = lab.sequence(1, 8, 24), lab.sequence(9, 4 * held, 16)
            waiting = lab.sequence(2, running.tokens(0, 20), 3)
            events.append(lab.drive(engine, [(0, running), (0, other), (2_500_000, waiting)], leaping))
        assert events[0] == events[1]


@pytest.mark.parametrize("leaping", [False, True])
def test_last_block_of_finished_sequence_is_kept_after_blocks_of_others(lab, leaping):
    """With asynchronous scheduling: theirs are kept when the next batch is scheduled, its own by the end of this."""
    engine = lab.engine(async_scheduling=True)
    first, second = lab.sequence(1, range(8), 5), lab.sequence(2, range(8), 20)
    engine.add(first, 0)
    engine.add(second, 0)
    now_ns = 0
    while first.end is None:
        done = (engine.fast_forward(now_ns, None) if leaping else None) or engine.step(now_ns)
        now_ns = done.ended_ns
    assert engine.scheduler.pool.cached_blocks(lab.sequence(3, second.tokens(0, 13), 1))[2] == second.blocks[2]


def test_long_fast_forward_has_same_disturbance_as_single_steps(lab):
    endings = []
    for leaping in (False, True):
        engine = lab.engine(lab.Shaky(2), max_model_len=4096, num_blocks=2000)
        seq = lab.sequence(1, 8, 1500)
        endings.append(lab.drive(engine, [(0, seq)], leaping))
    assert endings[0] == endings[1]


class Shelf:
    """Has the first twelve tokens of every prompt; a load takes 7 ms."""

    prefilled = False

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    def matched(self, sequence: Sequence, local_tokens: int, now_ns: int) -> int:
        return max(0, min(12, sequence.length - 1) - local_tokens)

    def load(self, sequence: Sequence, local_tokens: int, tokens: int, now_ns: int) -> int:
        return now_ns + 7_000_000

    def store_s(self, sequence: Sequence, computed: int, after: int, end: End) -> float:
        return 0.001 if computed < 12 else 0.0

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence.id)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_external_tokens_join_when_load_finishes(lab, asynchronous):
    outcomes = []
    for leaping in (False, True):
        shelf = Shelf()
        engine = Engine(lab.time, VllmScheduler(lab.config(async_scheduling=asynchronous), shelf))
        busy, loaded = lab.sequence(1, 11, 40), lab.sequence(2, 20, 4)
        events = lab.drive(engine, [(0, busy), (20_000_000, loaded)], leaping, books_balance)
        outcomes.append((events, asdict(engine.counters)))
        assert loaded.first_scheduled_ns >= 27_000_000
        assert (loaded.cached_tokens, loaded.external_tokens) == (12, 12)
        assert (engine.counters.external_queries, engine.counters.external_hits) == (31, 22)
        assert engine.counters.prompt_tokens_external == 22
        assert shelf.forgotten == [2, 1]
    assert outcomes[0] == outcomes[1]


def test_one_that_is_being_loaded_can_be_aborted(lab):
    engine = Engine(lab.time, VllmScheduler(lab.config(), Shelf()))
    seq = lab.sequence(1, 20, 4)
    engine.add(seq, 0)
    assert engine.step(0) is None
    assert engine.wake_ns(0) == 7_000_000
    assert engine.gauges.kv_usage > 0
    engine.scheduler.abort(seq)
    assert engine.wake_ns(0) is None
    assert engine.gauges.kv_usage == 0
