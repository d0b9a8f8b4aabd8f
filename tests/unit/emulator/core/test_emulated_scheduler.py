"""vLLM's scheduling rules, each tested separately; tests/emulated replays whole recorded workloads."""

from __future__ import annotations

import pytest


def tokens_of(batch):
    return {row[0].id: row[1] for row in batch.rows} if batch else {}


def run(scheduler, steps):
    """What each of so many steps computes, and who was preempted by then."""
    seen = []
    for number in range(steps):
        batch = scheduler.schedule(number)
        seen.append(tokens_of(batch))
        if batch:
            scheduler.complete(batch, number + 1)
    return seen


def test_running_sequences_are_scheduled_before_prompt_chunks_within_budget(lab):
    scheduler = lab.scheduler(max_num_batched_tokens=16)
    for number, prompt in ((1, 10), (2, 20), (3, 5)):
        scheduler.add(lab.sequence(number, prompt, 5))
    assert run(scheduler, 4) == [{1: 10, 2: 6}, {1: 1, 2: 14, 3: 1}, {1: 1, 2: 1, 3: 4}, {1: 1, 2: 1, 3: 1}]


def test_scheduler_keeps_sequences_below_max_num_seqs(lab):
    scheduler = lab.scheduler(max_num_seqs=2)
    for number in (1, 2, 3):
        scheduler.add(lab.sequence(number, 4, 2))
    assert run(scheduler, 4) == [{1: 4, 2: 4}, {1: 1, 2: 1}, {3: 4}, {3: 1}]


def test_unchunked_prompts_wait_for_full_budget_in_order_of_arrival(lab):
    scheduler = lab.scheduler(max_num_batched_tokens=16, chunked_prefill=False)
    for number, prompt in ((1, 10), (2, 10), (3, 2)):
        scheduler.add(lab.sequence(number, prompt, 3))
    assert run(scheduler, 3) == [{1: 10}, {1: 1, 2: 10, 3: 2}, {1: 1, 2: 1, 3: 1}]


def test_sequence_is_admitted_if_blocks_for_whole_prompt_are_free(lab):
    scheduler = lab.scheduler(num_blocks=11, max_num_batched_tokens=8)
    scheduler.add(lab.sequence(1, 20, 2))
    scheduler.add(lab.sequence(2, 24, 2))
    assert run(scheduler, 4) == [{1: 8}, {1: 8}, {1: 4}, {1: 1}]  # 5 of 10 blocks are free, 6 are needed
    assert run(scheduler, 1) == [{2: 8}]


def test_last_admitted_sequence_is_preempted_and_admission_stops_in_that_step(lab):
    scheduler = lab.scheduler(num_blocks=7, prefix_caching=False)
    for number in (1, 2, 3):
        scheduler.add(lab.sequence(number, 8, 10))
    scheduler.add(lab.sequence(4, 1, 1))
    assert run(scheduler, 2) == [{1: 8, 2: 8, 3: 8}, {1: 1, 2: 1}]
    assert [s.id for s in scheduler.waiting] == [3, 4]
    assert scheduler.counters.preemptions == 1
    assert scheduler.waiting[0].generated == 1
    assert scheduler.pool.free == 0


def test_preempted_sequence_is_scheduled_first_and_computes_all_tokens_again(lab):
    scheduler = lab.scheduler(num_blocks=7, prefix_caching=False)
    for number, most in ((1, 3), (2, 12)):
        scheduler.add(lab.sequence(number, 12, most))
    assert run(scheduler, 4) == [{1: 12, 2: 12}, {1: 1}, {1: 1}, {2: 13}]
    assert scheduler.counters.prompt_tokens == 24


def test_preempted_sequence_finds_cached_blocks_again(lab):
    scheduler = lab.scheduler(num_blocks=7)
    for number, most in ((1, 3), (2, 12)):
        scheduler.add(lab.sequence(number, 12, most))
    assert run(scheduler, 4) == [{1: 12, 2: 12}, {1: 1}, {1: 1}, {2: 5}]  # its last block went to the other one
    assert scheduler.counters.prefix_cache_queries == 24
    assert scheduler.counters.prefix_cache_hits == 0


def test_prompt_hits_blocks_computed_in_same_step(lab):
    scheduler = lab.scheduler()
    for number in (1, 2):
        scheduler.add(lab.sequence(number, range(10), 2))
    assert run(scheduler, 1) == [{1: 10, 2: 2}]


def test_hits_count_in_tokens_and_only_the_first_time(lab):
    scheduler = lab.scheduler()
    for number in (1, 2):
        scheduler.add(lab.sequence(number, range(10), 2))
        run(scheduler, 2)
    counters = scheduler.counters
    assert (counters.prefix_cache_queries, counters.prefix_cache_hits) == (20, 8)
    assert (counters.prompt_tokens, counters.prompt_tokens_cached) == (20, 8)
    assert counters.iteration_tokens == {11: 1, 1: 2, 3: 1}


@pytest.mark.parametrize(
    ("prompt", "most", "flags", "why"),
    [
        (0, 5, {}, "needs a prompt"),
        (5, 0, {}, "at least one token"),
        (500, 13, {}, "maximum context length of 512"),
        (300, 102, {"num_blocks": 101}, "do not fit in 100 blocks"),
        (20, 14, {"chunked_prefill": False}, "chunked prefill is off"),
    ],
)
def test_impossible_request_is_refused_with_reason(lab, prompt, most, flags, why):
    with pytest.raises(ValueError, match=why):
        lab.scheduler(**flags).add(lab.sequence(1, prompt, most))


@pytest.mark.parametrize(
    ("prompt", "most", "flags"),
    [(500, 12, {"num_blocks": 129}), (300, 101, {}), (20, 13, {"chunked_prefill": False})],
)
def test_largest_possible_request_is_completed_without_preemption(lab, prompt, most, flags):
    engine = lab.engine(**flags)
    seq = lab.sequence(1, prompt, most)
    lab.drive(engine, [(0, seq)], True)
    assert (seq.generated, engine.counters.preemptions) == (most, 0)


def test_each_finished_request_may_leak_blocks(lab):
    scheduler = lab.scheduler(leaked_blocks=2)
    for number in (1, 2):
        scheduler.add(lab.sequence(number, 4, 1))
    run(scheduler, 1)
    assert scheduler.usage == pytest.approx(0.04)
    assert not scheduler.reset_prefix_cache()


def test_aborted_sequence_gets_no_further_tokens(lab):
    engine = lab.engine()
    seq, two = lab.sequence(1, 8, 10), lab.sequence(2, 8, 10)
    engine.add(seq, 0)
    engine.add(two, 0)
    first = engine.step(0)
    engine.scheduler.abort(seq)
    engine.scheduler.abort(seq)
    second = engine.step(first.ended_ns)
    assert [s.id for s, _ in second.tokens] == [2]
    assert (seq.end, engine.counters.finished_abort) == ("abort", 1)
    assert engine.gauges.running == 1


def test_queue_time_is_from_arrival_to_first_schedule(lab):
    engine = lab.engine(max_num_seqs=1)
    first, second = lab.sequence(1, 8, 4), lab.sequence(2, 8, 4)
    events = lab.drive(engine, [(0, first), (1000, second)], True)
    queued_ns = [sequence.first_scheduled_ns - sequence.arrived_ns for sequence in (first, second)]
    assert queued_ns == [0, events[3].ended_ns - 1000]
