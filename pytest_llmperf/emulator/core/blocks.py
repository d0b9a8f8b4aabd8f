"""vLLM's KV cache: blocks of equal size, found again by the hash of all tokens up to their end."""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from pytest_llmperf.emulator.core.sequence import Sequence

_FEW = 1024


@lru_cache(maxsize=4)
def _all(usable: int) -> tuple[int, ...]:
    """The blocks, the first of them last. A pool has tens of thousands, and is emptied before each run."""
    return tuple(range(usable, 0, -1))


class _Idle:
    """Cached blocks that one sequence released at the same time. The last block is evicted first.

    Args:
        blocks: block ids in token order. A later sequence may hold some of the blocks again; such blocks are missing
            from `BlockPool._idle`.
        sequence: the sequence that released the blocks, while only its first block is hashed; else None.
    """

    __slots__ = ("blocks", "sequence")

    def __init__(self, blocks: list[int], sequence: Sequence | None) -> None:
        self.blocks = blocks
        self.sequence = sequence


class BlockPool:
    """Blocks are empty, held, or idle: cached and held by nobody.

    An allocation takes empty blocks first. Then it takes idle blocks in the order in which they became idle, the last
    block of a sequence before its first block. If two sequences computed equal blocks at the same time, the pool keeps
    both copies. If no other sequence shares the first block of a sequence, the pool hashes only that first block. The
    other blocks are hashed when a second sequence begins with the same block.

    Args:
        num_blocks: number of blocks as the engine counts them, with the null block, which is never allocated.
        block_size: tokens per block.
        caching: whether the prefix cache finds full blocks again.
        last_again: whether the engine computes the last block of a hit again.
        answers: whether blocks with generated tokens are found again.
    """

    def __init__(
        self, num_blocks: int, block_size: int, caching: bool, last_again: bool = False, answers: bool = True
    ) -> None:
        self.block_size = block_size
        self.caching = caching
        self.usable = num_blocks - 1
        self._last_again = last_again
        self._answers = answers
        self.free = self.usable  # blocks that can be had: empty or idle
        self.leaked = 0
        self._empty = list(_all(self.usable))
        self._queue: deque[_Idle] = deque()
        self._idle: dict[int, _Idle] = {}  # hashed blocks in the queue
        self._gone = 0  # entries of the queue whose block was shared since
        self._further: dict[int, int] = {}  # holders beyond the first
        self._hash: dict[int, int] = {}
        self._block: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}  # blocks of the same hash, the oldest of them left out
        self._alone: dict[int, Sequence | _Idle] = {}  # by the hash of the first block, the only one that is hashed

    @property
    def usage(self) -> float:
        """Share of the blocks that is held, 0 to 1."""
        return 1.0 - self.free / self.usable if self.usable else 0.0

    def cached_blocks(self, sequence: Sequence) -> list[int]:
        """The blocks of its longest cached prefix that leaves at least one token to compute."""
        most = (sequence.length - 1) // self.block_size if self.caching else 0
        if not most:
            return []
        first = self._first_hash(sequence)
        if first in self._alone:
            self._hash_all(first)
        elif first not in self._block:
            return []
        self._hash_upto(sequence, most)
        hits = []
        for key in sequence.hashes[:most]:
            block = self._block.get(key)
            if block is None:
                break
            hits.append(block)
        return hits[:-1] if self._last_again else hits

    def idle_among(self, blocks: list[int]) -> int:
        """How many of these would no longer be free if they were held."""
        return sum([block in self._idle for block in blocks])

    def share(self, sequence: Sequence, blocks: list[int]) -> None:
        """Gives these cached blocks to a sequence that holds no blocks yet."""
        for block in blocks:
            if self._idle.pop(block, None) is not None:
                self.free -= 1
                self._gone += 1
            else:
                self._further[block] = self._further.get(block, 0) + 1
        sequence.blocks.extend(blocks)
        sequence.registered = len(blocks)
        sequence.room = len(blocks) * self.block_size
        if self._gone > len(self._idle) + _FEW:
            self._tidy()

    def take(self, sequence: Sequence, count: int) -> None:
        """Gives `count` blocks to a sequence. The caller must have checked that the pool has enough free blocks."""
        empty = self._empty
        while len(empty) < count:
            empty.append(self._evict())
        self.free -= count
        if count == 1:
            sequence.blocks.append(empty.pop())
        elif count:
            sequence.blocks += empty[-count:]
            del empty[-count:]
        sequence.room += count * self.block_size

    def keep(self, sequence: Sequence, full: int) -> None:
        """Lets the first `full` blocks of a sequence be found."""
        start = sequence.registered
        if not self._answers:
            full = min(full, sequence.prompt_length // self.block_size)
        if not self.caching or full <= start:
            return
        sequence.registered = full
        first = self._first_hash(sequence)
        alone = self._alone.get(first)
        if alone is sequence:
            return
        if alone is not None:
            self._hash_all(first)
        elif start == 0 and first not in self._block:
            self._alone[first] = sequence
            return
        self._hash_upto(sequence, full)
        self._insert(sequence.blocks[start:full], sequence.hashes[start:full])

    def release(self, sequence: Sequence) -> None:
        """Takes back the blocks of a sequence."""
        blocks, registered = sequence.blocks, sequence.registered
        sequence.blocks, sequence.registered, sequence.room = [], 0, 0
        self._empty += blocks[registered:]
        self.free += len(blocks) - registered
        if not registered:
            return
        del blocks[registered:]
        first = sequence.hashes[0]
        if self._alone.get(first) is sequence:
            idle = self._alone[first] = _Idle(blocks, sequence)
        else:
            if self._further:
                blocks = [block for block in blocks if not self._has_others(block)]
            idle = _Idle(blocks, None)
            self._idle.update(dict.fromkeys(blocks, idle))
        self.free += len(blocks)
        self._queue.append(idle)

    def leak(self, count: int) -> None:
        """Removes this many blocks from the pool permanently, or all free blocks if there are fewer."""
        for _ in range(min(count, self.free)):
            if self._empty:
                self._empty.pop()
            else:
                self._evict()
            self.leaked += 1
            self.free -= 1

    def reset(self) -> bool:
        """Forgets all cached blocks; False, and nothing changed, while any block is held."""
        if self.free != self.usable:
            return False
        self._empty = list(_all(self.usable))
        for table in (self._queue, self._idle, self._hash, self._block, self._twins, self._alone):
            table.clear()
        self._gone = 0
        return True

    def alike(self, sequence: Sequence, other: Sequence, blocks: int) -> bool:
        """Whether two sequences have the same content in their first `blocks` blocks, which must be full."""
        self._hash_upto(sequence, blocks)
        self._hash_upto(other, blocks)
        return blocks == 0 or sequence.hashes[blocks - 1] == other.hashes[blocks - 1]

    def _has_others(self, block: int) -> bool:
        """Whether another sequence still holds a released block. Removes one of the additional holders."""
        others = self._further.get(block)
        if others is None:
            return False
        if others == 1:
            del self._further[block]
        else:
            self._further[block] = others - 1
        return True

    def _evict(self) -> int:
        """The next idle block; its content is gone."""
        while True:
            idle = self._queue[0]
            if not idle.blocks:
                self._queue.popleft()
                continue
            block = idle.blocks.pop()
            if idle.sequence is not None:
                if not idle.blocks:
                    del self._alone[idle.sequence.hashes[0]]
                return block
            if self._idle.get(block) is idle:
                del self._idle[block]
                self._forget(block)
                return block
            self._gone -= 1

    def _forget(self, block: int) -> None:
        key = self._hash.pop(block)
        twins = self._twins.get(key)
        if twins is None:
            del self._block[key]
            return
        if self._block[key] == block:
            self._block[key] = twins.pop(0)
        else:
            twins.remove(block)
        if not twins:
            del self._twins[key]

    def _insert(self, blocks: list[int], keys: list[int]) -> None:
        self._hash.update(zip(blocks, keys, strict=True))
        if self._block.keys().isdisjoint(keys):
            self._block.update(zip(keys, blocks, strict=True))
            return
        for key, block in zip(keys, blocks, strict=True):
            if self._block.setdefault(key, block) != block:
                self._twins.setdefault(key, []).append(block)

    def _hash_all(self, first: int) -> None:
        """Treats the blocks of a sequence that was alone with its beginning as all others from now on."""
        alone = self._alone.pop(first)
        if isinstance(alone, Sequence):
            sequence, blocks = alone, alone.blocks[: alone.registered]
        elif alone.sequence is not None:
            sequence, blocks = alone.sequence, alone.blocks
            alone.sequence = None
            self._idle.update(dict.fromkeys(blocks, alone))
        self._hash_upto(sequence, len(blocks))
        self._insert(blocks, sequence.hashes[: len(blocks)])

    def _tidy(self) -> None:
        for idle in self._queue:
            if idle.sequence is None:
                idle.blocks = [block for block in idle.blocks if self._idle.get(block) is idle]
        self._queue = deque(idle for idle in self._queue if idle.blocks)
        self._gone = 0

    def _first_hash(self, sequence: Sequence) -> int:
        if not sequence.hashes:
            self._hash_upto(sequence, 1)
        return sequence.hashes[0]

    def _hash_upto(self, sequence: Sequence, full: int) -> None:
        hashes, size = sequence.hashes, self.block_size
        hashed = len(hashes)
        if hashed >= full:
            return
        key = hashes[-1] if hashes else hash(sequence.salt)
        of_prompt = min(full, sequence.prompt_length // size)
        prompt = sequence.prompt
        for start in range(hashed * size, of_prompt * size, size):
            key = hash((key, prompt[start : start + size]))
            hashes.append(key)
        for start in range(max(hashed, of_prompt) * size, full * size, size):
            key = hash((key, sequence.tokens(start, start + size)))
            hashes.append(key)
