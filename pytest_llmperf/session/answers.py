"""Compares the greedy answers of a deployment with those of one server, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
Answers = tuple[tuple[int, ...] | str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answers of a deployment and of one server to the same prompts.

    Args:
        miss, hit, again: answers of the one server: with empty caches, with the prompts cached, and with caches that
            were emptied again.
        first, second: answers of the deployment with empty caches, and with the prompts cached.
        nonces: what each prompt asks to repeat.
    """

    miss: Answers
    hit: Answers
    again: Answers
    first: Answers
    second: Answers
    nonces: Sequence[tuple[int, ...]]

    @property
    def floor(self) -> dict[str, bool]:
        """Prompt → whether the one server gave the same answer three times."""
        return {str(number): len(set(answers)) == 1
                for number, answers in enumerate(zip(self.miss, self.hit, self.again, strict=True))}

    @property
    def agreement(self) -> dict[str, bool]:
        """Prompt → whether the deployment gave the first answer of the one server twice."""
        return {str(number): len(set(answers)) == 1
                for number, answers in enumerate(zip(self.miss, self.first, self.second, strict=True))}

    @property
    def recalled(self) -> tuple[dict[str, bool], dict[str, bool]]:
        """Prompt → whether the deployment repeats its nonce twice, and whether the one server does so."""
        sides = [(self.first, self.second), (self.miss, self.hit)]
        deployment, single = ({str(number): first == second == nonce
                               for number, (first, second, nonce) in enumerate(zip(*side, self.nonces, strict=True))}
                              for side in sides)
        return deployment, single

    @property
    def first_difference(self) -> tuple[int, int] | None:
        """Prompt and token, from 1, at which the deployment first differs; None without a difference."""
        for number, (right, *others) in enumerate(zip(self.miss, self.first, self.second, strict=True), start=1):
            for answer in others:
                if answer != right:
                    equal = (ours == theirs for ours, theirs in zip(right, answer, strict=False))
                    return number, 1 + next((at for at, same in enumerate(equal) if not same), len(answer))
        return None


def recall_prompts(count: int, seed: int) -> tuple[list[Request], list[tuple[int, ...]]]:
    """Prompts that end in a nonce, the nonce again, and its first half, and the second half that a model may repeat.

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
    compared = Comparison(miss, hit, again, first, second, nonces)
    names = str(deployment), str(single)

    def both(task: str, *right: dict[str, bool]) -> list[Accuracy]:
        return [Accuracy(task, name, "first tokens", each) for name, each in zip(names, right, strict=True)]

    ours, floor = both("agreement", compared.agreement, compared.floor)
    results = [judge_agreement(ours, floor, different=len(set(compared.miss)),
                               first_difference=compared.first_difference)]
    if any(compared.recalled[1].values()):  # random weights repeat nothing
        results.append(judge_recall(*both("recall", *compared.recalled)))
    return results


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

