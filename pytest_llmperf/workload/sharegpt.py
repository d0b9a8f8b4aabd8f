"""Prompts from a file in the ShareGPT format: text as people write it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pytest_llmperf.bounded_file import read_file
from pytest_llmperf.errors import SpecError, echo
from pytest_llmperf.model.request import Request
from pytest_llmperf.workload.arguments import call_text, integer, keywords_only
from pytest_llmperf.workload.arrivals import Arrivals
from pytest_llmperf.workload.base import FORMAT, Workload, check_arrivals
from pytest_llmperf.workload.prompts import as_text, draw_tokens, stream, uniform_int

BYTES_PER_TOKEN = 4
LIMIT_BYTES = 2**30
_PEOPLE, _MODELS = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
_EXPECTED = 'a JSON list of {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}'


@dataclass(frozen=True, slots=True, repr=False)
class ShareGpt(Workload):
    """Built by `sharegpt`."""

    path: str
    arrivals: Arrivals
    count: int = field(metadata={"argument": "requests"})
    seed: int = 0

    def requests(self, seed_offset: int = 0) -> tuple[Request, ...]:
        seed = self.seed + seed_offset
        pairs = list(_usable_pairs(_read(self.path), self.path))
        if len(pairs) < self.count:
            raise SpecError(f"sharegpt: {self.path} has {len(pairs)} usable conversations (a first message and its "
                            f"reply, neither very short nor very long), {self.count} were asked for. "
                            f"Ask for fewer requests or use a larger file.")
        offsets_ns = self.arrivals.offsets_ns(self.count, seed)
        rng = stream(seed, "order")
        for i in range(self.count):  # the start of a Fisher-Yates shuffle
            j = uniform_int(rng, i, len(pairs) - 1)
            pairs[i], pairs[j] = pairs[j], pairs[i]
        return tuple(
            Request(index, prompt, output_tokens, None, at_ns=None if offsets_ns is None else offsets_ns[index])
            for index, (prompt, output_tokens) in enumerate(pairs[: self.count])
        )

    def digest(self) -> str:
        """As everywhere, but over the file's content in place of its path."""
        content = hashlib.sha256(_read(self.path)).hexdigest()
        definition = f"sharegpt({content}, {self.arrivals}, {self.count}, {self.seed})"
        return hashlib.sha256(f"workload format {FORMAT}: {definition}".encode()).hexdigest()

    __str__ = call_text("sharegpt")


@keywords_only
def sharegpt(*, path: str | Path, arrivals: Arrivals, requests: int, seed: int = 0) -> Workload:
    """First messages of conversations as prompts; each asks for as many tokens as the recorded reply has.

    Lengths are estimated at 4 bytes of UTF-8 per token. As in the usual benchmark clients a conversation is used when
    message and reply have at least 4 tokens, the message at most 1,024 and both together at most 2,048. One with a cut
    emoji (half of a surrogate pair, which no request can carry) is left out.

    Args:
        path: the JSON file; read when the requests are made.
        arrivals: when they come.
        requests: how many.
        seed: which of the conversations, and in which order.

    Raises:
        SpecError: an argument is invalid; once the requests are made also where the file cannot be
            read or has too few conversations.
    """
    try:
        Path(path)
    except TypeError:
        raise SpecError(f"sharegpt: path must be a text or a path, got {path!r}. Name a file that is "
                        f"{_EXPECTED}.") from None
    count = integer("sharegpt", "requests", requests)
    check_arrivals("sharegpt", arrivals, count)
    return ShareGpt(str(path), arrivals, count, integer("sharegpt", "seed", seed, least=None))


def anonymise_conversations(path: str, rng: Random) -> tuple[str, int]:
    """A ShareGPT file with random words in place of its texts, and the number of its conversations.

    Speakers and the length of each text in bytes of UTF-8 stay, so `sharegpt` uses the same conversations with the same
    numbers of tokens. Ids and all other fields are left out. Texts that begin alike do not begin alike afterwards.

    Raises:
        SpecError: the file cannot be read or is no ShareGPT file.
    """
    conversations = [
        {"conversations": [{"from": turn["from"], "value": _words(len(turn["value"].encode(errors="replace")), rng)}
                           for turn in turns if _is_turn(turn)]}
        for turns in _conversations(_read(path), path) if isinstance(turns, list)
    ]
    return json.dumps(conversations), len(conversations)


def _is_turn(turn: object) -> bool:
    speakers = (*_PEOPLE, *_MODELS, "system")
    return isinstance(turn, dict) and turn.get("from") in speakers and isinstance(turn.get("value"), str)


def _words(size: int, rng: Random) -> str:
    """Random words of `size` bytes together."""
    text = as_text(draw_tokens(rng, size // 6 + 1))[:size]
    return text if not text.endswith(" ") else f"{text[:-1]}a"


def _read(path: str) -> bytes:
    try:
        return read_file(Path(path).expanduser(), limit_bytes=LIMIT_BYTES)
    except OSError as error:
        raise SpecError(f"sharegpt: cannot read {path}: {error.strerror}. It must be {_EXPECTED}.") from error


def _usable_pairs(content: bytes, path: str) -> Iterator[tuple[str, int]]:
    """(prompt, output tokens) of each conversation that the filter leaves."""
    for turns in _conversations(content, path):
        pair = _first_pair(turns)
        if pair is None:
            continue
        try:
            input_tokens, output_tokens = (-(-len(text.encode()) // BYTES_PER_TOKEN) for text in pair)
        except UnicodeEncodeError:  # half of a surrogate pair: JSON can say it, UTF-8 cannot
            continue
        if 4 <= input_tokens <= 1024 and output_tokens >= 4 and input_tokens + output_tokens <= 2048:
            yield pair[0], output_tokens


def _conversations(content: bytes, path: str) -> list[object]:
    """The turns of each conversation.

    Raises:
        SpecError: the file is no ShareGPT file; the message names the keys that its first entry has.
    """
    try:
        entries = json.loads(content)
        conversations = [entry.get("conversations", entry.get("conversation", [])) for entry in entries]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise SpecError(f"sharegpt: {path} is not {_EXPECTED}: {echo(str(error))}.") from error
    if entries and not any(map(_has_turn, conversations)):
        raise SpecError(f"sharegpt: {path} is not {_EXPECTED}: no entry has a turn with \"from\" and \"value\". "
                        f"The first entry has {_keys(entries[0])}. Rename these keys.")
    return conversations


def _has_turn(turns: object) -> bool:
    return isinstance(turns, list) and any(isinstance(turn, dict) and {"from", "value"} <= turn.keys()
                                           for turn in turns)


def _keys(entry: dict[str, object]) -> str:
    """The keys of an entry, and of the first object in each list of the entry."""
    turns = [f"turns in {echo(key)} with {echo([*value[0]])}" for key, value in entry.items()
             if isinstance(value, list) and value and isinstance(value[0], dict)]
    return " and ".join([f"the keys {echo([*entry])}", *turns])


def _first_pair(turns: object) -> tuple[str, str] | None:
    """The first message and the reply to this message, if the conversation starts with a user message; else None."""
    match turns:
        case [{"from": asks, "value": str(prompt)}, {"from": replies, "value": str(reply)}, *_]:
            return (prompt, reply) if asks in _PEOPLE and replies in _MODELS else None
    return None
