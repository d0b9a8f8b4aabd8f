"""Masks secrets in a server's output while the server writes."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable

MASK = b"***"
_KEY_BEGIN, _KEY_END = re.compile(rb"-----BEGIN [A-Z\d ]{0,30}PRIVATE KEY"), b"-----END"
#: Of a line of a private key the last word; the last line of a key is shorter.
_KEY_LINE, _LAST_KEY_LINE = (re.compile(rb"[A-Za-z\d+/]{%d,}={0,2}(?=[\s\"'\\,]*$)" % least) for least in (24, 2))
LONGEST_LINE_BYTES = 16384
OVERLAP_BYTES = 4096  # of a longer line: so much is held back, that a secret in it is not cut


class StreamMask:
    """Masks secrets in a byte stream, also where one is cut by a chunk boundary.

    Whole lines are released, because a shape needs the text around a secret. A line above 16 KiB is released in parts.

    Args:
        needles: texts to mask wherever they stand.
        shapes: what looks like a secret, see `masking.Shape`.
    """

    def __init__(self, needles: Iterable[str], shapes: Iterable[tuple[str, str, str, Iterable[str]]]) -> None:
        self._texts = TextMask(needles)
        self._shapes = [ByteShape(*shape) for shape in shapes]
        self._hints = sorted({hint for shape in self._shapes for hint in shape.hints})
        self._line = b""
        self._key_line: re.Pattern[bytes] | None = None  # inside of a private key: its next line

    def feed(self, data: bytes) -> bytes:
        data = self._line + self._texts.feed(data)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > LONGEST_LINE_BYTES:
            end = self._outside_a_secret(data, len(data) - OVERLAP_BYTES)
        self._line = data[end:]
        return b"".join(map(self._masked, data[:end].splitlines(keepends=True)))

    def end_line(self) -> bytes:
        """The incomplete last line; for the end of the process that wrote the line."""
        line, self._line = self._line, b""
        return self._masked(line)

    def flush(self) -> bytes:
        """All that was held back."""
        self._line += self._texts.flush()
        return self.end_line()

    def _masked(self, line: bytes) -> bytes:
        line = self._without_key(line)
        for shape in self._possible(line):
            line = shape.pattern.sub(shape.replacement, line)
        return line

    def _without_key(self, line: bytes) -> bytes:
        """The line without its part of a private key of several lines; headers with a colon stand before the key."""
        begins, ends = _KEY_BEGIN.search(line), _KEY_END in line
        if begins or ends or self._key_line is None:
            self._key_line = None if ends else _KEY_LINE if begins else self._key_line
        elif (masked := self._key_line.sub(MASK, line)) != line:
            self._key_line, line = _LAST_KEY_LINE, masked
        elif line.strip() and b":" not in line:
            self._key_line = None
        return line

    def _outside_a_secret(self, data: bytes, end: int) -> int:
        for shape in self._possible(data):
            for match in shape.pattern.finditer(data):
                if match.start() < end < match.end():
                    end = match.start()
        return end

    def _possible(self, data: bytes) -> list[ByteShape]:
        """The shapes that may match: searching for texts costs a tenth of a pattern."""
        lowered = data.lower()
        hints = [hint for hint in self._hints if hint in lowered]
        return [shape for shape in self._shapes if shape.needs in data and not shape.hints.isdisjoint(hints)]


class ByteShape:
    """What looks like a secret, as bytes; see `masking.Shape`."""

    def __init__(self, pattern: str, replacement: str, needs: str, hints: Iterable[str]) -> None:
        self.pattern = re.compile(pattern.encode())
        self.replacement = replacement.encode()
        self.needs = needs.encode()
        self.hints = frozenset(hint.encode() for hint in hints)


class TextMask:
    """Masks given texts in a byte stream, also where one is cut by a chunk boundary. Only the bytes that may begin a
    text are held back."""

    def __init__(self, needles: Iterable[str]) -> None:
        self._needles = sorted({needle.encode(errors="surrogateescape") for needle in needles})
        longest_first = sorted(self._needles, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None
        self._longest = max(map(len, self._needles), default=0)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        if self._pattern is None:
            return data
        data = self._pattern.sub(self._replace, self._held + data)
        keep = next((n for n in range(min(len(data), self._longest), 0, -1) if self._begins_needle(data[-n:])), 0)
        self._held = data[len(data) - keep:]
        return data[:len(data) - keep]

    def flush(self) -> bytes:
        rest, self._held = self._held, b""
        return rest if self._pattern is None else self._pattern.sub(MASK, rest)

    def _replace(self, match: re.Match[bytes]) -> bytes:
        """A match at the very end waits where a longer secret begins with it."""
        at_end = match.end() == len(match.string)
        return match[0] if at_end and self._begins_needle(match[0]) else MASK

    def _begins_needle(self, end: bytes) -> bool:
        """Whether some needle is longer than `end` and starts with it."""
        following = self._needles[bisect.bisect_right(self._needles, end):][:1]
        return bool(following) and following[0].startswith(end)
