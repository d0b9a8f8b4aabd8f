"""Request records with sensible defaults."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from pytest_llmperf.model.record import Outcome, RequestRecord

_MS = 1_000_000


def make_record(
    index: int = 0,
    *,
    intended_ms: float = 0.0,
    send_delay_ms: float = 0.0,
    ttft_ms: float = 50.0,
    itl_ms: float | Sequence[float] = 10.0,
    chunks: int = 10,
    chunk_tokens: Sequence[int] | None = None,
    prompt_tokens: int = 8,
    cached_tokens: int | None = None,
    outcome: Outcome = Outcome.OK,
    detail: str | None = None,
    coalesced_chunks: int = 0,
    tag: str = "",
) -> RequestRecord:
    """A record whose first content came `ttft_ms` after the intended time and the rest in steps of `itl_ms`.

    Args:
        itl_ms: one gap for all, or every gap; then `chunks` follows from it.
        chunks: content chunks.
        chunk_tokens: tokens of each chunk; 1 each where None. `chunks` follows from it.
    """
    tokens = None if chunk_tokens is None else tuple(chunk_tokens)
    if isinstance(itl_ms, Sequence):
        gaps = list(itl_ms)
    else:
        gaps = [itl_ms] * ((chunks if tokens is None else len(tokens)) - 1)
    tokens = (1,) * (len(gaps) + 1) if tokens is None else tokens
    arrivals = tuple(round(at * _MS) for at in accumulate(gaps, initial=intended_ms + ttft_ms))
    return RequestRecord(
        index=index,
        intended_ns=round(intended_ms * _MS),
        sent_ns=round((intended_ms + send_delay_ms) * _MS),
        ended_ns=arrivals[-1],
        outcome=outcome,
        detail=detail if detail is not None or outcome is Outcome.OK else outcome.value,
        arrivals_ns=arrivals,
        chunk_tokens=tokens,
        asked_prompt_tokens=prompt_tokens,
        asked_output_tokens=sum(tokens),
        prompt_tokens=prompt_tokens,
        output_tokens=sum(tokens),
        cached_tokens=cached_tokens,
        coalesced_chunks=coalesced_chunks,
        tag=tag,
    )
