"""Whether a server is the one that was asked for, and generates tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pytest_llmperf.engines.control import lazy_httpx as httpx
from pytest_llmperf.engines.control.api import MODELS
from pytest_llmperf.engines.control.json_answers import json_object, section, whole_number
from pytest_llmperf.engines.server import Server
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import EngineError, WrongServer
from pytest_llmperf.masking import mask
from pytest_llmperf.model.request import Request
from pytest_llmperf.process.ports import who_listens
from pytest_llmperf.wire.chunks import unsuccessful
from pytest_llmperf.wire.stream import SHOWN_BYTES, Stream, read_whole

NO_ROUTE = (404, 405)
#: Token ids of every vocabulary, the smallest included.
SMALL_PROMPT = (10, 11, 12)


def check_identity(server: Server) -> None:
    """Raise WrongServer unless the served models contain our name and the server accepts our key.

    An endpoint without a list of models shows with its first request whether it serves the model. A started server
    without the list must listen on its port itself.
    """
    contact, control = server.contact, server.control
    if not server.reader.lists_models:
        _check_listener(server)
        return
    if server.spec.is_endpoint and control.client.get(contact.service.url(MODELS)).status_code in NO_ROUTE:
        return
    names = control.served_models()
    if contact.served_name not in names:
        cause, remedy = "another server answers on this port", "End that server."
        if server.spec.is_endpoint:
            cause = f"the model id is wrong, or {cause}"
            remedy = f"Write model={names[0]!r} or correct the URL." if names else "Correct the URL."
        raise WrongServer(f"The server at {contact.url} serves {', '.join(names) or 'nothing'}, not "
                          f"{contact.served_name!r}: {cause}. {remedy} Nothing was measured.")


def _check_listener(server: Server) -> None:
    """Raise WrongServer if a process that is not of this server listens on the port of the server."""
    url = server.contact.url
    listener = who_listens(server.contact.address[1])
    if listener is None:
        raise EngineError(f"no process listens on {url} yet")
    if listener.pid not in server.unit.pids():
        raise WrongServer(f"{listener} listens on {url}, and is no process of the {server.spec.engine} server: "
                          "another server answers on this port. Nothing was measured. End that process.")


def check_models(server: Server, requests: Iterable[Request]) -> None:
    """Raise WrongServer if requests name a model that the server does not list."""
    names = {request.model for request in requests if request.model} - {server.contact.served_name}
    if not names:
        return
    with server.control.answering("its models"):
        listed = server.control.served_models()
    if missing := sorted(names - set(listed)):
        raise WrongServer(
            f"The server at {server.contact.url} does not serve {', '.join(map(repr, missing))}: it lists "
            f"{', '.join(listed)}. Load the adapter, as in vllm(…, enable_lora=True, "
            f'lora_modules=["{missing[0]}=PATH"]), or correct the name in across_models. Nothing was measured.'
        )


def check_configuration(server: Server) -> None:
    """Raise WrongServer if it loaded another model, or resolved a flag to another number, than was asked for.

    Only reported values are compared, and only numbers above 0: words have several spellings, and -1 or 0 leaves
    the number to the engine.
    """
    wanted = server.model.path_or_hub_id if server.model else None
    with server.control.answering("its model"):
        loaded = server.reader.loaded(server.control.client)
    if None not in (wanted, loaded) and wanted != loaded:
        raise WrongServer(f"The server at {server.contact.url} loaded {loaded}, not {wanted}. End the "
                          "other server on this port.")
    for name, requested in flags_of(server.spec).items():
        resolved = server.facts.get(name, "")
        if type(requested) is int and requested > 0 and whole_number(resolved) not in (None, requested):
            raise WrongServer(
                f"{server.spec} asks for {name}={requested}, and the server resolved it to {resolved}: what "
                "would be measured is not what the test says. Nothing was measured. "
                f"Write {name}={resolved}, or leave the flag out."
            )


def check_ready(server: Server) -> None:
    """Raise EngineError while the server is starting: the next attempt asks again."""
    if not server.reader.ready(server.control.client):
        raise EngineError(f"{server.contact.url} answers and is not ready yet")


def generate_one_token(server: Server, timeout_s: float, prompt: tuple[int, ...] = SMALL_PROMPT) -> None:
    """One real token: a health route alone proves little.

    Raises:
        EngineError: the server answers, and not with a token.
        WrongServer: the server refuses the API key or requires an API key.
    """
    (request,) = server.as_sent([Request(0, prompt, 1, len(prompt))])
    path, streamed = server.reader.post(server.spec, request, server.contact.served_name)
    body = json.loads(streamed) | {"stream": False}
    body.pop("stream_options", None)
    response = server.control.client.post(path, json=body, timeout=timeout_s)
    server.control.check_authorized(response)
    answer = json_object(response)
    counts = section(answer, "usage") or section(answer, "meta_info")
    if counts.get("completion_tokens") != 1:
        raise without_token(server, path, response)
    check_end(server, path, read_whole(((0, response.content),)))


def check_end(server: Server, path: str, answer: Stream) -> None:
    """Raise EngineError if a first answer ended without success."""
    if (words := unsuccessful(answer.ends, server.api.accepted_ends)) is not None:
        raise EngineError(f"{server.contact.url} does not serve the first request: the answer of POST {path} {words}. "
                          "Nothing was measured. Read the end of the server's log.")


def without_token(
    server: Server, path: str, response: httpx.Response, reason: str | None = None, hint: str = ""
) -> EngineError:
    """The error for an answer that has no token. An error that the answer contains is the usual reason."""
    reason = reason or read_whole(((0, response.content),)).error
    why = f" ({mask(' '.join(reason.split()), server.contact.secrets)[:SHOWN_BYTES]})" if reason else ""
    return EngineError(f"{server.contact.url} is up but generates nothing: POST {path} for one token answered "
                       f"{response.status_code}{why}: {server.control.shown(response)!r}{hint}")
