"""Texts of token ids, and token ids of texts: a tokenizer without a vocabulary file.

Each id has a unique text of a space and four letters. So an answer that is part of a later prompt gives the same tokens
again. Other text is cut into pieces of up to four characters, which gives about as many tokens as a real tokenizer.
"""

from __future__ import annotations

import re
from functools import cache
from zlib import crc32

_PIECE = re.compile(r"\s*[^\s]{1,4}|\s+")
_OWN = re.compile(" [a-z]{4}")
_LETTERS = 4
_LARGEST: int = 26**_LETTERS


@cache
def text_of(token: int) -> str:
    """The text of an id below 26⁴: " aaab"."""
    letters: list[str] = []
    for _ in range(_LETTERS):
        token, letter = divmod(token, 26)
        letters.append(chr(97 + letter))
    return " " + "".join(reversed(letters))


def tokens_of(text: str, vocab: int) -> tuple[int, ...]:
    """Token ids of any text; all below `vocab`."""
    return tuple(_token(piece, vocab) for piece in _PIECE.findall(text))


@cache
def _token(piece: str, vocab: int) -> int:
    if _OWN.fullmatch(piece):
        letters = 0
        for letter in piece[1:]:
            letters = letters * 26 + ord(letter) - 97
        if letters < vocab:
            return letters
    return crc32(piece.encode()) % min(vocab, _LARGEST)
