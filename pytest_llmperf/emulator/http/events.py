"""What the writers of answers have in common: the request, the texts of tokens, and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from pytest_llmperf.emulator.core import sequence
from pytest_llmperf.emulator.flags.launch import Launch
from pytest_llmperf.emulator.http.generation_request import GenerationRequest
from pytest_llmperf.emulator.http.replies import Refusal
from pytest_llmperf.emulator.http.text import text_of

DONE = b"data: [DONE]\n\n"
CRASHED = Refusal(500, "EngineCore encountered an issue (a planted fault).", "InternalServerError")
LIMITED = Refusal(429, "Too many requests (a planted fault).", "RateLimitError")
#: A router's answer to a request that reached no server.
UNREACHED = Refusal(502, "The router reached no server.", "BadGateway")
#: What answers a request that a planted fault refuses, by the kind of the fault.
REFUSALS = {"refused": CRASHED, "limited": LIMITED}


class Events(ABC):
    """Writes one answer, as a stream of events or whole.

    Args:
        ask, launch: the request and the server.
        number: number of the request, from which its id follows.
        created: seconds since 1970.
    """

    def __init__(self, ask: GenerationRequest, launch: Launch, number: int, created: int) -> None:
        self._ask = ask
        self._launch = launch
        self._number = number
        self._created = created

    def opening(self) -> list[bytes]:
        """What comes right before the first token."""
        return []

    @abstractmethod
    def tokens(self, index: int, ids: Sequence[int], cached: int, finished: bool) -> bytes:
        """Tokens of prompt `index`; `cached`: prompt tokens that came from the prefix cache."""

    def end(self) -> list[bytes]:
        """What follows the last token: usage and [DONE], one event each."""
        return [DONE]

    @abstractmethod
    def whole(self, ids: list[list[int]], cached: list[int]) -> object:
        """The answer without a stream as JSON, from the generated ids and the cached prompt tokens of each prompt."""

    def whole_of(self, sequences: Iterable[sequence.Sequence]) -> object:
        """The answer without a stream as JSON."""
        rows = [(list(s.tokens(s.prompt_length, s.length)), s.cached_tokens or 0) for s in sequences]
        return self.whole([ids for ids, _ in rows], [cached for _, cached in rows])

    def _text(self, ids: Iterable[int]) -> str:
        return "".join(map(text_of, ids)) if self._launch.tokenizer else ""


def error_event(refusal: Refusal = CRASHED) -> bytes:
    """An error after the head was sent: the status is 200 already."""
    return b"data: " + refusal.body() + b"\n\n"
