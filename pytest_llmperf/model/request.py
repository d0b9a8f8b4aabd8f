"""What a workload asks for, independent of the engine."""

from __future__ import annotations

from dataclasses import dataclass

#: HTTP statuses of refusals that a client sends again: a timeout, a rate limit, and each failure of the server.
RETRIED_STATUSES = frozenset({408, 429, *range(500, 600)})


@dataclass(frozen=True, slots=True)
class Cancellation:
    """When the client cancels a request by closing its connection.

    Args:
        after_tokens: number of generated tokens after which the client cancels; None for no limit.
        after_ns: time from the begin of the first send to the cancellation; the time to connect counts. None for no
            limit.
    """

    after_tokens: int | None = None
    after_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How the client sends a refused request again.

    A request is retried if no content of its answer has arrived: after an HTTP status of `RETRIED_STATUSES`, after a
    connection that failed or was closed, and after a timeout.

    Args:
        attempts: largest number of sends of a request.
        backoff_ns: pause before the second send. Each further pause is twice as long. A longer `Retry-After` of the
            server is respected.
    """

    attempts: int
    backoff_ns: int

    def pause_ns(self, attempts: int, retry_after_s: float | None) -> int:
        """Pause after `attempts` sends, in nanoseconds."""
        asked_ns = 0 if retry_after_s is None else round(retry_after_s * 1e9)
        return max(self.backoff_ns << (attempts - 1), asked_ns)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a workload.

    Args:
        index: position in the workload, from 0.
        prompt: token ids, or text where text was asked for.
        output_tokens: exactly how many tokens the server must generate.
        prompt_tokens: number of prompt tokens that the server must count; None for text, whose count depends on the
            server's tokenizer.
        at_ns: when to send, in nanoseconds after the start of the run; None in a closed loop.
        after: index of the request that must have ended before (the previous turn of a conversation).
        think_ns: pause between the end of `after` and this request.
        tag: class of the request within a mixed workload ("stream", "prefill"), "" where there is one class.
        turn: number of the request within its conversation, from 1.
        continues: whether the prompt is sent behind the whole prompt of `after` and the server's answer to it. Then
            `prompt` holds the new tokens only, and `prompt_tokens` counts all tokens, if each earlier answer has the
            length that was asked for.
        answer_used: whether a later request continues this one, so its answer must arrive as token ids or text.
        model: name of the model or of the adapter to ask; "" for the model of the server.
        cancellation: when the client cancels the request; None if the client reads the whole answer.
        retry: how the client sends the request again; None for a single send.
    """

    index: int
    prompt: tuple[int, ...] | str
    output_tokens: int
    prompt_tokens: int | None
    at_ns: int | None = None
    after: int | None = None
    think_ns: int = 0
    tag: str = ""
    turn: int = 1
    continues: bool = False
    answer_used: bool = False
    model: str = ""
    cancellation: Cancellation | None = None
    retry: RetryPolicy | None = None
