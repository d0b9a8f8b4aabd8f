"""What one step computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.cost.step_time import StepLoad


@dataclass(slots=True, eq=False)
class End:
    """When a step ends: never, until it is run."""

    ns: float = inf


@dataclass(slots=True, eq=False)
class Batch:
    """The rows of a step and their sums, as in StepLoad.

    Args:
        rows: per row: sequence, number of computed tokens, number of drafts among them, whether a token is sampled.
        unsampled: number of rows whose prompt continues in a later step.
        pairs2: twice the number of query–key pairs, which is a whole number.
        drafted: tokens that a draft model proposes after this step.
        store_s: time that the step waits for KV cache to leave the GPU.
        prefilling: with speculation, whether a sequence that was already running is still prefilling.
        blank: sequences whose drafts are empty padding.
        end: end of the step. KV cache that the step computes is not available before this time.
    """

    rows: list[tuple[Sequence, int, int, bool]] = field(default_factory=list)
    tokens: int = 0
    prefill_tokens: int = 0
    unsampled: int = 0
    sampled: int = 0
    kv_tokens: int = 0
    pairs2: int = 0
    drafted: int = 0
    store_s: float = 0.0
    prefilling: bool = False
    blank: list[Sequence] = field(default_factory=list)
    end: End = field(default_factory=End)

    def add(self, sequence: Sequence, new: int, computed: int, drafts: int, sampling: bool) -> None:
        """A row that computes `new` tokens after `before` ones."""
        self.rows.append((sequence, new, drafts, sampling))
        self.tokens += new
        self.sampled += 1 + drafts
        self.kv_tokens += computed + new
        self.pairs2 += new * (2 * computed + new + 1)
        if computed < sequence.prompt_length or new > 1 + drafts:
            self.prefill_tokens += new
        if not sampling:
            self.unsampled += 1

    def decode(self, sequences: list[Sequence]) -> None:
        """Replaces the rows by one token of each of these sequences, whose `computed` contains this token."""
        self.rows = [(sequence, 1, 0, True) for sequence in sequences]
        self.tokens = self.sampled = len(sequences)
        self.kv_tokens = sum([sequence.computed for sequence in sequences])
        self.pairs2, self.prefill_tokens = 2 * self.kv_tokens, 0

    def load(self) -> StepLoad:
        """The load of the step for the step-time model."""
        return StepLoad(
            len(self.rows),
            self.tokens,
            self.prefill_tokens,
            self.sampled,
            self.kv_tokens,
            self.pairs2 / 2,
            self.drafted,
        )
