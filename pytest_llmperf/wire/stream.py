"""One answer: a stream, event by event up to its end, or a whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_llmperf.wire.chunks import Chunk, End, ImpossibleCount, Origin, Usage, read_chunk
from pytest_llmperf.wire.http import BodyFraming, NotHttpError
from pytest_llmperf.wire.responses import is_response, response_chunk
from pytest_llmperf.wire.sse import Event, EventDecoder

SHOWN_BYTES = 200
MOST_CHUNKS = 10_000_000
MOST_MODELS = 64  # names that are kept of one stream
MOST_ENDS = 256  # that are kept of one stream
# A detokenizer that held text back, or a parser that splits a step's text, may send as many events without a new token.
HELD_BACK_CHUNKS = 2
DONE = "[DONE]"


@dataclass(slots=True)
class Stream:
    """What an answer said, and when.

    Args:
        answers: number of answers to the request (`n`). With 1, the index of a choice is ignored, because some servers
            count tokens with the index. Above 1, the index of a choice names the answer.

    Attributes:
        arrivals_ns: stamp of the read that completed each content chunk. Chunks of different answers between two chunks
            of one answer count as one chunk with the first stamp: the server made them in one step.
        chunk_tokens: tokens in each content chunk; None for a chunk without a count.
        texts: text of each content chunk.
        models: names of models that events give, each once, in their order; the first `MOST_MODELS`.
        tokens: tokens in all content chunks, of all answers. A chunk without a count is one token.
        characters: of all text.
        uncounted_chunks, uncounted_characters: events with text for which the usage counts no further token.
        coalesced: content chunks completed by the same read as the content chunk before.
        listed_ids: token ids that events list; None if no event lists any.
        ends: ends of the choices, in their order; the first `MOST_ENDS`.
        origin: whether all events belong to the answer to one request.
        unread: the last event that has neither choices nor a usage; None without.
        events: events of any kind, `[DONE]` included; 1 for a whole answer.
        after_done: events with data after the end.
        done: whether the end has come: `[DONE]`, or the last event of a response.
        problem: why an event could not be understood.
        unfinished: text after the last blank line of an event stream.
    """

    answers: int = 1
    arrivals_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    tokens: int = 0
    characters: int = 0
    uncounted_chunks: int = 0
    uncounted_characters: int = 0
    coalesced: int = 0
    events: int = 0
    after_done: int = 0
    listed_ids: int | None = None
    ends: list[End] = field(default_factory=list)
    origin: Origin = field(default_factory=Origin)
    unread: str | None = None
    usage: Usage | None = None
    done: bool = False
    error: str | None = None
    problem: str | None = None
    replaced: bool = False
    unfinished: str = ""
    _counted: dict[int, int] = field(default_factory=dict)  # by answer
    _step: set[int] = field(default_factory=set)  # answers in the last content chunk
    _late: list[tuple[int, str]] = field(default_factory=list)  # stamp and text of chunks after a single counted one

    @property
    def finish_reason(self) -> str | None:
        """The finish reason of the choice that ended first."""
        return self.ends[0].reason if self.ends else None

    def take(self, event: Event, stamp_ns: int) -> None:
        """Account for one event."""
        data = event.data.strip()
        if self.done:
            self.after_done += bool(data) and data != DONE
            return
        self.events += 1
        self.replaced = self.replaced or event.replaced
        if data == DONE:
            self.done = True
            return
        if not data:
            return
        try:
            self.take_message(json.loads(data), stamp_ns, event.type)
        except ImpossibleCount as error:
            self.problem = str(error)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            self.problem = f"not a JSON completion chunk: {event.data.encode()[:SHOWN_BYTES]!r}"

    def take_message(self, message: dict[str, Any], stamp_ns: int, event_type: str = "") -> None:
        """Account for one JSON object."""
        if "choices" not in message and is_response(message):
            self._take_chunk(response_chunk(message), stamp_ns)
        else:
            chunk = read_chunk(message, event_type)
            if not chunk.has_choices and chunk.usage is None:
                self.unread = json.dumps(message)[:SHOWN_BYTES]
            self._take_chunk(chunk, stamp_ns)

    def _take_chunk(self, chunk: Chunk, stamp_ns: int) -> None:
        if not self.origin.is_usual(chunk):
            self.origin.check(chunk, self.answers, bool(self.ends))
        if self.answers == 1:
            chunk.choice = 0
        self.error = self.error or chunk.error
        if chunk.ends and len(self.ends) < MOST_ENDS:
            self.ends += chunk.ends
        tokens = self._tokens_of(chunk)
        self.usage = _merged(self.usage, chunk.usage)
        self.done = chunk.done
        characters = len(chunk.text)
        self.characters += characters
        if chunk.model is not None and len(self.models) < MOST_MODELS and chunk.model not in self.models:
            self.models.append(chunk.model)
        if not chunk.has_choices or not (characters if tokens is None else tokens > 0):
            self.uncounted_chunks += bool(characters)
            self.uncounted_characters += characters
            if characters and self.answers == len(self.arrivals_ns) == 1:
                self._late.append((stamp_ns, chunk.text))
            return
        if chunk.ends and not chunk.text and len(self._late) > HELD_BACK_CHUNKS:
            return  # the usage of the whole answer, with its end
        self.tokens += 1 if tokens is None else tokens
        if self._step and chunk.choice not in self._step:
            self._join(chunk, tokens)
            return
        self._step = {chunk.choice}
        if self.arrivals_ns and self.arrivals_ns[-1] == stamp_ns:
            self.coalesced += 1
        self.arrivals_ns.append(stamp_ns)
        self.chunk_tokens.append(tokens)
        self.texts.append(chunk.text)

    def settle(self) -> None:
        """Time the chunks by their text where the usage in each chunk does not count them.

        Such a usage is the same in each chunk: the count of the whole answer, or 1.
        """
        final = None if self.usage is None else self.usage.completion_tokens
        constant = len(self._late) > HELD_BACK_CHUNKS or final != self.tokens
        if not self._late or not constant or final is None or final <= len(self._late) or len(self.arrivals_ns) > 1:
            return
        self.uncounted_chunks = self.uncounted_characters = 0
        for stamp_ns, text in self._late:
            self.coalesced += stamp_ns == self.arrivals_ns[-1]
            self.arrivals_ns.append(stamp_ns)
            self.texts.append(text)
        self.chunk_tokens = [None] * len(self.arrivals_ns)

    def _join(self, chunk: Chunk, tokens: int | None) -> None:
        """Add the content of another answer to the last content chunk."""
        self._step.add(chunk.choice)
        before = self.chunk_tokens[-1]
        self.chunk_tokens[-1] = None if before is None or tokens is None else before + tokens
        self.texts[-1] += chunk.text

    def _tokens_of(self, chunk: Chunk) -> int | None:
        """Number of tokens in this chunk: the growth of the continuous usage, else the number of token ids.

        If earlier chunks had no usage, the first usage includes the tokens of all these chunks. So it does not give the
        number of tokens in this chunk. A usage of 0 does not count the text of its chunk.
        """
        if chunk.token_ids is not None:
            self.listed_ids = (self.listed_ids or 0) + chunk.token_ids
        begun_uncounted = bool(self.chunk_tokens) and self.chunk_tokens[-1] is None
        total = None if chunk.usage is None or not chunk.has_choices else chunk.usage.completion_tokens
        if total is not None and not begun_uncounted and (total or not chunk.text):
            grown = total - self._counted.get(chunk.choice, 0)
            self._counted[chunk.choice] = total
            if grown < 0:
                raise ImpossibleCount(f"its count of tokens fell from {total - grown} to {total}")
            return grown
        if chunk.token_ids is not None:
            self._counted[chunk.choice] = self._counted.get(chunk.choice, 0) + chunk.token_ids
        return chunk.token_ids


class TokenCounter:
    """Counts the generated tokens of a stream of `answers` answers while it arrives."""

    def __init__(self, answers: int = 1) -> None:
        self._framing = BodyFraming()
        self._events = EventDecoder()
        self._stream = Stream(answers)

    def feed(self, data: bytes) -> int:
        """Tokens so far, after further bytes of the HTTP answer."""
        with suppress(NotHttpError):
            self._framing.feed(data)
        pieces, self._framing.pieces = self._framing.pieces, []
        for _, piece in pieces:
            for event in self._events.feed(piece):
                self._stream.take(event, 0)
        return self._stream.tokens


def _merged(old: Usage | None, new: Usage | None) -> Usage | None:
    """The later counts, field by field: continuous usage leaves out what only the final one knows, or the reverse."""
    if old is None or new is None:
        return new or old
    return Usage(
        old.prompt_tokens if new.prompt_tokens is None else new.prompt_tokens,
        old.completion_tokens if new.completion_tokens is None else new.completion_tokens,
        old.cached_tokens if new.cached_tokens is None else new.cached_tokens,
    )


def read_stream(pieces: Iterable[tuple[int, bytes]], most_chunks: int = MOST_CHUNKS, answers: int = 1) -> Stream:
    """Decode (stamp_ns, bytes) pieces of an event stream; stops at what cannot be understood.

    Of what follows `[DONE]` only the number of events is kept.

    Args:
        pieces: of the body.
        most_chunks: content chunks; a stream of more is not understood.
        answers: as of `Stream`.
    """
    stream = Stream(answers)
    decoder = EventDecoder()
    for stamp_ns, piece in pieces:
        for event in decoder.feed(piece):
            stream.take(event, stamp_ns)
            if len(stream.arrivals_ns) > most_chunks:
                stream.problem = f"more than {most_chunks} content chunks, far more than tokens were asked for"
            if stream.problem:
                return stream
        if decoder.overflowed and not stream.done:
            stream.problem = "a line of the event stream is longer than the limit"
            return stream
    stream.settle()
    stream.unfinished = decoder.unfinished
    return stream


def read_whole(pieces: Iterable[tuple[int, bytes]], answers: int = 1) -> Stream:
    """Decode the (stamp_ns, bytes) pieces of an answer that is one JSON object. The last piece stamps the content.

    Args:
        pieces: of the body.
        answers: as of `Stream`.
    """
    answer = Stream(answers)
    stamped = list(pieces)
    body = b"".join(piece for _, piece in stamped)
    if not body:
        return answer
    answer.events = 1
    try:
        message = json.loads(body)
        answer.take_message(message, stamped[-1][0])
    except ImpossibleCount as error:
        answer.problem = str(error)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        answer.problem = f"not a JSON answer: {body[:SHOWN_BYTES]!r}"
    answer.done = True
    answer.chunk_tokens = [None] * len(answer.chunk_tokens)  # the usage alone counts a whole answer
    return answer
