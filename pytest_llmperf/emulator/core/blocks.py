"""vLLM's KV cache: blocks of equal size, found again by the hash of all tokens up to their end."""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile

from pytest_llmperf.emulator.core.sequence import Sequence


class BlockPool:
    """Blocks are empty, held, or idle: cached and held by nobody.

    An allocation takes empty blocks first. Then it takes idle blocks in the order in which they became idle, the last
    block of a sequence before its first block. If two sequences computed equal blocks at the same time, the pool keeps
    both copies.

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
        self.leaked = 0
        self._last_again = last_again
        self._answers = answers
        self._empty = list(range(self.usable, 0, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._further: dict[int, int] = {}  # block → number of sequences that hold it, minus 1
        self._hash: dict[int, int] = {}
        self._block: dict[int, int] = {}
        self._twins: dict[int, list[int]] = {}  # hash → blocks with this hash, without the oldest of them

    @property
    def free(self) -> int:
        """Number of blocks that an allocation can take: empty or idle."""
        return len(self._empty) + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the blocks that is held, 0 to 1."""
        return 1.0 - self.free / self.usable if self.usable else 0.0

    def cached_blocks(self, sequence: Sequence) -> list[int]:
        """The blocks of its longest cached prefix that leaves at least one token to compute."""
        most = (sequence.length - 1) // self.block_size if self.caching else 0
        self._hash_upto(sequence, most)
        hits = [self._block[key] for key in takewhile(self._block.__contains__, sequence.hashes[:most])]
        return hits[:-1] if self._last_again else hits

    def idle_among(self, blocks: list[int]) -> int:
        """Number of idle blocks among `blocks`. Sharing an idle block leaves one free block less."""
        return sum([block in self._idle for block in blocks])

    def share(self, sequence: Sequence, blocks: list[int]) -> None:
        """Gives these cached blocks to a sequence that holds no blocks yet."""
        for block in blocks:
            if block in self._idle:
                del self._idle[block]
            else:
                self._further[block] = self._further.get(block, 0) + 1
        sequence.blocks.extend(blocks)
        sequence.registered = len(blocks)
        sequence.room = len(blocks) * self.block_size

    def take(self, sequence: Sequence, count: int) -> None:
        """Gives `count` blocks to a sequence. The caller must have checked that the pool has enough free blocks."""
        empty = self._empty
        while len(empty) < count:
            empty.append(self._evict())
        if count == 1:
            sequence.blocks.append(empty.pop())
        elif count:
            sequence.blocks += empty[-count:]
            del empty[-count:]
        sequence.room += count * self.block_size

    def keep(self, sequence: Sequence, full: int) -> None:
        """Registers the first `full` blocks of a sequence, so that other sequences find them."""
        start = sequence.registered
        if not self._answers:
            full = min(full, sequence.prompt_length // self.block_size)
        if not self.caching or full <= start:
            return
        sequence.registered = full
        self._hash_upto(sequence, full)
        blocks, keys = sequence.blocks[start:full], sequence.hashes[start:full]
        self._hash.update(zip(blocks, keys, strict=True))
        if self._block.keys().isdisjoint(keys):
            self._block.update(zip(keys, blocks, strict=True))
            return
        for key, block in zip(keys, blocks, strict=True):
            if self._block.setdefault(key, block) != block:
                self._twins.setdefault(key, []).append(block)

    def release(self, sequence: Sequence) -> None:
        """Takes back the blocks of a sequence."""
        blocks, registered = sequence.blocks, sequence.registered
        sequence.blocks, sequence.registered, sequence.room = [], 0, 0
        self._empty += blocks[registered:]
        known = reversed(blocks[:registered])
        self._idle.update(dict.fromkeys(known if not self._further else filter(self._has_no_others, known)))

    def leak(self, count: int) -> None:
        """Removes this many blocks from the pool permanently, or all free blocks if there are fewer."""
        for _ in range(min(count, self.free)):
            _ = self._empty.pop() if self._empty else self._evict()
            self.leaked += 1

    def reset(self) -> bool:
        """Forgets all cached blocks. Returns False and changes nothing while a sequence holds a block."""
        if self.free != self.usable:
            return False
        self._empty = list(range(self.usable, 0, -1))
        for table in (self._idle, self._hash, self._block, self._twins):
            table.clear()
        return True

    def alike(self, sequence: Sequence, other: Sequence, blocks: int) -> bool:
        """Whether two sequences have the same content in their first `blocks` blocks, which must be full."""
        self._hash_upto(sequence, blocks)
        self._hash_upto(other, blocks)
        return blocks == 0 or sequence.hashes[blocks - 1] == other.hashes[blocks - 1]

    def _has_no_others(self, block: int) -> bool:
        """Note that one sequence released a block. Returns whether no other sequence holds the block."""
        others = self._further.pop(block, 0)
        if others > 1:
            self._further[block] = others - 1
        return not others

    def _evict(self) -> int:
        """Takes the next idle block and forgets its content."""
        block, _ = self._idle.popitem(last=False)
        key = self._hash.pop(block)
        twins = self._twins.pop(key, [])
        if self._block[key] != block:
            twins.remove(block)
        elif twins:
            self._block[key] = twins.pop(0)
        else:
            del self._block[key]
        if twins:
            self._twins[key] = twins
        return block

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
