"""Drafts that are looked up in the text so far: what they would have been worth in a prompt."""

from __future__ import annotations

from pytest_llmperf.emulator.config import Lookup

_TEXT = 2048  # tokens at the end of a prompt that tell how much it repeats itself


def draft_sizes(prompt: tuple[int, ...], lookup: Lookup, draft_tokens: int) -> list[tuple[int, int]]:
    """Drafted and accepted tokens of each step in which a model would write the second half of a prompt.

    Like the engines, each step searches the text before it for its last tokens, the longest match first, and drafts
    what followed their first occurrence there. An emulated answer counts up through the ids, so an id after its
    predecessor matches nothing.
    """
    text = prompt[-_TEXT:]
    text = tuple(-at if at and token == text[at - 1] + 1 else token for at, token in enumerate(text))
    followers: dict[tuple[int, ...], int] = {}
    sizes = []
    here, known = len(text) // 2, 1
    while 0 < here < len(text):
        for end in range(known, here):
            for length in range(lookup.least, min(lookup.most, end) + 1):
                followers.setdefault(text[end - length : end], end)
        known = here
        matched = start = 0
        for length in range(min(lookup.most, here), lookup.least - 1, -1):
            start = followers.get(text[here - length : here], 0)
            if start:
                matched = length
                break
        longest = draft_tokens if lookup.factor is None else min(draft_tokens, int(matched * lookup.factor))
        drafted = min(longest, here - start) if matched else 0
        accepted = 0
        most = min(drafted, len(text) - here)
        while accepted < most and text[start + accepted] == text[here + accepted]:
            accepted += 1
        sizes.append((drafted, accepted))
        here += 1 + accepted
    return sizes or [(0, 0)]
