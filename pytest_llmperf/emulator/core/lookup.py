"""Drafts that are looked up in the text so far, and the share of them that a target model accepts."""

from __future__ import annotations

from pytest_llmperf.emulator.config import Lookup

_TEXT = 2048  # tokens at the end of a prompt, whose repetitions stand for those of the answer


def draft_sizes(prompt: tuple[int, ...], lookup: Lookup, draft_tokens: int) -> list[tuple[int, int]]:
    """Numbers of drafted and accepted tokens in each step, as if a model generated the second half of the prompt.

    Like the engines, each step searches the text before it for its last tokens, the longest match first, and drafts
    what followed their first occurrence there. An emulated answer counts up through the ids, so an id after its
    predecessor matches nothing.
    """
    text = prompt[-_TEXT:]
    text = tuple(-at if at and token == text[at - 1] + 1 else token for at, token in enumerate(text))
    followers: dict[tuple[int, ...], int] = {}
    sizes = []
    position, indexed = len(text) // 2, 1
    while 0 < position < len(text):
        for end in range(indexed, position):
            for length in range(lookup.least, min(lookup.most, end) + 1):
                followers.setdefault(text[end - length : end], end)
        indexed = position
        matched = start = 0
        for length in range(min(lookup.most, position), lookup.least - 1, -1):
            start = followers.get(text[position - length : position], 0)
            if start:
                matched = length
                break
        longest = draft_tokens if lookup.factor is None else min(draft_tokens, int(matched * lookup.factor))
        drafted = min(longest, position - start) if matched else 0
        accepted = 0
        most = min(drafted, len(text) - position)
        while accepted < most and text[start + accepted] == text[position + accepted]:
            accepted += 1
        sizes.append((drafted, accepted))
        position += 1 + accepted
    return sizes or [(0, 0)]
