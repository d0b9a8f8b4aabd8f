"""From an exchange to a request record: OpenAI-style completions, chat and responses, streamed and whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from pytest_llmperf.model.api import DEFAULT, Api
from pytest_llmperf.model.exchange import EmulatedExchange, Ending, Exchange
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.model.request import Request
from pytest_llmperf.wire.chunks import unsuccessful
from pytest_llmperf.wire.http import Answer, read_answer, refusal
from pytest_llmperf.wire.stream import HELD_BACK_CHUNKS, SHOWN_BYTES, Stream, read_stream, read_whole

LEAST_CHUNKS = 4
#: Different texts that are all doubled. A model that repeats one token may repeat "haha".
DOUBLED_TEXTS = 3
#: Text of random tokens has other tokens when it is tokenised again. A text that came twice has twice as many.
ID_TOLERANCE = 0.5


def repeats(texts: Sequence[str], tokens: int) -> bool:
    """Whether each chunk of one token brings its text twice, or brings all earlier text again.

    Args:
        texts: of the content chunks.
        tokens: in all of them.
    """
    filled = [text for text in texts if text]
    if len(texts) != tokens or len(filled) < LEAST_CHUNKS:
        return False
    if all(len(after) > len(before) and after.startswith(before) for before, after in pairwise(filled)):
        return True
    halves = [text[: len(text) // 2] for text in filled]
    if any(half * 2 != text for half, text in zip(halves, filled, strict=True)):
        return False
    words = {half for half in halves if any(map(str.isalnum, half))}
    # No vocabulary has a token of two words, " a a".
    return len(words) >= DOUBLED_TEXTS or any(half[0].isspace() for half in words)


def text_contradicts_ids(stream: Stream, count: Callable[[Sequence[str]], tuple[int, ...]]) -> str | None:
    """Why the text and the token ids of an answer cannot belong together, by the named tokenizer; None if they can.

    Args:
        stream: the answer.
        count: counts the tokens of each piece of a text.
    """
    if stream.listed_ids is None or not any(stream.texts):
        return None
    tokens = sum(count(stream.texts))
    if abs(tokens - stream.listed_ids) <= max(LEAST_CHUNKS, ID_TOLERANCE * stream.listed_ids):
        return None
    return f"the text has {tokens} tokens by the named tokenizer, and its events list {stream.listed_ids} token ids"


def emulated_record(request: Request, emulated: EmulatedExchange) -> RequestRecord:
    """The record that `to_record` would make of the bytes."""
    return RequestRecord(
        index=request.index,
        intended_ns=emulated.intended_ns,
        sent_ns=emulated.sent_ns,
        ended_ns=emulated.ended_ns,
        outcome=emulated.outcome,
        detail=_emulated_detail(emulated),
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
        reason=_emulated_reason(emulated),
    )


def _emulated_reason(emulated: EmulatedExchange) -> str:
    """See `RequestRecord.reason`. The emulator refuses by HTTP 429 alone."""
    status = (emulated.error or "").partition(":")[0]
    if emulated.outcome is Outcome.HTTP_STATUS:
        return status
    why = {Outcome.TIMEOUT: emulated.error, Outcome.RATE_LIMITED: status}.get(emulated.outcome)
    return f"{emulated.outcome.value} ({why})" if why else ""


def _emulated_detail(emulated: EmulatedExchange) -> str | None:
    if emulated.outcome is Outcome.OK:
        return None
    if emulated.error and emulated.outcome is not Outcome.TIMEOUT:
        return emulated.error
    limit = f": {emulated.error}" if emulated.error else ""
    return f"{emulated.ending.value}{limit} after {len(emulated.token_ns)} content chunks"


SPARE_CHUNKS = 1000  # that are read beyond twice the number of tokens asked for
CountTokens = Callable[[Sequence[str]], tuple[int, ...]]
_Judgement = tuple[Outcome, str | None]

# The longest tokens of the vocabularies in use are runs of 128 spaces or signs (o200k, Llama 3).
LONGEST_TOKEN = 128

GIVEN_UP = {
    Ending.CANCELLED: Outcome.CANCELLED,
    Ending.NOT_SENT: Outcome.CANCELLED,
    Ending.CONNECT_FAILED: Outcome.NO_CONNECTION,
    Ending.NOT_CONTINUED: Outcome.NOT_CONTINUED,
    Ending.ABANDONED: Outcome.ABANDONED,
    Ending.STALE: Outcome.STALE,
}
CUT_SHORT = {
    Ending.RESET: Outcome.RESET,
    Ending.CLOSED_EARLY: Outcome.TRUNCATED,
    Ending.CONNECT_TIMEOUT: Outcome.TIMEOUT,
    Ending.FIRST_BYTE_TIMEOUT: Outcome.TIMEOUT,
    Ending.IDLE_TIMEOUT: Outcome.TIMEOUT,
    Ending.TOTAL_TIMEOUT: Outcome.TIMEOUT,
    Ending.TOO_LARGE: Outcome.MALFORMED,
}


def to_record(
    request: Request, exchange: Exchange, api: Api = DEFAULT, count: CountTokens | None = None
) -> RequestRecord:
    """Parse an answer and check it against its request.

    A content chunk is an event with at least one token. The number of tokens is the growth of the usage
    (`continuous_usage_stats`). Without such usage, the chunk's `token_ids` count. Without token ids, an event with a
    non-empty text is a content chunk. A chunk has the stamp of the read that completed its event. A partial answer
    keeps the arrival times of its chunks. A whole answer has one stamp, which is the read of its last byte.

    Args:
        request: the request of the workload.
        exchange: the answer.
        api: how to read the answer.
        count: counts the tokens of each piece of a text, for an answer without counts; None for no such tokenizer.
    """
    answer = read_answer(exchange)
    stream = _read(answer, request, api) if answer.status == 200 else Stream()
    outcome, detail = _judge(request, exchange, answer, stream, api)
    if outcome is Outcome.OK and count is not None and (words := text_contradicts_ids(stream, count)) is not None:
        outcome, detail = Outcome.COUNTS_DISAGREE, words
    chunk_tokens, text_tokens = _counts(stream), None
    if chunk_tokens is None and count is not None and stream.texts:
        chunk_tokens = count(stream.texts)
        text_tokens = sum(chunk_tokens)
    usage = stream.usage
    return RequestRecord(
        index=request.index,
        intended_ns=exchange.intended_ns,
        sent_ns=exchange.sent_ns,
        ended_ns=exchange.ended_ns,
        outcome=outcome,
        detail=detail,
        arrivals_ns=tuple(stream.arrivals_ns),
        chunk_tokens=chunk_tokens,
        text_tokens=text_tokens,
        asked_prompt_tokens=request.prompt_tokens,
        asked_output_tokens=request.output_tokens * api.choices,
        choices=api.choices,
        prompt_tokens=usage.prompt_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        coalesced_chunks=stream.coalesced,
        replaced_text=stream.replaced,
        tag=request.tag,
        models=tuple(stream.models),
        turn=request.turn,
        after=request.after if request.turn > 1 else None,
        whole=not api.stream,
        attempts=exchange.attempts,
        asked_model=request.model,
        answer_id=stream.origin.id,
        replica=answer.header(api.replica_header) if api.replica_header else None,
        reason=_reason(outcome, exchange, answer),
    )


def _read(answer: Answer, request: Request, api: Api) -> Stream:
    if not api.stream:
        return read_whole(answer.pieces, api.choices) if answer.complete else Stream()
    return read_stream(answer.pieces, SPARE_CHUNKS + 2 * request.output_tokens * api.choices, api.choices)


def _counts(stream: Stream) -> tuple[int, ...] | None:
    token_counts = tuple(n for n in stream.chunk_tokens if n is not None)
    return token_counts if token_counts and len(token_counts) == len(stream.chunk_tokens) else None


def _judge(request: Request, exchange: Exchange, answer: Answer, stream: Stream, api: Api) -> _Judgement:
    """The first thing that is wrong, the most telling first: what the server said outranks how the socket ended."""
    return (
        _client_timeout(exchange)
        or _http_problem(exchange, answer)
        or _stream_problem(stream, api)
        or _truncation(exchange, stream)
        or _incomplete(answer, stream, api)
        or _counts_disagree(stream)
        or _wrong_length(request, stream, api)
        or (Outcome.OK, None)
    )


def answer_fault(answer: Answer, stream: Stream, api: Api) -> str | None:
    """What is wrong with a whole answer of status 200, whatever its request was; None for a sound answer."""
    fault = _stream_problem(stream, api) or _incomplete(answer, stream, api)
    return None if fault is None else fault[1]


def _client_timeout(exchange: Exchange) -> _Judgement | None:
    outcome = GIVEN_UP.get(exchange.ending)
    return (outcome, _ending(exchange)) if outcome else None


def _http_problem(exchange: Exchange, answer: Answer) -> _Judgement | None:
    if answer.problem is not None:
        return Outcome.MALFORMED, f"not HTTP ({answer.problem}): {exchange.data[:SHOWN_BYTES]!r}"
    if answer.status is None or answer.status == 200:
        return None
    detail = f"HTTP {answer.status}"
    if (pause := answer.header("retry-after")) is not None:
        detail += f", Retry-After: {pause}"
    if (elsewhere := answer.header("location")) is not None:
        detail += f", redirect to {elsewhere} not followed"
    outcome = Outcome.HTTP_STATUS if _refusal(answer) is None else Outcome.RATE_LIMITED
    return outcome, f"{detail}: {answer.body[:SHOWN_BYTES]!r}"


def _refusal(answer: Answer) -> str | None:
    return refusal(answer.status or 0, dict(answer.headers), answer.body)


def _reason(outcome: Outcome, exchange: Exchange, answer: Answer) -> str:
    """See `RequestRecord.reason`."""
    if outcome is Outcome.RATE_LIMITED:
        return f"{outcome.value} ({_refusal(answer)})"
    if outcome is Outcome.HTTP_STATUS:
        return f"HTTP {answer.status}"
    limited = outcome is Outcome.TIMEOUT or exchange.ending is Ending.TOO_LARGE
    return f"{outcome.value} ({exchange.error})" if limited and exchange.error else ""


def _stream_problem(stream: Stream, api: Api) -> _Judgement | None:
    if stream.error is not None:
        return Outcome.ERROR_IN_STREAM, " ".join(stream.error.split())[:SHOWN_BYTES]
    if stream.problem is not None:
        return Outcome.MALFORMED, stream.problem
    if stream.origin.problem is not None:
        return Outcome.NOT_ASKED_FOR, stream.origin.problem
    if (words := unsuccessful(stream.ends, api.accepted_ends)) is not None:
        return Outcome.UNSUCCESSFUL_END, f"after {len(stream.arrivals_ns)} content chunks the answer {words}"
    return None


def _truncation(exchange: Exchange, stream: Stream) -> _Judgement | None:
    outcome = CUT_SHORT.get(exchange.ending)
    return (outcome, f"{_ending(exchange)} after {len(stream.arrivals_ns)} content chunks") if outcome else None


def _incomplete(answer: Answer, stream: Stream, api: Api) -> _Judgement | None:
    if stream.events == 0 and answer.body and api.stream:
        return Outcome.MALFORMED, f"no server-sent event in the answer: {answer.body[:SHOWN_BYTES]!r}"
    ended = {end.choice for end in stream.ends}
    has: dict[str, object] = {"finish_reason": ended and len(ended) >= api.choices}
    if api.asks_for_usage:
        has["usage"] = stream.usage
    if api.done:
        has["[DONE]" if api.protocol != "responses" else "response.completed"] = stream.done
    missing = [name for name, value in has.items() if not value]
    if not answer.complete:
        missing.append("end of the HTTP message")
    kind = "stream" if api.stream else "answer"
    if missing:
        seen = f"{len(stream.arrivals_ns)} content chunks"
        said = f"; the service says {stream.unread}" if stream.unread is not None else ""
        return Outcome.TRUNCATED, (f"the {kind} ended without {', '.join(missing)}, after {seen}{_unfinished(stream)}"
                                   f"{said}")
    return None if stream.arrivals_ns else (Outcome.EMPTY, f"a complete {kind} without content")


def _unfinished(stream: Stream) -> str:
    """The end of a stream that clients drop, and what the server must write; "" for a stream that ends with an event.
    """
    if not stream.unfinished:
        return ""
    return (f"; its last event {stream.unfinished[:SHOWN_BYTES]!r} has no blank line behind it, and clients drop such "
            "an event: let the server or the proxy write a blank line after each event")


def _counts_disagree(stream: Stream) -> _Judgement | None:
    """The usage against what the events themselves brought: such a server contradicts itself."""
    tokens = None if stream.usage is None else stream.usage.completion_tokens
    if tokens is None:
        return None
    counts, chunks = _counts(stream), len(stream.arrivals_ns)
    complaints = []
    if counts is not None and sum(counts) != tokens:
        complaints.append(f"the chunks bring {sum(counts)} tokens, usage says {tokens}")
    if counts is None or sum(counts) != stream.listed_ids:
        complaints += _ids_disagree(stream, tokens)
    if repeats(stream.texts, tokens):
        complaints.append("each of its chunks repeats text")
    if chunks > tokens:
        complaints.append(f"{chunks} content chunks, usage says {tokens} tokens")
    if stream.uncounted_chunks > HELD_BACK_CHUNKS or stream.uncounted_characters > LONGEST_TOKEN:
        complaints.append(f"{stream.uncounted_chunks} chunks bring {stream.uncounted_characters} characters of text "
                          f"beyond the {tokens} tokens that usage says")
    if stream.characters > LONGEST_TOKEN * tokens:
        complaints.append(f"{stream.characters} characters of text, usage says {tokens} tokens (of at most "
                          f"{LONGEST_TOKEN} characters)")
    if stream.after_done:
        complaints.append(f"{stream.after_done} events follow [DONE]")
    return (Outcome.COUNTS_DISAGREE, "; ".join(complaints)) if complaints else None


def _ids_disagree(stream: Stream, tokens: int) -> list[str]:
    if stream.listed_ids in (None, tokens):
        return []
    return [f"the events list {stream.listed_ids} token ids, usage says {tokens} tokens"]


def _wrong_length(request: Request, stream: Stream, api: Api) -> _Judgement | None:
    """Usage against what was asked."""
    usage = stream.usage
    if usage is None or usage.completion_tokens is None:
        is_required = api.forces_length or api.asks_for_usage
        return (Outcome.TRUNCATED, "usage without completion_tokens") if is_required else None
    complaints = []
    most_tokens = request.output_tokens * api.choices
    if usage.completion_tokens > most_tokens or (api.forces_length and usage.completion_tokens != most_tokens):
        at_most = "" if api.forces_length else "at most "
        complaints.append(f"{usage.completion_tokens} output tokens instead of {at_most}{most_tokens}")
    if request.prompt_tokens is not None and usage.prompt_tokens not in (None, request.prompt_tokens):
        complaints.append(f"{usage.prompt_tokens} prompt tokens instead of {request.prompt_tokens}")
    if usage.prompt_tokens is not None and (usage.cached_tokens or 0) > usage.prompt_tokens:
        complaints.append(f"usage says {usage.cached_tokens} cached tokens of {usage.prompt_tokens} prompt tokens")
    return (Outcome.WRONG_LENGTH, "; ".join(complaints)) if complaints else None


def _ending(exchange: Exchange) -> str:
    return exchange.ending.value if exchange.error is None else f"{exchange.ending.value}: {exchange.error}"


SHOWN_CHARACTERS = 64


class AnswerIds:
    """The request ids of a server's answers so far.

    A server that gives every answer the same id, as simple mock servers do, names no request with this id.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()

    def checked(self, records: Iterable[RequestRecord]) -> tuple[RequestRecord, ...]:
        """The records of a run, and those with an id of an earlier answer as failed requests."""
        run = tuple(records)
        used = self._used.copy()
        self._used |= {record.answer_id for record in run if record.answer_id is not None}
        if len(self._used) <= 1:
            return run
        return tuple(self._judged(record, used) for record in run)

    def _judged(self, record: RequestRecord, used: set[str]) -> RequestRecord:
        if record.answer_id is None:
            return record
        is_repeated = record.answer_id in used
        used.add(record.answer_id)
        if not (is_repeated and record.ok):
            return record
        return replace(record, outcome=Outcome.NOT_ASKED_FOR, detail=(
            f"its request id {record.answer_id[:SHOWN_CHARACTERS]!r} is the id of an earlier answer"))
