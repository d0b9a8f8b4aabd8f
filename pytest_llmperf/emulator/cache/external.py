"""What an engine asks of KV cache that lies outside its own GPU memory: a lower tier, or another engine's."""

from __future__ import annotations

from typing import Protocol

from pytest_llmperf.emulator.core.batch import End
from pytest_llmperf.emulator.core.sequence import Sequence


class ExternalKv(Protocol):
    """vLLM's KV connector as the scheduler sees it. Loads are asynchronous: the sequence waits, with its blocks
    allocated and without a place among the running ones, while the steps of the others go on.

    In an admission the scheduler asks `matched` after its own prefix cache, allocates blocks for both, then calls
    `load`, keeps the sequence aside until the time it gives, and goes on with `computed` = local + matched tokens.
    The hit counts once, with `length - local_tokens` as its query, and not again after a preemption.

    Attributes:
        prefilled: whether a sequence that lacks just its last token goes on as a decoding one (SGLang's decode engine),
            not as a short prompt.
    """

    prefilled: bool

    def matched(self, sequence: Sequence, local_tokens: int, now_ns: int) -> int:
        """Tokens after the first `local_tokens` that can be loaded now. Where these are all, the last one is computed
        again."""
        ...

    def load(self, sequence: Sequence, local_tokens: int, tokens: int, now_ns: int) -> int:
        """Begins to load what `matched` gave; when it is there, ns."""
        ...

    def store_s(self, sequence: Sequence, before: int, after: int, end: End) -> float:
        """Keeps what a step computes (`computed` goes from `before` to `after`), for others from its end on; seconds
        that it adds to the step."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence is finished or aborted."""
        ...
