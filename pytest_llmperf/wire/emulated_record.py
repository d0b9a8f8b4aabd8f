"""Makes the record of a request from the facts that an emulated engine reports."""

from __future__ import annotations

from pytest_llmperf.model.exchange import EmulatedExchange
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.model.request import Request


def emulated_record(request: Request, emulated: EmulatedExchange) -> RequestRecord:
    """The record that `to_record` would make of the bytes."""
    return RequestRecord(
        index=request.index,
        intended_ns=emulated.intended_ns,
        sent_ns=emulated.sent_ns,
        ended_ns=emulated.ended_ns,
        outcome=emulated.outcome,
        detail=_detail(emulated),
        arrivals_ns=emulated.token_ns,
        chunk_tokens=emulated.token_counts or None,
        asked_prompt_tokens=request.prompt_tokens,
        asked_output_tokens=request.output_tokens,
        prompt_tokens=emulated.prompt_tokens,
        output_tokens=emulated.output_tokens,
        cached_tokens=emulated.cached_tokens,
        tag=request.tag,
        turn=request.turn,
        after=request.after if request.turn > 1 else None,
        attempts=emulated.attempts,
        asked_model=request.model,
        reason=_reason(emulated),
    )


def _reason(emulated: EmulatedExchange) -> str:
    """See `RequestRecord.reason`. The emulator refuses by HTTP 429 alone."""
    status = (emulated.error or "").partition(":")[0]
    if emulated.outcome is Outcome.HTTP_STATUS:
        return status
    why = {Outcome.TIMEOUT: emulated.error, Outcome.RATE_LIMITED: status}.get(emulated.outcome)
    return f"{emulated.outcome.value} ({why})" if why else ""


def _detail(emulated: EmulatedExchange) -> str | None:
    if emulated.outcome is Outcome.OK:
        return None
    if emulated.error and emulated.outcome is not Outcome.TIMEOUT:
        return emulated.error
    limit = f": {emulated.error}" if emulated.error else ""
    return f"{emulated.ending.value}{limit} after {len(emulated.token_ns)} content chunks"
