"""From what an emulated engine tells of a request to its record."""

from __future__ import annotations

from pytest_llmperf.model.exchange import Told
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.model.request import Request


def told_record(request: Request, told: Told) -> RequestRecord:
    """The record that `to_record` would make of the bytes."""
    return RequestRecord(
        index=request.index,
        intended_ns=told.intended_ns,
        sent_ns=told.sent_ns,
        ended_ns=told.ended_ns,
        outcome=told.outcome,
        detail=_detail(told),
        arrivals_ns=told.token_ns,
        chunk_tokens=told.token_counts or None,
        asked_prompt_tokens=request.prompt_tokens,
        asked_output_tokens=request.output_tokens,
        prompt_tokens=told.prompt_tokens,
        output_tokens=told.output_tokens,
        cached_tokens=told.cached_tokens,
        tag=request.tag,
    )


def _detail(told: Told) -> str | None:
    if told.outcome is Outcome.OK:
        return None
    return told.error or f"{told.ending.value} after {len(told.token_ns)} content chunks"
