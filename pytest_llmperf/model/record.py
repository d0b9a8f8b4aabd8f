"""What one request did, as raw facts. Every metric is a function of these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """Whether a request counts as served, and if not, why."""

    OK = "ok"
    NO_CONNECTION = "no connection"
    HTTP_STATUS = "http status"            # anything but 200
    ERROR_IN_STREAM = "error in stream"    # HTTP 200 with an error event inside
    TRUNCATED = "truncated"                # the stream ended without finish reason, usage or [DONE]
    MALFORMED = "malformed"                # not HTTP, not SSE, not JSON
    EMPTY = "empty"                        # a complete answer without content
    WRONG_LENGTH = "wrong length"          # not the number of tokens that was asked for
    COUNTS_DISAGREE = "token counts disagree"  # its usage contradicts what its chunks brought
    TIMEOUT = "timeout"
    RESET = "reset"
    STALE = "stale connection"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Raw facts of one request. Times are CLOCK_MONOTONIC nanoseconds.

    Args:
        index: position in the workload.
        intended_ns: when the schedule wanted it sent; latency counts from here.
        sent_ns: when it was handed to the socket; None where that never happened.
        ended_ns: when its last byte came or it was given up.
        outcome: OK, or why not.
        detail: one line for people where the outcome is not OK.
        arrivals_ns: one stamp per content chunk: when the read came that completed its event.
        chunk_tokens: tokens in each content chunk, as long as `arrivals_ns`; None where the server does not say.
        asked_prompt_tokens: what the workload said the prompt counts; None for text.
        asked_output_tokens: what the workload asked for.
        prompt_tokens, output_tokens, cached_tokens: from the server's usage; None where it did not say.
        coalesced_chunks: content chunks that came in the same read as the one before, so their gap says nothing.
        replaced_text: whether invalid UTF-8 had to be replaced.
        tag: class within a mixed workload.
        models: names of models that the answer's chunks gave, each once; empty where none gave one.
    """

    index: int
    intended_ns: int
    sent_ns: int | None
    ended_ns: int
    outcome: Outcome
    detail: str | None = None
    arrivals_ns: tuple[int, ...] = ()
    chunk_tokens: tuple[int, ...] | None = None
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    coalesced_chunks: int = 0
    replaced_text: bool = False
    tag: str = ""
    models: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK
