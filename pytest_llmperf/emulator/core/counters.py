"""What an engine counts, named as vLLM's /metrics names it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmperf.emulator.core.sequence import Sequence


@dataclass(slots=True)
class Counters:
    """All of them only grow. Tokens unless said.

    Args:
        prompt_tokens, prompt_tokens_cached: of prompts whose first token was given out; cached: not computed here.
        prompt_tokens_external: cached tokens that came from a lower tier or from another engine.
        prefix_cache_queries, prefix_cache_hits: looked up and found at first admissions, not after a preemption.
        external_queries, external_hits: the same beyond the GPU's own cache.
        generation_tokens: given out.
        preemptions: sequences that lost their blocks.
        finished_length, finished_abort: requests by how they ended.
        queue_time_ns, queue_time_count: from arrival to first schedule, of finished requests.
        steps: engine steps.
        iteration_tokens: how many steps gave out so many tokens (prompt tokens computed for a first token, and
            generated ones).
        spec_drafts: verifications of one sequence in one step.
        spec_draft_tokens, spec_accepted_tokens: proposed, and accepted.
        spec_accepted_per_position: accepted by draft position.
    """

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_external: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    finished_length: int = 0
    finished_abort: int = 0
    queue_time_ns: int = 0
    queue_time_count: int = 0
    steps: int = 0
    iteration_tokens: dict[int, int] = field(default_factory=dict)
    spec_drafts: int = 0
    spec_draft_tokens: int = 0
    spec_accepted_tokens: int = 0
    spec_accepted_per_position: list[int] = field(default_factory=list)

    def __add__(self, other: Counters) -> Counters:
        """Of both together."""
        total = Counters()
        for name in (f.name for f in fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(total, name, mine + theirs if isinstance(mine, int) else _merged(mine, theirs))
        return total

    def observe_lookup(self, sequence: Sequence, local: int | None, external: int | None) -> None:
        """An admission that found so many tokens in the GPU's own cache, and beyond it; None where there is none."""
        if sequence.preemptions:
            return
        sequence.cached_tokens = (local or 0) + (external or 0)
        sequence.external_tokens = external or 0
        if local is not None:
            self.prefix_cache_queries += sequence.length
            self.prefix_cache_hits += local
        if external is not None and sequence.length > (local or 0):
            self.external_queries += sequence.length - (local or 0)
            self.external_hits += external

    def observe_prompt(self, sequence: Sequence) -> int:
        """A prompt whose first token is out; its tokens that were computed here."""
        cached = sequence.cached_tokens or 0
        self.prompt_tokens += sequence.prompt_length
        self.prompt_tokens_cached += cached
        self.prompt_tokens_external += sequence.external_tokens
        return sequence.prompt_length - cached

    def observe_drafts(self, drafts: int, accepted: int) -> None:
        """A verification of one sequence."""
        self.spec_drafts += 1
        self.spec_draft_tokens += drafts
        self.spec_accepted_tokens += accepted
        for position in range(accepted):
            self.spec_accepted_per_position[position] += 1

    def observe_end(self, sequence: Sequence) -> None:
        """A sequence that ran to its end."""
        self.finished_length += 1
        if sequence.first_scheduled_ns is not None:
            self.queue_time_ns += sequence.first_scheduled_ns - sequence.arrived_ns
            self.queue_time_count += 1

    def observe_iteration(self, tokens: int, steps: int = 1) -> None:
        """Counts `steps` steps that generated `tokens` tokens each."""
        self.iteration_tokens[tokens] = self.iteration_tokens.get(tokens, 0) + steps


def _merged(mine: dict[int, int] | list[int], theirs: dict[int, int] | list[int]) -> dict[int, int] | list[int]:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return {key: mine.get(key, 0) + theirs.get(key, 0) for key in {**mine, **theirs}}
    longer, shorter = (list(mine), list(theirs)) if len(mine) >= len(theirs) else (list(theirs), list(mine))
    return [value + (shorter[i] if i < len(shorter) else 0) for i, value in enumerate(longer)]


@dataclass(frozen=True, slots=True)
class Gauges:
    """Current values.

    Args:
        running, waiting: number of sequences. A sequence whose KV cache is being loaded counts as waiting.
        kv_usage: share of the KV cache that sequences hold, 0 to 1. Cached blocks without a holder do not count.
    """

    running: int
    waiting: int
    kv_usage: float
