"""Sends unmeasured requests until the server is steady. A server that answers its health route is not warm yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from pytest_llmperf.engines.control.identity import check_models
from pytest_llmperf.engines.endpoint.probe import probe
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import EngineError, SpecError, WrongServer
from pytest_llmperf.judging.validity import other_model
from pytest_llmperf.model.exchange import Exchange, Replay
from pytest_llmperf.model.record import RequestRecord, failure_counts, reasons_text
from pytest_llmperf.model.request import Request
from pytest_llmperf.session.replay import Replayer
from pytest_llmperf.workload import Workload
from pytest_llmperf.workload.prompts import with_seeded_replies

# The rule is constant and part of the fingerprint. No measured run has its seeds.
RULE = "batches of 6, 2 at a time, ≤ 32 tokens, until the e2el medians of two in a row agree within 25 %, at most 12"
SEED = 1_000_000
BATCH = 6
CONCURRENCY = 2
OUTPUT_TOKENS = 32
AGREE = 1.25
MOST_BATCHES = 12


def warm_up(server: Server, workload: Workload, replayer: Replayer) -> None:
    """Send the workload's own shapes, unmeasured, until two batches in a row take the same time.

    An endpoint first gets one small request of the workload, so that a refusal is explained before more is sent.

    Raises:
        EngineError: a warm-up request fails, or the server does not become steady.
        WrongServer: another model answers, the server lacks a model of the workload, or an endpoint refuses the
            request.
    """
    check_models(server, workload.requests(SEED))
    if server.spec.is_endpoint:
        smallest = server.as_sent([min(workload.requests(SEED), key=lambda request: len(request.prompt))])
        probe(server, smallest[0], replayer.limits.total_ns / 1e9)
    counters_before = server.counters.read()
    medians_ms: list[float] = []
    for batch in range(MOST_BATCHES):
        requests = server.as_sent(_batch(workload, SEED + batch))
        replay = replayer.replay(server, requests, CONCURRENCY)
        records = replayer.records(server, requests, replay)
        failed = [record for record in records if not record.ok]
        if failed:
            server.unit.check_dying()
            raise EngineError(
                f"{len(failed)} of {len(records)} warm-up requests failed ({reasons_text(failure_counts(failed))}; "
                f"first: {failed[0].detail}). Nothing was measured. Read the end of the server's log.",
                server.unit.evidence,
            )
        _check_answers(requests, replay, records)
        _check_lengths(server, requests, records)
        if (foreign_model := other_model(records, server.model_names)) is not None:
            remedy = "Correct the model id or the URL." if server.spec.is_endpoint else "End that server."
            raise WrongServer(
                f"Another model answered the warm-up: {foreign_model.reason()} Nothing was measured. {remedy}"
            )
        medians_ms.append(median((record.arrivals_ns[-1] - record.intended_ns) / 1e6 for record in records))
        if len(medians_ms) > 1 and max(medians_ms[-2:]) <= AGREE * min(medians_ms[-2:]):
            # A server counts a request after its answer. Requests counted later would look foreign in the first run.
            server.counters.wait_idle(counters_before.get("requests_finished", 0.0), len(medians_ms) * len(requests))
            return
    raise EngineError(
        "The server did not become steady: medians of successive warm-up batches were "
        f"{', '.join(f'{value:.1f}' for value in medians_ms)} ms. "
        "Another program uses this machine, or the server still compiles. End other programs (nvidia-smi and top list "
        "them), then run the test again.",
        server.unit.evidence,
    )


def _check_answers(requests: Sequence[Request], replay: Replay, records: Sequence[RequestRecord]) -> None:
    """Raise SpecError if a next turn needs an answer in a form that the server does not send."""
    for request, exchange, record in zip(requests, replay.exchanges, records, strict=True):
        if request.answer_used and isinstance(exchange, Exchange) and record.answer_hash is None:
            needed = "token ids" if isinstance(request.prompt, tuple) else "text"
            raise SpecError(
                f'reply="server" needs the {needed} of each answer, and this server sends none. Write '
                f'{"text=True, or " if needed == "token ids" else ""}reply="seeded". Nothing was measured.'
            )


def _check_lengths(server: Server, requests: Sequence[Request], records: Sequence[RequestRecord]) -> None:
    """Raise EngineError if a started server counts more or fewer prompt tokens than the prompt has words.

    A text prompt has one word for each token id, and each word should be one token.

    The tokenizer adds at most one token at the start of a text.
    """
    if server.tokenizer is None or server.spec.is_endpoint:
        return
    for request, record in zip(requests, records, strict=True):
        words = len(str(request.prompt).split())
        if record.prompt_tokens is not None and not words <= record.prompt_tokens <= words + 1:
            raise EngineError(
                f"{server.spec}: the server counts {record.prompt_tokens} tokens for a prompt of {words} words, though "
                f"each word is one token of {server.tokenizer.name}. Nothing was measured. Name a router that "
                "takes token ids, vllm_router() or nginx(), or install the tokenizer of the model."
            )


def _batch(workload: Workload, seed: int) -> tuple[Request, ...]:
    """The longest prompts of the workload, without pauses. They make the engine compile the kernels of the workload."""
    whole = [request for request, _ in with_seeded_replies(workload.requests(seed))]
    longest = sorted(whole, key=lambda request: -len(request.prompt))[:BATCH]
    answer_used = any(request.answer_used for request in whole)
    return tuple(
        replace(
            request,
            index=index,
            output_tokens=min(request.output_tokens, OUTPUT_TOKENS),
            at_ns=None,
            after=None,
            think_ns=0,
            answer_used=answer_used,
            cancellation=None,
        )
        for index, request in enumerate(longest)
    )
