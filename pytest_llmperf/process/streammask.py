"""Secrets out of what a server writes, as it writes it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable

MASK = b"***"


class StreamMask:
    """Masks texts in a byte stream, also where one is cut by a chunk boundary.

    Only bytes that may be the start of a secret are held back, so a log is not delayed.
    """

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
