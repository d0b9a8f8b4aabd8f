"""The state of one request in the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

EndReason = Literal["length", "abort"]

_LOWEST, _SPAN = 10, 241  # generated ids; small enough for any vocabulary
_WHEEL = tuple(_LOWEST + position % _SPAN for position in range(_SPAN + 4096))


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its generated tokens. The scheduler changes the sequence in place.

    Args:
        id: unique within an engine.
        prompt: token ids.
        max_tokens: number of tokens to generate.
        arrived_ns: time of arrival at the engine.
        salt: separates prefix caches; sequences with an empty salt share prefixes.
        session: session that the request belongs to, for routers; "" for none.
        computed: number of prompt and generated tokens whose KV is in the cache or in a step in flight.
        generated: number of tokens sampled so far.
        cached_tokens: cached prompt tokens at the first admission, in any tier; None before the admission.
        external_tokens: cached tokens that came from outside the GPU's prefix cache.
        preemptions: number of preemptions.
        first_scheduled_ns, first_token_ns, ended_ns: time of the first schedule, and ends of the steps with the first
            and the last token.
        end: why the sequence ended; None while it runs or waits.
        blocks: ids of its KV blocks, in token order.
        registered: number of its blocks that the prefix cache knows.
        hashes: hash of each full block, which covers all tokens up to the end of the block.
        expected: number of tokens that the steps in flight will generate.
        drafts: number of draft tokens proposed for the next step.
        draft_sizes: drafted and accepted tokens that a lookup in the text may give; None before the first lookup.
        stale: whether the sequence was preempted while a step in flight computed it.
        prompt_length, limit: number of tokens of the prompt, and of the prompt with all tokens to generate.
        room: capacity of its blocks in tokens.
        engine: index of the engine that has the sequence.
    """

    id: int
    prompt: tuple[int, ...]
    max_tokens: int
    arrived_ns: int
    salt: str = ""
    session: str = ""
    computed: int = 0
    generated: int = 0
    cached_tokens: int | None = None
    external_tokens: int = 0
    preemptions: int = 0
    first_scheduled_ns: int | None = None
    first_token_ns: int | None = None
    ended_ns: int | None = None
    end: EndReason | None = None
    blocks: list[int] = field(default_factory=list, repr=False)
    registered: int = 0
    hashes: list[int] = field(default_factory=list, repr=False)
    expected: int = 0
    drafts: int = 0
    draft_sizes: list[tuple[int, int]] | None = field(default=None, repr=False)
    stale: bool = False
    prompt_length: int = field(init=False)
    limit: int = field(init=False)
    room: int = field(init=False, default=0)
    engine: int = field(init=False, default=0)
    _turn: int | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.prompt)
        self.limit = self.prompt_length + self.max_tokens

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_length + self.generated

    @property
    def finished(self) -> bool:
        return self.generated >= self.max_tokens

    def token(self, position: int) -> int:
        """The token id at a position. Generated ids depend on the prompt alone: equal prompts get equal answers."""
        if position < self.prompt_length:
            return self.prompt[position]
        return _WHEEL[(self._start() + position) % _SPAN]

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """The ids at positions start … stop − 1."""
        length = self.prompt_length
        if stop <= length:
            return self.prompt[start:stop]
        if start < length:
            return self.prompt[start:] + self.tokens(length, stop)
        turn = (self._start() + start) % _SPAN
        if turn + stop - start <= len(_WHEEL):
            return _WHEEL[turn : turn + stop - start]
        return tuple(self.token(position) for position in range(start, stop))

    @property
    def draw_key(self) -> int:
        """Key of the random draws at this point of the text: a hash of prompt and number of generated tokens."""
        return hash((self._start(), self.generated))

    def corrupt(self) -> None:
        """Generate other tokens, as a server does with wrong weights or a wrong KV cache."""
        self._turn = hash((self.prompt, 1))

    def _start(self) -> int:
        if self._turn is None:
            self._turn = hash(self.prompt)
        return self._turn
