"""The interface between an engine and its scheduler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pytest_llmperf.emulator.core.batch import Batch
from pytest_llmperf.emulator.core.counters import Counters
from pytest_llmperf.emulator.core.sequence import Sequence


class Scheduler(Protocol):
    """Decides what runs in which step, and keeps the books.

    With asynchronous scheduling `schedule` is called for the next batch before `complete` for the one that computes.
    """

    counters: Counters

    @property
    def running(self) -> Collection[Sequence]: ...

    @property
    def waiting(self) -> Collection[Sequence]:
        """Those in the queue, preempted ones too."""
        ...

    @property
    def loading(self) -> int:
        """How many are set aside while KV cache is loaded for them."""
        ...

    @property
    def usage(self) -> float:
        """Share of the KV cache that is held, 0 to 1."""
        ...

    def check(self, sequence: Sequence) -> None:
        """Raises:
        ValueError: a sequence could never run to its end here.
        """
        ...

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence.

        Raises:
            ValueError: the engine can never finish the sequence: it exceeds max_model_len or the KV cache.
        """
        ...

    def abort(self, sequence: Sequence) -> None:
        """Drops a sequence wherever it is; no effect where it has ended."""
        ...

    def schedule(self, now_ns: int) -> Batch | None:
        """The next batch; None if no sequence can run now."""
        ...

    def complete(self, batch: Batch, now_ns: int) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        """A batch is computed: how many tokens each sequence gets, and which ones end with that."""
        ...

    def steady(self, pending: Batch | None) -> tuple[int, int]:
        """For how many steps every running sequence gets one token and nothing else happens but that some end with the
        last of them (0: unknown), and the `kv_tokens` of the first step. `pending`: the batch that is scheduled
        already, with asynchronous scheduling.
        """
        ...

    def advance_steps(self, steps: int, now_ns: int) -> list[Sequence]:
        """Updates the scheduler state and the pending batch to the end of this many decode steps. Returns the sequences
        that ended."""
        ...

    def wake_ns(self) -> int | None:
        """Earliest time at which a sequence that loads KV cache can continue; None if no sequence loads."""
        ...

    def reset_prefix_cache(self) -> bool:
        """Empties it; False, and nothing changed, while blocks are held."""
        ...
