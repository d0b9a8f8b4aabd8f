"""Server-sent events from bytes, after the WHATWG HTML standard, section 9.2.6 "Interpreting an event stream"."""

from __future__ import annotations

from dataclasses import dataclass

LINE_LIMIT_BYTES = 4 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event.

    Args:
        data: its data lines, joined by newlines.
        type: the event field; "" means the default, "message".
        replaced: whether invalid UTF-8 in the data was replaced by U+FFFD.
    """

    data: str
    type: str = ""
    replaced: bool = False


class EventDecoder:
    """Sans-IO decoder of server-sent events: `feed` takes bytes and returns the events that these bytes completed.

    The events do not depend on how the bytes are split. The decoder drops `id` and `retry`, which serve reconnection; a
    measured request must not reconnect. A line above `line_limit_bytes` sets `overflowed`, and the decoder ignores all
    later bytes.
    """

    def __init__(self, line_limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit = line_limit_bytes
        self._tail = bytearray()
        self._at_start = True
        self._after_cr = False
        self._data: list[str] = []
        self._type = ""
        self._replaced = False
        self.overflowed = False

    @property
    def pending(self) -> bool:
        """Whether the decoder holds an unfinished event. At the end of the stream such an event is dropped, as the SSE
        standard requires."""
        return bool(self._tail or self._data)

    @property
    def unfinished(self) -> str:
        """Data and last line of the unfinished event."""
        return "\n".join([*self._data, *([_text(self._tail)] if self._tail else [])])

    def feed(self, data: bytes) -> list[Event]:
        """Events that `data` completed, in order."""
        if self.overflowed or not data:
            return []
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        self._after_cr = data[-1:] == b"\r" if data else False
        self._tail += data
        if b"\n" not in data and b"\r" not in data:
            self.overflowed = len(self._tail) > self._limit
            return []
        lines = self._tail.splitlines()
        self._tail = bytearray() if self._tail.endswith((b"\n", b"\r")) else lines.pop()
        events = self._interpret(lines)
        self.overflowed = self.overflowed or len(self._tail) > self._limit
        return events

    def _interpret(self, lines: list[bytearray]) -> list[Event]:
        events: list[Event] = []
        for line in lines:
            if len(line) > self._limit:
                self.overflowed = True
                break
            content = line.removeprefix(_BOM) if self._at_start else line
            self._at_start = False
            if content:
                self._field(content)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        return events

    def _field(self, line: bytearray) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            text = _text(value)
            self._replaced = self._replaced or text.encode() != value.removeprefix(b" ")
            self._data.append(text)
        elif name == b"event":
            self._type = _text(value)

    def _dispatch(self) -> Event | None:
        event = Event("\n".join(self._data), self._type, self._replaced) if self._data else None
        self._data, self._type, self._replaced = [], "", False
        return event


def _text(value: bytearray) -> str:
    return value.removeprefix(b" ").decode("utf-8", "replace")
