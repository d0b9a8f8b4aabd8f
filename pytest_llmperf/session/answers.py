"""Compares the greedy answers of a deployment with those of one server, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from json import dumps, loads

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import EngineError
from pytest_llmperf.judging.accuracy import judge_agreement, judge_recall
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.request import Request
from pytest_llmperf.results.accuracy import Accuracy
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.wire.conversation import AnswerReader
from pytest_llmperf.workload.prompts import draw_tokens, stream

ANSWER_TOKENS = 16
PREFIX_TOKENS, GROUPS = 256, 8  # whole blocks of a prefix that an eighth of the prompts shares
NONCE_TOKENS = 32
CONCURRENT = 8
ANSWER_LIMIT_S = 120.0
Answers = Sequence[tuple[int, ...] | str]


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
    pool = execution.session.pool
    server = pool.acquire(single)
    rounds = [_round(server, requests, empty=empty) for empty in (True, False, True)]
    server = pool.acquire(deployment)
    rounds += [_round(server, requests, empty=empty) for empty in (True, False)]
    miss, hit, again, first, second = rounds

    def both(task: str, *right: dict[str, bool]) -> list[Accuracy]:
        return [Accuracy(task, str(spec), "first tokens", each)
                for spec, each in zip((deployment, single), right, strict=True)]

    ours, floor = both("agreement", _equal(miss, first, second), _equal(miss, hit, again))
    results = [judge_agreement(ours, floor, different=len(set(miss)),
                               first_difference=_first_difference(miss, first, second))]
    ours, floor = both("recall", _equal(nonces, first, second), _equal(nonces, miss, hit))
    if floor.correct:  # random weights repeat nothing
        results.append(judge_recall(ours, floor))
    return results


def _equal(*sides: Answers) -> dict[str, bool]:
    """Prompt → whether all sides have the same answer."""
    return {str(number): len(set(answers)) == 1 for number, answers in enumerate(zip(*sides, strict=True))}


def _first_difference(right: Answers, *sides: Answers) -> tuple[int, int] | None:
    """Prompt and token, from 1, at which a side first differs from the right answers; None without a difference."""
    for number, (expected, *answers) in enumerate(zip(right, *sides, strict=True), start=1):
        for answer in answers:
            if answer != expected:
                equal = (ours == theirs for ours, theirs in zip(expected, answer, strict=False))
                return number, 1 + next((at for at, same in enumerate(equal) if not same), len(answer))
    return None


def _round(server: Server, requests: Sequence[Request], *, empty: bool) -> Answers:
    """The answers to all prompts, several at a time."""
    if empty:
        server.mend()
        server.reset_cache()
    with ThreadPoolExecutor(CONCURRENT) as threads:
        return tuple(threads.map(lambda request: _answer(server, request), server.as_sent(requests)))


def _answer(server: Server, request: Request) -> tuple[int, ...] | str:
    """The token ids of an answer, or its text from a server that sends no ids.

    Raises:
        EngineError: the answer is missing or incomplete.
    """
    path, streamed = server.post(request)
    body = loads(streamed) | {"stream": False}
    body.pop("stream_options", None)
    with server.control.answering("an answer"):
        response = server.control.client.post(path, content=dumps(body, separators=(",", ":")),
                                              headers={"Content-Type": "application/json"}, timeout=ANSWER_LIMIT_S)
    reader = AnswerReader(server.api.choices, server.api.accepted_ends)
    reader.feed(_as_http(response))
    if not reader.complete:
        raise EngineError(f"{server.contact.url} answered prompt {request.index + 1} with HTTP {response.status_code}: "
                          f"{server.control.shown(response)!r}. Look at the log of the server.", server.unit.evidence)
    return tuple(reader.ids) or reader.text


def _as_http(response: httpx.Response) -> bytes:
    head = f"HTTP/1.1 {response.status_code} OK\r\nContent-Length: {len(response.content)}\r\n\r\n"
    return head.encode() + response.content
