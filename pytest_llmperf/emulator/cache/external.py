"""The interface to KV cache outside the engine's own GPU memory: a lower tier, or the KV cache of another engine."""

from __future__ import annotations

from typing import Protocol

from pytest_llmperf.emulator.core.batch import End
from pytest_llmperf.emulator.core.sequence import Sequence


class ExternalKv(Protocol):
    """The scheduler's interface to vLLM's KV connector. Loads are asynchronous: a loading sequence holds its blocks
    but is not running, and the engine continues with the steps of the running sequences.

    To admit a sequence, the scheduler first looks in the GPU's prefix cache, then calls `matched`, and allocates blocks
    for the hits of both. Then the scheduler calls `load` and sets the sequence aside until the load ends. The sequence
    continues with `computed` = local + matched tokens. The counters count this hit once, with `length - local_tokens`
    as queried tokens, and do not count a second lookup after a preemption.

    Attributes:
        prefilled: whether a sequence that lacks only its last token continues as a decoding sequence (SGLang's decode
            engine) instead of a short prompt.
    """

    prefilled: bool

    def matched(self, sequence: Sequence, local_tokens: int, now_ns: int) -> int:
        """Number of tokens after the first `local_tokens` that can be loaded now. If they complete the prompt, the
        engine still computes the last token."""
        ...

    def load(self, sequence: Sequence, local_tokens: int, tokens: int, now_ns: int) -> int:
        """Starts to load the matched tokens and returns the time at which the load ends, in ns."""
        ...

    def store_s(self, sequence: Sequence, computed: int, after: int, end: End) -> float:
        """Stores the KV cache that a step computes (`computed` rises from `before` to `after`). Other sequences can
        load it after the end of the step. Returns the seconds by which the store extends the step."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence is finished or aborted."""
        ...
