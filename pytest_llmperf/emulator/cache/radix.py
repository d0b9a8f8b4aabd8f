"""SGLang's KV cache: a pool of tokens that running sequences and a radix tree of prefixes share."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.emulator.cache.radix_tree import Node, RadixTree
from pytest_llmperf.emulator.core.sequence import Sequence


@dataclass(slots=True)
class Holding:
    """KV cache that a running sequence holds.

    Args:
        node: last tree node of the sequence's cached prefix. The node is locked against eviction.
        shared: number of tokens of the cached prefix.
        owned: number of pool tokens outside the tree that belong to the sequence, in whole pages.
    """

    node: Node
    shared: int
    owned: int = 0


class RadixCache:
    """SGLang's KV cache: a pool of tokens and a radix tree, by the rules of SGLang 0.5.15.

    Each token of the pool is empty, in the tree, or owned by a sequence. A prompt enters the tree when the prompt, or a
    chunk of it, has been computed; the whole sequence enters the tree when it finishes. Tokens that the tree already
    had are returned to the pool. A retracted sequence leaves no tokens in the tree. If the pool is short of tokens, the
    tree evicts unlocked leaves.

    Args:
        capacity: tokens of KV cache.
        page_size: tokens that are allocated and matched together; 1 for single tokens.
        enabled: whether the tree stores prefixes; False for --disable-radix-cache.
        answers: whether the tree stores generated tokens.
    """

    def __init__(self, capacity: int, page_size: int = 1, enabled: bool = True, answers: bool = True) -> None:
        self.capacity = capacity - capacity % page_size
        self.page_size = page_size
        self.enabled = enabled
        self.answers = answers
        self.tree = RadixTree(page_size)
        self.empty = self.capacity
        self._held: dict[Sequence, Holding] = {}

    @property
    def free(self) -> int:
        """Tokens that can be had: empty, or cached and not in use."""
        return self.empty + self.tree.evictable

    @property
    def usage(self) -> float:
        """Share of the pool that sequences hold, 0 to 1. Cached tokens without a holder do not count."""
        return 1 - self.free / self.capacity if self.capacity else 0.0

    def holds(self, sequence: Sequence) -> bool:
        """Whether a sequence was admitted and not released."""
        return sequence in self._held

    def match(self, sequence: Sequence) -> tuple[int, Node]:
        """The longest cached prefix that leaves a token to compute, and its node; a root where no prefix is stored."""
        if not self.enabled:
            return 0, Node((), None)
        return self.tree.match(sequence.tokens(0, sequence.length - 1), sequence.salt)

    def hold(self, sequence: Sequence) -> int:
        """Admits a sequence: locks its cached prefix and returns the length of the prefix in tokens."""
        shared, node = self.match(sequence)
        self.tree.lock(node)
        self._held[sequence] = Holding(node, shared)
        return shared

    def needed(self, sequence: Sequence, upto: int) -> int:
        """Tokens of the pool that a sequence lacks to hold its first `upto` tokens."""
        holding = self._held[sequence]
        pages = -(-upto // self.page_size)
        return max(0, pages * self.page_size - holding.shared - holding.owned)

    def room(self, sequence: Sequence, computed: int) -> int:
        """Number of tokens that a sequence could compute after its first `computed` tokens."""
        holding = self._held[sequence]
        return holding.shared + holding.owned - computed + self.free // self.page_size * self.page_size

    def leak(self, pages: int) -> None:
        """Removes this many pages from the pool permanently, or all free tokens if there are fewer."""
        tokens = min(pages * self.page_size, self.free)
        self.make_room(tokens)
        self.empty -= tokens

    def make_room(self, tokens: int) -> bool:
        """Evicts until this many tokens are empty. False if eviction cannot free enough tokens."""
        if self.empty < tokens:
            self.empty += self.tree.evict(tokens - self.empty)
        return self.empty >= tokens

    def allocate(self, sequence: Sequence, upto: int) -> bool:
        """Allocates pool memory for the first `upto` tokens of a sequence. Returns False and changes nothing if the
        pool has too little free memory."""
        tokens = self.needed(sequence, upto)
        if not self.make_room(tokens):
            return False
        self.empty -= tokens
        self._held[sequence].owned += tokens
        return True

    def keep(self, sequence: Sequence, upto: int) -> None:
        """Puts the first `upto` computed tokens into the tree. The sequence keeps these tokens locked."""
        if not self.enabled:
            return
        holding = self._held[sequence]
        upto = upto if self.answers else min(upto, sequence.prompt_length)
        whole = upto - upto % self.page_size
        if whole <= holding.shared:
            return
        already, node = self.tree.insert(sequence.tokens(0, whole), sequence.salt)
        self.tree.lock(node)
        self.tree.unlock(holding.node)
        holding.owned -= whole - holding.shared
        self.empty += already - holding.shared
        holding.node, holding.shared = node, whole

    def release(self, sequence: Sequence, computed: int | None = None) -> None:
        """Frees the memory of a sequence that ends. The tree keeps its first `computed` tokens; None keeps no tokens
        (a retraction)."""
        if computed is not None:
            self.keep(sequence, computed)
        holding = self._held.pop(sequence)
        self.empty += holding.owned
        self.tree.unlock(holding.node)

    def reset(self) -> bool:
        """Forgets all prefixes; False, and nothing changed, while sequences hold any (as /flush_cache)."""
        if self._held:
            return False
        self.empty += self.tree.size
        self.tree.reset()
        return True

