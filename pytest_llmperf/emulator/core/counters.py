"""Counters and gauges of an engine, with the names of vLLM's /metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from pytest_llmperf.emulator.core.sequence import Sequence


@dataclass(slots=True)
class Counters:
    """Counters, which only increase. They count tokens unless the description says otherwise.

    Args:
        prompt_tokens, prompt_tokens_cached: tokens of prompts that have generated a token; cached tokens were not
            computed by this engine.
        prompt_tokens_external: cached tokens that came from a lower tier or from another engine.
        prefix_cache_queries, prefix_cache_hits: tokens that first admissions queried and hit. Admissions after a
            preemption do not count.
        external_queries, external_hits: tokens that first admissions queried and hit outside the GPU's prefix cache.
        generation_tokens: generated tokens.
        preemptions: number of preemptions.
        finished_length, finished_abort: number of requests by their ending.
        steps: number of engine steps.
        iteration_tokens: tokens of a step (generated tokens, and prompt tokens of a sequence's first token) → number
            of steps.
        spec_drafts: number of verifications; a step verifies each sequence once.
        spec_draft_tokens, spec_accepted_tokens: proposed draft tokens and accepted draft tokens.
        spec_accepted_per_position: accepted draft tokens by draft position.
        transfers, transferred_bytes, transfer_ns: number, size and time of transfers from a prefill engine.
        failed_transfers: transfers that the death of a prefill engine ended or prevented.
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
    steps: int = 0
    iteration_tokens: Counter[int] = field(default_factory=Counter)
    spec_drafts: int = 0
    spec_draft_tokens: int = 0
    spec_accepted_tokens: int = 0
    spec_accepted_per_position: Counter[int] = field(default_factory=Counter)
    transfers: int = 0
    failed_transfers: int = 0
    transferred_bytes: int = 0
    transfer_ns: int = 0

    def __add__(self, other: Counters) -> Counters:
        """Sum of the counters of two engines."""
        return Counters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def observe_lookup(self, sequence: Sequence, local: int | None, external: int | None) -> None:
        """Counts the lookup of a first admission: tokens that hit the GPU's prefix cache and tokens that hit external
        KV cache. None without such a cache."""
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
        self.spec_accepted_per_position.update(range(accepted))

    def observe_iteration(self, tokens: int, steps: int = 1) -> None:
        """Counts `steps` steps that generated `tokens` tokens each."""
        self.iteration_tokens[tokens] += steps


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
