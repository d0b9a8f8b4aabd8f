"""Prompts: token ids or words, drawn in bulk from streams of seeded random numbers.

Ids come from 1,000 to 9,999 whatever the model, so that a workload is the same for every model: vocabularies are
larger than that, and their special tokens lie outside.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import Length

if TYPE_CHECKING:
    import numpy.typing as npt


def derive(seed: int, *names: object) -> int:
    """A 128-bit seed for the stream called `names`: first half of SHA-256 over the names joined by "/"."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def stream(seed: int, *names: object) -> Random:
    """The generator of one stream. Draws of one stream do not change the draws of another stream.

    Draw only through `random`, `getrandbits` and `randbytes`: these three are the same in every Python version.
    """
    return Random(derive(seed, *names))


def uniform_int(rng: Random, low: int, high: int) -> int:
    """An integer from low to high, both included."""
    return low + int(rng.random() * (high - low + 1))


FIRST_ID, LAST_ID = 1_000, 9_999
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aeiou"
_WORDS = (16 * 5) ** 2 * 16
_FIRST_WORD = re.compile(r"\s*\S*")


def draw_tokens(rng: Random, count: int) -> tuple[int, ...]:
    """`count` token ids; about 13 ns each."""
    return tuple(_id_table()[np.frombuffer(rng.randbytes(2 * count), "<u2")].tolist())


def draw_length(rng: Random, bounds: Length) -> int:
    """A length within `bounds`."""
    return bounds if isinstance(bounds, int) else uniform_int(rng, *bounds)


def as_text(tokens: tuple[int, ...]) -> str:
    """A pronounceable word of five letters for each id, separated by spaces."""
    return " ".join(map(_word, tokens))


def in_words(requests: Iterable[Request], words: Sequence[str]) -> tuple[Request, ...]:
    """The same requests with a word for each token id; prompts that share tokens share words. The length of a prompt
    is then known from the server's usage alone."""
    return tuple(
        request if isinstance(request.prompt, str) else replace(
            request, prompt_tokens=None,  # a text that continues an earlier one begins with a space
            prompt=" " * request.continues + " ".join([words[token % len(words)] for token in request.prompt]))
        for request in requests
    )


def relabelled(requests: Iterable[Request], rng: Random) -> tuple[Request, ...]:
    """The same requests with other prompts. A cache can hold parts of these prompts only if they were sent with an
    equal `rng` before.

    Lengths, times and what the prompts share stay: each token id becomes another one, always the same, and the first
    word of a text gets a suffix, always the same.
    """
    ids = list(range(FIRST_ID, LAST_ID + 1))
    rng.shuffle(ids)
    other = dict(enumerate(ids, start=FIRST_ID))
    suffix = "".join(_word(rng.choice(ids)) for _ in range(3))

    def prompt(sent: tuple[int, ...] | str) -> tuple[int, ...] | str:
        if isinstance(sent, str):
            return _FIRST_WORD.sub(lambda match: match.group() + suffix, sent, count=1)
        return tuple(other.get(token, token) for token in sent)

    return tuple(replace(request, prompt=prompt(request.prompt)) for request in requests)


def with_seeded_replies(requests: Iterable[Request]) -> Iterator[tuple[Request, tuple[int, ...] | str]]:
    """Pairs of a request with its whole prompt, earlier turns included, and this prompt followed by the answer if a
    later turn contains the answer. Seeded tokens stand for the answers, which only the server knows."""
    answered: dict[int, tuple[int, ...] | str] = {}
    for request in requests:
        prompt = request.prompt
        if request.continues and request.after is not None:
            prompt = _behind(answered[request.after], prompt)
        whole = prompt
        if request.answer_used:
            reply = draw_tokens(stream(request.index, "reply"), request.output_tokens)
            whole = _behind(prompt, reply if isinstance(prompt, tuple) else f" {as_text(reply)}")
            answered[request.index] = whole
        yield replace(request, prompt=prompt, continues=False), whole


def _behind(first: tuple[int, ...] | str, second: tuple[int, ...] | str) -> tuple[int, ...] | str:
    """Two prompts of one kind as one."""
    if isinstance(first, str) or isinstance(second, str):
        return f"{first}{second}"
    return first + second


@cache
def _id_table() -> npt.NDArray[np.object_]:
    """An id for each 16-bit draw; some ids stand for eight draws, the others for seven. Equal ids share one object."""
    ids = list(range(FIRST_ID, LAST_ID + 1))
    return np.array([ids[draw % len(ids)] for draw in range(1 << 16)], dtype=object)


@cache
def _word(token: int) -> str:
    number = token * 48_271 % _WORDS  # odd and no multiple of 5, so different ids are different words
    letters = []
    for alphabet in (_CONSONANTS, _VOWELS, _CONSONANTS, _VOWELS, _CONSONANTS):
        number, letter = divmod(number, len(alphabet))
        letters.append(alphabet[letter])
    return "".join(letters)


def sessions_of(requests: Sequence[Request]) -> dict[int, str]:
    """Index of each request → name of its session. The turns of a conversation share a session; any other request is a
    session of its own.

    Args:
        requests: ordered by index. So each turn of a conversation follows the turn before.
    """
    sessions: dict[int, str] = {}
    for request in requests:
        first = str(request.index)
        sessions[request.index] = first if request.turn == 1 or request.after is None else sessions[request.after]
    return sessions
