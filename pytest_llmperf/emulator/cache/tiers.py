"""KV cache below the GPU's memory, as LMCache keeps it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import accumulate

from pytest_llmperf.emulator.config import Tier
from pytest_llmperf.emulator.core.batch import End
from pytest_llmperf.emulator.core.sequence import Sequence


class ChunkStore:
    """The chunks that one tier holds; the least recently used make room.

    Args:
        chunk_bytes: KV cache of one chunk, all GPUs together.
    """

    def __init__(self, tier: Tier, chunk_bytes: float) -> None:
        self.tier = tier
        self.chunk_bytes = chunk_bytes
        self.capacity = int(tier.capacity_bytes // chunk_bytes)
        self.hits = 0  # matched tokens, those too that the GPU's prefix cache had
        self.evictions = 0
        self._full = max(1, int(self.capacity * tier.watermark))
        self.chunks: OrderedDict[int, End] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self.chunks

    def ready(self, key: int, now_ns: int) -> bool:
        """Whether it holds a chunk that has been computed by now."""
        end = self.chunks.get(key)
        return end is not None and end.ns <= now_ns

    def touch(self, keys: Iterable[int]) -> None:
        """Marks the stored chunks among these as most recently used, in the given order."""
        chunks = self.chunks
        for key in keys:
            if key in chunks:
                chunks.move_to_end(key)

    def put(self, keys: Iterable[int], end: End) -> None:
        """Stores the chunks in the given order; a chunk that is already stored becomes the most recently used.

        Args:
            end: of the step that computes the chunks.
        """
        chunks = self.chunks
        for key in keys if self.capacity else ():
            if key in chunks:
                chunks.move_to_end(key)
                continue
            if len(chunks) >= self._full:
                self._make_room()
            chunks[key] = end

    def _make_room(self) -> None:
        count = max(1, int(len(self.chunks) * self.tier.evicted_share))
        for _ in range(count):
            self.chunks.popitem(last=False)
        self.evictions += 1


class Tiers:
    """LMCache 0.5 below one engine (an `ExternalKv`).

    A prompt is cut into chunks. Each computed whole chunk is written to all tiers, under a key of all tokens up to the
    end of the chunk. A lookup goes through the prompt chunk by chunk, and asks the fastest tier first, until no tier
    has a chunk. Matched chunks that the GPU's prefix cache lacks are loaded instead of computed. A load copies whole
    chunks at the rate of the tier, one copy at a time per tier, and adds the latency of the tier. A chunk from a lower
    tier is also stored in the tiers above. Generated tokens are not stored (save_decode_cache is off), and neither is
    an incomplete last chunk.

    Loads are asynchronous, as in LMCache's server and with enable_async_loading: the sequence waits, and the steps of
    other sequences continue. (In-process LMCache without that option loads within the step and stalls all sequences.)
    Stores are synchronous: the step that computed a chunk ends when the chunk has left the GPU, at the rate of the
    fastest tier. The fastest tier then writes the chunk to the lower tiers in the background.

    Args:
        tiers: tiers, the fastest first, all with the same chunk_tokens.
        bytes_per_token: KV cache bytes of a token, over all GPUs.
        stores: stores of an engine with the same LMCache server; None creates stores for this engine.
        vllm_server: whether vLLM's connector to LMCache's server is emulated. This connector also loads the last token
            of a prompt of whole chunks, and loads no chunks for a preempted sequence.
    """

    prefilled = False

    def __init__(
        self,
        tiers: tuple[Tier, ...],
        bytes_per_token: float,
        stores: list[ChunkStore] | None = None,
        *,
        vllm_server: bool = False,
    ) -> None:
        self.chunk_tokens = tiers[0].chunk_tokens
        self.chunk_bytes = self.chunk_tokens * bytes_per_token
        self.stores = stores or [ChunkStore(tier, self.chunk_bytes) for tier in tiers]
        self._tiers = tiers
        self._vllm_server = vllm_server
        self._free_ns = [0] * len(tiers)  # when the way from a tier to the GPUs is free
        self.store_bytes_per_s = tiers[0].store_bytes_per_s or tiers[0].bytes_per_s
        self.looked_up_tokens = 0  # of whole chunks: LMCache asks for nothing less
        self._keys: dict[Sequence, list[int]] = {}
        self._stored_chunks: dict[Sequence, int] = {}

    def clear(self, name: str) -> None:
        """Empties a tier."""
        for store in self.stores:
            if store.tier.name == name:
                store.chunks.clear()

    def matched(self, sequence: Sequence, local_tokens: int, now_ns: int) -> int:
        if self._vllm_server and sequence.preemptions:
            return 0
        first = sequence not in self._keys
        keys = self._chunk_keys(sequence)
        levels: list[int] = []
        for key in keys:
            if (level := self._holder(key, now_ns)) is None:
                break
            levels.append(level)
        matched = len(levels)
        if first:
            self.looked_up_tokens += len(keys) * self.chunk_tokens
            for level in accumulate(levels, max):
                self.stores[level].hits += self.chunk_tokens
        for store in self.stores:
            store.touch(reversed(keys[:matched]))
        left = 0 if self._vllm_server else 1
        return max(0, min(matched * self.chunk_tokens, sequence.length - left) - local_tokens)

    def load(self, sequence: Sequence, local_tokens: int, tokens: int, now_ns: int) -> int:
        first = local_tokens // self.chunk_tokens
        last = -(-(local_tokens + tokens) // self.chunk_tokens)
        keys = self._chunk_keys(sequence)
        wanted: dict[int, list[int]] = {}
        for index in range(first, last):
            level = self._holder(keys[index], now_ns)
            if level is None:
                raise RuntimeError("a chunk was dropped between its lookup and its load")
            wanted.setdefault(level, []).append(index)
        ready_ns = now_ns
        for level, indices in wanted.items():
            ready_ns = max(ready_ns, self._read(level, len(indices), now_ns))
            for store in self.stores[:level]:
                store.put([keys[index] for index in indices], End(now_ns))
        return ready_ns

    def _read(self, level: int, chunks: int, now_ns: int) -> int:
        """Queues the copy of this many chunks to the GPU and returns the time at which the last chunk arrives, in ns.
        Copies run one after the other. The latency of a read does not delay the copies of other reads."""
        tier = self._tiers[level]
        copy_ns = round(1e9 * chunks * self.chunk_bytes / tier.bytes_per_s)
        self._free_ns[level] = max(now_ns, self._free_ns[level]) + copy_ns
        return self._free_ns[level] + round(1e9 * tier.latency_s)

    def store_s(self, sequence: Sequence, computed: int, after: int, end: End) -> float:  # noqa: ARG002
        keys = self._chunk_keys(sequence)
        stored = self._stored_chunks.get(sequence, 0)
        whole = min(after // self.chunk_tokens, len(keys))
        if whole <= stored:
            return 0.0
        self._stored_chunks[sequence] = whole
        stores = [store for store in self.stores if store.capacity]
        new = [key for key in keys[stored:whole] if any(key not in store for store in stores)]
        for store in self.stores:
            store.put(new, end)
        return len(new) * self.chunk_bytes / self.store_bytes_per_s

    def forget(self, sequence: Sequence) -> None:
        self._keys.pop(sequence, None)
        self._stored_chunks.pop(sequence, None)

    def _holder(self, key: int, now_ns: int) -> int | None:
        for level, store in enumerate(self.stores):
            if store.ready(key, now_ns):
                return level
        return None

    def _chunk_keys(self, sequence: Sequence) -> list[int]:
        keys = self._keys.get(sequence)
        if keys is None:
            size, key = self.chunk_tokens, hash(sequence.salt)
            keys = []
            for end in range(size, len(sequence.prompt) + 1, size):
                key = hash((key, sequence.prompt[end - size : end]))
                keys.append(key)
            self._keys[sequence] = keys
        return keys
