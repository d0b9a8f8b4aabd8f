"""Whether the text of an answer can be what its tokens stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from pytest_llmperf.wire.stream import Stream

LEAST_CHUNKS = 4
#: Different texts that are all doubled. A model that repeats one token may repeat "haha".
DOUBLED_TEXTS = 3
#: Text of random tokens has other tokens when it is tokenised again. A text that came twice has twice as many.
ID_TOLERANCE = 0.5


def repeats(texts: Sequence[str], tokens: int) -> bool:
    """Whether each chunk of one token brings its text twice, or brings all earlier text again.

    Args:
        texts: of the content chunks.
        tokens: in all of them.
    """
    filled = [text for text in texts if text]
    if len(texts) != tokens or len(filled) < LEAST_CHUNKS:
        return False
    if all(len(after) > len(before) and after.startswith(before) for before, after in pairwise(filled)):
        return True
    halves = [text[: len(text) // 2] for text in filled]
    if any(half * 2 != text for half, text in zip(halves, filled, strict=True)):
        return False
    words = {half for half in halves if any(map(str.isalnum, half))}
    # No vocabulary has a token of two words, " a a".
    return len(words) >= DOUBLED_TEXTS or any(half[0].isspace() for half in words)


def text_contradicts_ids(stream: Stream, count: Callable[[Sequence[str]], tuple[int, ...]]) -> str | None:
    """Why the text and the token ids of an answer cannot belong together, by the named tokenizer; None if they can.

    Args:
        stream: the answer.
        count: counts the tokens of each piece of a text.
    """
    if stream.listed_ids is None or not any(stream.texts):
        return None
    tokens = sum(count(stream.texts))
    if abs(tokens - stream.listed_ids) <= max(LEAST_CHUNKS, ID_TOLERANCE * stream.listed_ids):
        return None
    return f"the text has {tokens} tokens by the named tokenizer, and its events list {stream.listed_ids} token ids"
