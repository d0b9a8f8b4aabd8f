"""The radix tree against a model that keeps every node as a whole prefix in a dictionary and looks at all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.emulator.cache.radix_tree import Node, RadixTree, shared_prefix

Tokens = tuple[int, ...]


class PrefixDictionary:
    def __init__(self, page: int) -> None:
        self.page = page
        self.used: dict[Tokens, int] = {}
        self.locked: list[Tokens] = []
        self.clock = 0

    def whole(self, tokens: Tokens) -> Tokens:
        return tokens[: len(tokens) // self.page * self.page]

    def match(self, tokens: Tokens) -> Tokens:
        self.clock += 1
        cached = {prefix[:n] for prefix in self.used for n in range(0, len(prefix) + 1, self.page)}
        tokens = self.whole(tokens)
        longest = max((tokens[:n] for n in range(len(tokens) + 1) if tokens[:n] in cached), key=len, default=())
        if longest and longest not in self.used:
            below = min((p for p in self.used if p[: len(longest)] == longest), key=len)
            self.used[below] = self.clock
            self.used[longest] = self.clock
        for prefix in self.used:
            if prefix == longest[: len(prefix)]:
                self.used[prefix] = self.clock
        return longest

    def insert(self, tokens: Tokens) -> Tokens:
        longest = self.match(tokens)
        if longest != self.whole(tokens):
            self.clock += 1
            self.used[self.whole(tokens)] = self.clock
        return longest

    def evict(self, tokens: int) -> int:
        gone = 0
        while gone < tokens:
            leaves = [p for p in self.used if not any(q[: len(p)] == p for q in self.used if q != p)]
            free = [p for p in leaves if not any(q[: len(p)] == p for q in self.locked)]
            if not free:
                break
            oldest = min(free, key=self.used.__getitem__)
            del self.used[oldest]
            gone += len(oldest) - max((len(p) for p in self.used if p == oldest[: len(p)]), default=0)
        return gone

    def size(self) -> int:
        return self.page * len({p[:n] for p in self.used for n in range(self.page, len(p) + 1, self.page)})

    def locked_size(self) -> int:
        return self.page * len({p[:n] for p in self.locked for n in range(self.page, len(p) + 1, self.page)})


PROMPT = st.lists(st.integers(0, 1), max_size=9).map(tuple)
OPERATION = st.one_of(
    st.tuples(st.sampled_from(["match", "insert", "lock"]), PROMPT),
    st.tuples(st.sampled_from(["evict", "unlock"]), st.integers(0, 12)),
)


def nodes(tree: RadixTree) -> list[Node]:
    """Every node but the roots."""
    found, waiting = [], list(tree._roots.values())
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children.values())
        found += [node] if node.parent is not None else []
    return found



@settings(max_examples=400, deadline=None)
@given(page=st.integers(1, 3), operations=st.lists(OPERATION, max_size=40))
def test_radix_tree_matches_dictionary_of_prefixes(page: int, operations: list[tuple[str, object]]) -> None:
    tree, model = RadixTree(page), PrefixDictionary(page)
    locks: list[Node] = []
    for name, argument in operations:
        if isinstance(argument, tuple):
            if name == "insert":
                assert tree.insert(argument)[0] == len(model.insert(argument))
            else:
                matched, node = tree.match(argument)
                longest = model.match(argument)
                assert matched == len(longest)
                if name == "lock":
                    tree.lock(node)
                    locks.append(node)
                    model.locked.append(longest)
        elif name == "evict":
            assert tree.evict(argument) == model.evict(argument)
        elif locks:
            model.locked.pop(argument % len(locks))
            tree.unlock(locks.pop(argument % len(locks)))
        assert tree.size == model.size() == sum(len(node.key) for node in nodes(tree))
        assert tree.locked == model.locked_size()
        assert len(nodes(tree)) == len(model.used)


@given(key=PROMPT, tokens=PROMPT, start=st.integers(0, 9), repeat=st.integers(1, 40))
def test_shared_prefix_equals_result_of_token_loop(key: Tokens, tokens: Tokens, start: int, repeat: int) -> None:
    key, tokens = key * repeat, tokens * repeat
    start = min(start, len(tokens))
    same = 0
    while same < min(len(key), len(tokens) - start) and key[same] == tokens[start + same]:
        same += 1
    assert shared_prefix(key, tokens, start) == same


def test_salts_do_not_share_prefixes() -> None:
    tree = RadixTree()
    tree.insert((1, 2, 3), "a")
    assert tree.match((1, 2, 3), "a")[0] == 3
    assert tree.match((1, 2, 3), "b")[0] == 0


def test_least_recently_used_leaf_is_evicted_first() -> None:
    tree = RadixTree()
    for prompt in ((1, 1, 1), (2, 2), (3,)):
        tree.insert(prompt)
    tree.match((1, 1, 1))
    assert tree.evict(1) == 2
    assert [tree.match(p)[0] for p in ((1, 1, 1), (2, 2), (3,))] == [3, 0, 1]


def test_one_unlock_too_many_is_an_error() -> None:
    tree = RadixTree()
    node = tree.insert((1, 2))[1]
    tree.lock(node)
    tree.unlock(node)
    with pytest.raises(RuntimeError, match="more often"):
        tree.unlock(node)


def test_both_parts_of_a_split_stay_locked() -> None:
    tree = RadixTree()
    node = tree.insert((1, 2, 3, 4))[1]
    tree.lock(node)
    tree.match((1, 2, 9))
    assert (tree.evict(9), tree.locked) == (0, 4)
    tree.unlock(node)
    assert (tree.locked, tree.evict(9)) == (0, 4)


@pytest.mark.parametrize("position", range(200))
def test_shared_prefix_ends_at_first_different_token(position: int) -> None:
    tokens = tuple(range(200))
    other = (*tokens[:position], -1, *tokens[position + 1 :])
    assert shared_prefix(other, (7, *tokens), 1) == position
