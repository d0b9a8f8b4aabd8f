"""Compares the greedy answers of a deployment with those of one server, prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from json import dumps, loads
from statistics import median
from typing import Any

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import EngineError
from pytest_llmperf.judging.accuracy import judge_agreement, judge_recall
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.request import Request
from pytest_llmperf.results.accuracy import Accuracy
from pytest_llmperf.results.causes.limits import AnswersDiffer
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.wire.conversation import AnswerReader
from pytest_llmperf.workload.prompts import draw_tokens, stream

ANSWER_TOKENS = 16
PREFIX_TOKENS, GROUPS = 256, 8  # whole blocks of a prefix that an eighth of the prompts shares
NONCE_TOKENS = 32
CONCURRENT = 8
ANSWER_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer. Two answers are equal if their tokens are.

    Args:
        tokens: token ids, or the text from a server that sends no ids.
        margins: for each token the log-probability of the largest minus that of the second one; empty if the server
            sends none.
    """

    tokens: tuple[int, ...] | str
    margins: tuple[float, ...] = field(default=(), compare=False)


Answers = Sequence[Answer]


def recall_prompts(count: int, seed: int) -> tuple[list[Request], list[tuple[int, ...]]]:
    """The prompts, and the answer to each prompt by a model that repeats.

    A prompt is a common prefix, a nonce, the nonce again, and its first half. The right answer is the second half.

    Args:
        count: number of prompts.
        seed: of the prompts.
    """
    prefixes = [draw_tokens(stream(seed, "answers", group), PREFIX_TOKENS) for group in range(GROUPS)]
    nonces = [draw_tokens(stream(seed, "nonce", number), NONCE_TOKENS) for number in range(count)]
    prompts = [prefixes[number % GROUPS] + nonce * 2 + nonce[:-ANSWER_TOKENS] for number, nonce in enumerate(nonces)]
    requests = [Request(number, prompt, ANSWER_TOKENS, len(prompt), answer_used=True)
                for number, prompt in enumerate(prompts)]
    return requests, [nonce[-ANSWER_TOKENS:] for nonce in nonces]


def compare_answers(
    execution: Execution, deployment: EngineSpec, single: EngineSpec, prompts: int, seed: int
) -> list[CheckResult]:
    """Ask the single server, then the deployment, and judge how often their answers agree.

    Raises:
        EngineError: a server does not start, or does not answer.
    """
    requests, nonces = recall_prompts(prompts, seed)
    pool, real = execution.session.pool, not execution.session.hardware.emulated
    server = pool.acquire(single)
    rounds = [_round(server, requests, empty=empty, margins=real) for empty in (True, False, True)]
    server = pool.acquire(deployment)
    rounds += [_round(server, requests, empty=empty, margins=False) for empty in (True, False)]
    miss, hit, again, first, second = rounds

    def both(task: str, *right: dict[str, bool]) -> list[Accuracy]:
        return [Accuracy(task, str(spec), "first tokens", each)
                for spec, each in zip((deployment, single), right, strict=True)]

    ours, floor = both("agreement", _equal(miss, first, second), _equal(miss, hit, again))
    results = [judge_agreement(ours, floor, different=len(set(miss)),
                               first_difference=_first_difference(miss, first, second))]
    right = tuple(map(Answer, nonces))
    ours, floor = both("recall", _equal(right, first, second), _equal(right, miss, hit))
    if floor.correct:  # random weights repeat nothing
        results.append(judge_recall(ours, floor))
    return results


def _equal(*sides: Answers) -> dict[str, bool]:
    """Prompt → whether all sides have the same answer."""
    return {str(number): len(set(answers)) == 1 for number, answers in enumerate(zip(*sides, strict=True))}


def _first_difference(right: Answers, *sides: Answers) -> AnswersDiffer | None:
    """Where a side first differs from the right answers, and the median margin of the right answers at the first token
    that differs, over all prompts with a difference; None without a difference.
    """
    places: list[tuple[int, int]] = []
    margins: list[float] = []
    for number, (expected, *answers) in enumerate(zip(right, *sides, strict=True), start=1):
        for answer in answers:
            if answer != expected:
                equal = (ours == theirs for ours, theirs in zip(expected.tokens, answer.tokens, strict=False))
                at = next((at for at, same in enumerate(equal) if not same), len(answer.tokens))
                places.append((number, 1 + at))
                margins += expected.margins[at : at + 1]
                break
    return AnswersDiffer(*places[0], median(margins) if margins else None) if places else None


def _round(server: Server, requests: Sequence[Request], *, empty: bool, margins: bool) -> Answers:
    """The answers to all prompts, several at a time, and their margins if they are wanted and served."""
    if empty:
        server.mend()
        server.reset_cache()
    fields = server.reader.two_largest if margins else {}
    with ThreadPoolExecutor(CONCURRENT) as threads:
        return tuple(threads.map(lambda request: _answer(server, request, fields), server.as_sent(requests)))


def _answer(server: Server, request: Request, fields: Mapping[str, object]) -> Answer:
    """The answer to a request with further fields.

    Raises:
        EngineError: the answer is missing or incomplete.
    """
    path, streamed = server.post(request)
    body = loads(streamed) | {"stream": False} | fields
    body.pop("stream_options", None)
    with server.control.answering("an answer"):
        response = server.control.client.post(path, content=dumps(body, separators=(",", ":")),
                                              headers={"Content-Type": "application/json"}, timeout=ANSWER_LIMIT_S)
    reader = AnswerReader(server.api.choices, server.api.accepted_ends)
    reader.feed(_as_http(response))
    if not reader.complete:
        raise EngineError(f"{server.contact.url} answered prompt {request.index + 1} with HTTP {response.status_code}: "
                          f"{server.control.shown(response)!r}. Look at the log of the server.", server.unit.evidence)
    return Answer(tuple(reader.ids) or reader.text, _margins(response.json()) if fields else ())


def _margins(answer: dict[str, Any]) -> tuple[float, ...]:
    """Difference of the two largest log-probabilities at each token of a completion or of an answer of SGLang's
    /generate; empty if something is missing."""
    with suppress(KeyError, IndexError, TypeError, ValueError):
        if "meta_info" in answer:
            each = [[entry[0] for entry in top] for top in answer["meta_info"]["output_top_logprobs"]]
        else:
            each = [list(top.values()) for top in answer["choices"][0]["logprobs"]["top_logprobs"]]
        return tuple(first - second for first, second, *_ in (sorted(top, reverse=True) for top in each))
    return ()


def _as_http(response: httpx.Response) -> bytes:
    head = f"HTTP/1.1 {response.status_code} OK\r\nContent-Length: {len(response.content)}\r\n\r\n"
    return head.encode() + response.content
