"""What a server answered, as the next turn of a conversation sends it back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable
from typing import Any

from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.api import DEFAULT, SUCCESSFUL_ENDS, Api
from pytest_llmperf.model.exchange import Ending, Exchange
from pytest_llmperf.model.plan import ConversationPart, Form
from pytest_llmperf.model.request import Request
from pytest_llmperf.wire.chunks import End, end_of, ends_of, error_of, text_of
from pytest_llmperf.wire.http import BodyFraming, NotHttpError
from pytest_llmperf.wire.responses import ENDS, response_ends
from pytest_llmperf.wire.sse import EventDecoder
from pytest_llmperf.wire.stream import DONE

_HASH_BYTES = 8


class AnswerReader:
    """Reads one answer, streamed or whole, piece by piece: its token ids and its text.

    Reasoning is left out, because clients do not send the reasoning of earlier turns again.

    Args:
        answers: number of answers to the request (`n`), as of `Stream`. The next turn contains the first answer.
        ends: finish reasons of a success, see `Api.accepted_ends`. Any other end makes the answer incomplete.

    Attributes:
        ids: token ids of the answer, as far as the server sends them.
        finished: whether the answer has ended with a finish reason and without an error.
    """

    def __init__(self, answers: int = 1, ends: Collection[str] = SUCCESSFUL_ENDS) -> None:
        self._answers = answers
        self._ends = ends
        self.ids: list[int] = []
        self.finished = False
        self._texts: list[str] = []
        self._framing = BodyFraming()
        self._events = EventDecoder()
        self._begun = self._broken = False
        self._whole: bytearray | None = None  # the body of an answer that is no event stream

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def complete(self) -> bool:
        if self._whole is not None and not self.finished:
            self._read(lambda: self._take(json.loads(bytes(self._whole or b""))))
        return self.finished and not self._broken and self._framing.status == 200

    def feed(self, data: bytes) -> None:
        """Take further bytes of the answer. What cannot be understood makes the answer incomplete."""
        if not self._broken:
            self._read(lambda: self._feed(data))

    def _read(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (NotHttpError, ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
            self._broken = True

    def _feed(self, data: bytes) -> None:
        self._framing.feed(data)
        pieces, self._framing.pieces = self._framing.pieces, []
        for _, piece in pieces:
            if self._whole is None and not self._begun and piece.lstrip()[:1] == b"{":
                self._whole = bytearray()
            self._begun = True
            if self._whole is not None:
                self._whole += piece
                continue
            for event in self._events.feed(piece):
                if event.data.strip() not in ("", DONE):
                    self._take(json.loads(event.data))

    def _take(self, message: dict[str, Any]) -> None:
        if error_of(message) is not None:
            self._broken = True
        elif "meta_info" in message:
            self._take_native(message)
        elif message.get("choices"):
            self._end(ends_of(message))
            choice = message["choices"][0]
            if self._answers > 1 and choice.get("index"):
                return
            delta = choice.get("delta") or choice.get("message") or {}
            self.ids += choice.get("token_ids") or ()
            self._texts.append(choice.get("text") or text_of(delta.get("content")))
        elif message.get("type") == "response.output_text.delta":
            self._texts.append(message["delta"])
        elif message.get("type") in ENDS:
            self._end(response_ends(message["response"], message["type"].removeprefix("response.")))
        elif message.get("object") == "response":  # a whole one
            parts = [part for item in message["output"] for part in item.get("content") or ()]
            self._texts += [part["text"] for part in parts if part.get("type") == "output_text"]
            self._end(response_ends(message))

    def _end(self, ends: Iterable[End]) -> None:
        for end in ends:
            self.finished = True
            self._broken = self._broken or end.reason not in self._ends

    def _take_native(self, message: dict[str, Any]) -> None:
        """An event of SGLang's /generate: its ids and text are cumulative, unless a flag of the server changes that."""
        meta, ids, text = message["meta_info"], message.get("output_ids") or [], message.get("text") or ""
        cumulative = len(ids) == meta["completion_tokens"] if ids else text.startswith(self.text)
        if cumulative:
            self.ids, self._texts = list(ids), [text]
        else:
            self.ids += ids
            self._texts.append(text)
        if reason := meta.get("finish_reason"):
            self._end((end_of(0, reason),))


def part_of(request: Request, body: bytes) -> ConversationPart | None:
    """Where the request's own part of a conversation stands in its body; None for a request outside a conversation.

    Raises:
        SpecError: the body has no place for a conversation.
    """
    if not (request.continues or request.answer_used):
        return None
    if isinstance(request.prompt, tuple):
        places: tuple[tuple[Form, object, int], ...] = (("ids", list(request.prompt), 1),)
    else:
        message = {"role": "user", "content": request.prompt}
        places = (("messages", message, 0), ("text", request.prompt, 1))
    for form, value, quote in places:
        written = json.dumps(value, separators=(",", ":")).encode()
        start = body.find(written)
        if start >= 0:
            return ConversationPart(form, start + quote, start + len(written) - quote, request.continues)
    raise SpecError('reply="server": the requests of this protocol have no place for earlier turns. '
                    'Write reply="seeded".')


def answer_part(reader: AnswerReader, form: Form) -> bytes | None:
    """A complete answer as part of a body; None if the answer is incomplete, or is not there in this form."""
    if not reader.complete:
        return None
    if form == "ids":
        return ",".join(map(str, reader.ids)).encode() or None
    if not reader.text:
        return None
    if form == "text":
        return json.dumps(reader.text).encode()[1:-1]
    return json.dumps({"role": "assistant", "content": reader.text}, separators=(",", ":")).encode()


def joined(form: Form, parts: Iterable[bytes]) -> bytes:
    """The parts of a conversation in one piece."""
    return (b"" if form == "text" else b",").join(parts)


def read_reply(exchange: Exchange, form: Form, api: Api = DEFAULT) -> tuple[int, str] | None:
    """Number of token ids and hash of the answer that the next turn contains; None if no turn can contain it.

    Args:
        exchange: the answer.
        form: as of `ConversationPart`.
        api: how to read the answer.
    """
    reader = AnswerReader(api.choices, api.accepted_ends)
    reader.feed(exchange.data)
    part = answer_part(reader, form)
    if part is None or exchange.ending is not Ending.COMPLETE:
        return None
    return len(reader.ids), hashlib.sha256(part).hexdigest()[: 2 * _HASH_BYTES]
