"""Tokens of an SLO or claim text with their positions, so that an error message can point at a token."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_llmperf.errors import SloError

_TOKEN = re.compile(r"""\s*(?:
    (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<name>[A-Za-zµμ_][A-Za-z0-9_µμ]*)
  | (?P<sign><=|>=|==|≤|≥|=|<|>|!=)
  | (?P<mark>[(),/%.*])
  | (?P<bad>\S)
)""", re.VERBOSE)


@dataclass(frozen=True, slots=True)
class Token:
    """A word of the text; `kind` is "number", "name", "sign", "mark", "bad" or "end"."""

    kind: str
    text: str
    start: int

    @property
    def shown(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


class Cursor:
    """Reads a text token by token.

    Args:
        text: what the user wrote.
        subject: what the text should be, for messages: "SLO" or "claim".

    Raises:
        SloError: `text` is not a text.
    """

    def __init__(self, text: str, subject: str) -> None:
        if not isinstance(text, str):
            raise SloError(f"this {subject} cannot be read: it must be a text, got a value of type "
                           f"{type(text).__name__}. Write each {subject} as a text of its own.")
        self.text = text
        self.subject = subject
        self._tokens = [Token(str(match.lastgroup), match[str(match.lastgroup)], match.start(str(match.lastgroup)))
                        for match in _TOKEN.finditer(text)]
        self._tokens.append(Token("end", "", len(text.rstrip())))
        self._position = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._position]

    @property
    def following(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        """Take the next token. At the end this is the token "end", again and again."""
        token = self.next
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def accept(self, *texts: str) -> Token | None:
        """Take the next token if it reads like one of `texts`."""
        return self.take() if self.next.text in texts else None

    def expect(self, text: str, why: str) -> Token:
        """Take the next token, which must read `text`.

        Raises:
            SloError: the next token is another one.
        """
        if self.next.text != text:
            raise self.error(self.next, f"expected {text!r} {why}, found {self.next.shown}")
        return self.take()

    def expect_kind(self, kind: str, what: str) -> Token:
        """Take the next token, which must be of that kind.

        Raises:
            SloError: the next token is of another kind.
        """
        if self.next.kind != kind:
            raise self.error(self.next, f"expected {what}, found {self.next.shown}")
        return self.take()

    def error(self, token: Token, why: str) -> SloError:
        """An error with the reason and a pointer to the token, for the caller to raise."""
        pointer = " " * token.start + "^" * max(1, len(token.text))
        return SloError(f"this {self.subject} cannot be read: {why}\n  {self.text}\n  {pointer}")
