"""A radix tree of token prefixes: it stores cached prefixes, locks prefixes in use and chooses prefixes to evict."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class Node:
    """A run of tokens below its parent's.

    Args:
        key: the tokens of this run.
        parent: None at the root.
    """

    __slots__ = ("children", "key", "last_used", "locks", "parent", "queued")

    def __init__(self, key: tuple[int, ...], parent: Node | None) -> None:
        self.key = key
        self.parent = parent
        self.children: dict[tuple[int, ...], Node] = {}
        self.locks = 0
        self.last_used = 0
        self.queued = False


def shared_prefix(key: Sequence[int], tokens: Sequence[int], start: int) -> int:
    """How many tokens of `key` are those of `tokens` from `start` on. Doubling windows, then halving: the comparisons
    of slices are the interpreter's own, so a long shared prefix costs no loop over its tokens."""
    longest = min(len(key), len(tokens) - start)
    if tokens[start : start + longest] == (key if longest == len(key) else key[:longest]):
        return longest
    low, width = 0, 16
    while low < longest:
        high = min(low + width, longest)
        if key[low:high] != tokens[start + low : start + high]:
            while high - low > 1:
                middle = (low + high) // 2
                if key[low:middle] == tokens[start + low : start + middle]:
                    low = middle
                else:
                    high = middle
            return low
        low, width = high, width * 2
    return longest


class RadixTree:
    """SGLang's radix cache without its memory pool (rules of 0.5.23): match and insert split a node where the tokens
    part, locks hold the whole path to the root, eviction takes unlocked leaves, the least recently used first.

    Prefixes of different salts never share a node. "Recently" is counted in operations, not in seconds.

    Args:
        page_size: lengths are rounded down to multiples of it; 1: token-exact.
    """

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.reset()

    def reset(self) -> None:
        """Forgets everything, locked or not."""
        self.evictable = 0
        self.locked = 0
        self._roots: dict[str, Node] = {}
        self._clock = 0
        self._leaves: list[tuple[int, int, Node]] = []
        self._pushed = 0

    @property
    def size(self) -> int:
        """Tokens in the tree."""
        return self.evictable + self.locked

    def match(self, tokens: tuple[int, ...], salt: str = "") -> tuple[int, Node]:
        """The longest cached prefix and the node where it ends. Counts as a use; splits a node if it ends within."""
        return self._walk(self._root(salt), tokens, len(tokens) - len(tokens) % self.page_size)

    def insert(self, tokens: tuple[int, ...], salt: str = "") -> tuple[int, Node]:
        """Adds a prefix, rounded down to whole pages. Returns the number of tokens that the tree already had, and the
        last node of the prefix."""
        length = len(tokens) - len(tokens) % self.page_size
        matched, node = self._walk(self._root(salt), tokens, length)
        if matched == length:
            return matched, node
        leaf = Node(tokens[matched:length], node)
        self._clock += 1
        leaf.last_used = self._clock
        node.children[leaf.key[: self.page_size]] = leaf
        self.evictable += len(leaf.key)
        self._offer(leaf)
        return matched, leaf

    def lock(self, node: Node) -> None:
        """Keeps a node and its ancestors from eviction until as many unlocks."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= len(node.key)
                self.locked += len(node.key)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        while node.parent is not None:
            if node.locks == 0:
                raise RuntimeError("a node of the radix tree was unlocked more often than locked")
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node.key)
                self.locked -= len(node.key)
                self._offer(node)
            node = node.parent

    def evict(self, tokens: int) -> int:
        """Removes whole leaves until at least this many tokens are evicted or only locked leaves remain. Returns the
        number of evicted tokens."""
        evicted_tokens = 0
        while evicted_tokens < tokens and self._leaves:
            used, _, leaf = heapq.heappop(self._leaves)
            leaf.queued = False
            if leaf.locks or leaf.children or leaf.parent is None:
                continue
            if leaf.last_used != used:
                self._offer(leaf)
                continue
            evicted_tokens += len(leaf.key)
            self.evictable -= len(leaf.key)
            parent, leaf.parent = leaf.parent, None
            del parent.children[leaf.key[: self.page_size]]
            self._offer(parent)
        return evicted_tokens

    def _root(self, salt: str) -> Node:
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node((), None)
        return root

    def _walk(self, node: Node, tokens: tuple[int, ...], length: int) -> tuple[int, Node]:
        self._clock += 1
        done, page = 0, self.page_size
        while done < length:
            child = node.children.get(tokens[done : done + page])
            if child is None:
                break
            child.last_used = self._clock
            same = shared_prefix(child.key, tokens, done)
            same -= same % page
            if same < len(child.key):
                return done + same, self._split(child, same)
            done += same
            node = child
        return done, node

    def _split(self, node: Node, at: int) -> Node:
        """Splits a node. The upper part is a new node; the lower part stays the same object, because sequences that
        have locked the node refer to it."""
        if node.parent is None:
            raise RuntimeError("a root has no tokens to split")
        upper = Node(node.key[:at], node.parent)
        upper.locks, upper.last_used = node.locks, node.last_used
        node.parent.children[upper.key[: self.page_size]] = upper
        node.key = node.key[at:]
        node.parent = upper
        upper.children[node.key[: self.page_size]] = node
        return upper

    def _offer(self, node: Node) -> None:
        """Queues a node for eviction, if the node is an unlocked leaf and not queued yet. Eviction checks again whether
        the node is still unused."""
        if node.queued or node.locks or node.children or node.parent is None:
            return
        node.queued = True
        self._pushed += 1
        heapq.heappush(self._leaves, (node.last_used, self._pushed, node))
