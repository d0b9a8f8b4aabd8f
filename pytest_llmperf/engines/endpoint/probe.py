"""The first request to an endpoint: one small request of the workload, with the words for each way to refuse it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.api import MODELS
from pytest_llmperf.engines.control.identity import check_end, without_token
from pytest_llmperf.engines.control.reader import PATHS
from pytest_llmperf.engines.control.service_url import V1
from pytest_llmperf.engines.server import Server
from pytest_llmperf.errors import WrongServer
from pytest_llmperf.model.api import PROTOCOLS, Api
from pytest_llmperf.model.request import Request
from pytest_llmperf.wire.completions import answer_fault
from pytest_llmperf.wire.http import Answer
from pytest_llmperf.wire.stream import Stream, read_stream, read_whole

#: Some services refuse a smaller limit (OpenAI's Responses API), and a model that reasons needs some tokens for it.
FREE_TOKENS = 16
ABSENT = (404, 405, 501)
REFUSED = (400, 404, 422)
#: Field → dialect without this field, for services that refuse it.
REMEDIES = {"ignore_eos": "openai", "min_tokens": "openai", "continuous_usage_stats": "openai",
            "stream_options": "basic", "max_completion_tokens": "basic", "max_tokens": "openai"}


def probe(server: Server, request: Request, timeout_s: float) -> None:
    """Send one request as the test sends it, with a short answer, before anything is measured.

    Raises:
        WrongServer: the endpoint refuses the key, the model, the protocol or a field of the request.
        EngineError: the endpoint answers, and not with a token.
    """
    api = server.api
    tokens = 1 if api.forces_length else min(FREE_TOKENS, request.output_tokens)
    path, body = server.post(replace(request, output_tokens=tokens))
    with server.control.answering("one token"):
        response = server.control.client.post(server.contact.service.origin + path, content=body, timeout=timeout_s,
                                              headers={"content-type": "application/json"})
    server.control.check_authorized(response)
    answered = f"POST {path} answered {response.status_code}"
    if response.status_code in REFUSED and (field := _refused_field(response, body)) is not None:
        raise WrongServer(_field_refused(server, field, f"{answered}: {server.control.shown(response)!r}"))
    if response.status_code in ABSENT:
        raise WrongServer(_absent(server, response, answered))
    if response.status_code != 200:
        raise without_token(server, path, response)
    _check_answer(server, response, path)


def _check_answer(server: Server, response: httpx.Response, path: str) -> None:
    """Raise EngineError if an answer of status 200 has no token."""
    api = server.api
    answer = Answer(200, (), ((0, response.content),), complete=True)
    stream = read_stream(answer.pieces, answers=api.choices) if api.stream else read_whole(answer.pieces, api.choices)
    check_end(server, path, stream)
    if (reason := _token_fault(answer, stream, api)) is not None:
        hint = ""
        if api.stream and not stream.events and response.content[:1] == b"{":
            hint = " The service does not stream this answer: write endpoint(…, stream=False)."
        raise without_token(server, path, response, reason, f".{hint}")


def _token_fault(answer: Answer, stream: Stream, api: Api) -> str | None:
    """Why an answer of status 200 does not have the token that was asked for; None for an answer with the token."""
    counted = None if stream.usage is None else stream.usage.completion_tokens
    arrived = counted == api.choices if api.forces_length else bool(stream.arrivals_ns or counted)
    if arrived and not (stream.problem or stream.error or stream.origin.problem):
        return None
    if stream.error is None and stream.problem is None and counted is not None and stream.arrivals_ns:
        return f"usage says {counted} output tokens instead of {api.choices}"
    return answer_fault(answer, stream, api) or "the usage counts no output token"


def _refused_field(response: httpx.Response, body: bytes) -> str | None:
    """The field of the request that a refusal names; None for a refusal that names no field, or names the model."""
    text, sent = response.text, json.loads(body)
    if response.status_code == 404 or _names_model(text, str(sent["model"])):
        return None
    names = [*sent.get("stream_options", ()), *sent]
    named = [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]
    return next((name for name in named if name in REMEDIES), next(iter(named), None))


def _names_model(text: str, name: str) -> bool:
    """Whether a refusal speaks of the model. The name of a model can also be a part of a path or of a word."""
    return re.search(r"\bmodel\b", text) is not None and re.search(
        rf"(?<![\w./-]){re.escape(name)}(?![\w/-])", text) is not None


def _field_refused(server: Server, field: str, answered: str) -> str:
    api = server.api
    removal = f'fields={{"{"stream_options" if field == "continuous_usage_stats" else field}": None}}'
    if field in ("prompt", "messages", "input"):
        remedy = ("The prompts of this workload are not what the service takes: write random_tokens(…, text=True), or "
                  "choose another protocol.")
    elif (dialect := REMEDIES.get(field)) not in (None, api.dialect):
        remedy = f'Write endpoint(…, dialect="{dialect}").'
        if field not in ("max_tokens", "max_completion_tokens"):
            remedy = f"{remedy[:-1]}, or leave the field out: {removal}."
    else:
        remedy = f"Leave the field out: endpoint(…, {removal})."
    return f"The service at {server.contact.url} refuses the field {field}: {answered}. Nothing was measured. {remedy}"


def _absent(server: Server, response: httpx.Response, answered: str) -> str:
    name, protocol = server.contact.served_name, server.api.protocol
    if _names_model(response.text, name):
        return (f"The service at {server.contact.url} does not serve the model {name!r}: {answered}: "
                f"{server.control.shown(response)!r}. Nothing was measured. Write an id that "
                f"{server.contact.service.url(MODELS)} lists.")
    others = " or ".join(f'protocol="{other}"' for other in PROTOCOLS if other != protocol)
    full_url = server.contact.service.origin + server.contact.service.root + PATHS[protocol].removeprefix(V1)
    return (f"The server at {server.contact.url} has no {protocol} endpoint: {answered}. Nothing was measured. Write "
            f'{others}, or the full URL of the requests, such as endpoint("{full_url}", …).')
