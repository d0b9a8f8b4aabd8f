"""Fast-forward over consecutive steps in which all running sequences decode and no sequence joins or leaves."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmperf.emulator.core.blocks import BlockPool
from pytest_llmperf.emulator.core.scheduler import most_steps
from pytest_llmperf.emulator.core.sequence import Sequence


def steps_until_blocks_run_out(pool: BlockPool, running: list[Sequence], steps: int) -> int:
    """Number of decode steps for which the pool has enough blocks, at most `steps`."""
    size, free = pool.block_size, pool.free
    if len(running) * (steps // size + 1) <= free:
        return steps
    slots = [(s.computed, s.limit - 1, s.room) for s in running]

    def lacking(count: int) -> int:
        upto = ((min(computed + count, last), room) for computed, last, room in slots)
        return sum(-(-(tokens - room) // size) for tokens, room in upto if tokens > room)

    return most_steps(steps, lacking, free)


def queue_head_stays_blocked(pool: BlockPool, head: Sequence, running: Iterable[Sequence], steps: int) -> bool:
    """Whether the first waiting sequence has too few free blocks now and during this many decode steps.

    The number of free blocks falls in these steps. But a running sequence could fill a block that the waiting sequence
    shares, and so increase the hit of the waiting sequence.
    """
    size = pool.block_size
    hits = pool.cached_blocks(head)
    if -(-head.length // size) - len(hits) <= pool.free - pool.idle_among(hits):
        return False
    return not (pool.caching and any(_completes_shared_block(pool, s, head, len(hits), steps) for s in running))


def _completes_shared_block(pool: BlockPool, sequence: Sequence, head: Sequence, hits: int, steps: int) -> bool:
    """Whether a running sequence will fill the block after those that the head of the queue finds, with its content."""
    return sequence.registered <= hits < (sequence.length + steps) // pool.block_size and pool.alike(
        sequence, head, hits
    )


def advance(pool: BlockPool, running: list[Sequence], steps: int, lagging: bool) -> list[Sequence]:
    """Gives each running sequence `steps` tokens and the blocks for them. Returns the sequences that are finished.

    Args:
        lagging: whether the next step is already scheduled (asynchronous scheduling).
    """
    size, caching = pool.block_size, pool.caching
    finished: list[Sequence] = []
    filled: list[tuple[int, bool, int, Sequence, int]] = []
    for order, sequence in enumerate(running):
        old_length = sequence.prompt_length + sequence.generated
        generated = sequence.generated = sequence.generated + steps
        ends = generated == sequence.max_tokens
        if ends:
            finished.append(sequence)
            computed = sequence.computed = sequence.limit - 1
        else:
            computed = sequence.computed = sequence.computed + steps
        if computed > sequence.room:
            pool.take(sequence, -(-(computed - sequence.room) // size))
        if caching:
            for full in range(sequence.registered + 1, (old_length + steps - 1) // size + 1):
                at = full * size - old_length + 1
                filled.append((at, lagging and ends and at == steps, order, sequence, full))
    if filled:
        filled.sort()  # the first three fields are never equal
        for _, _, _, sequence, full in filled:
            pool.keep(sequence, full)
    return finished

