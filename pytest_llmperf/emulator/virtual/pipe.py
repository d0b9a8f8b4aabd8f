"""A server in virtual time behind stdin and stdout: JSON lines in, JSON lines out, each command answered by one line.

    {"http": {"method", "path", "body"}}              any route at the present time; a completion runs until it is done
    {"simulate": {"concurrency", "requests": […]}}    a load plan; answers with what a client would have seen, and when;
                                                      "events" are deaths and restarts of replicas on the way
    {"sleep": {"ns"}}                                 time passes
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from pytest_llmperf.emulator.virtual.client import Client, Patience, ReplicaEvent, simulate_client
from pytest_llmperf.emulator.virtual.send_schedule import Posted

if TYPE_CHECKING:
    from pytest_llmperf.emulator.http.service import Service
    from pytest_llmperf.emulator.virtual.emulated_request import EmulatedRequest


class CommandError(ValueError):
    """A command that cannot be carried out; the text says why."""


def serve_pipe(service: Service, commands: TextIO, answers: TextIO) -> None:
    """Answer commands until there are no more."""
    _say(answers, {"ready": True, "now_ns": service.deployment.now_ns})
    for line in commands:
        if line.strip():
            _say(answers, answer(service, line))


def answer(service: Service, line: str) -> dict[str, Any]:
    """The answer to one command, which may be an error."""
    try:
        command = json.loads(line)
        if not isinstance(command, dict) or len(command) != 1:
            raise CommandError(f"a command is an object with one of {', '.join(_COMMANDS)}")
        ((name, arguments),) = command.items()
        if name not in _COMMANDS:
            raise CommandError(f"no command {name!r}; there are {', '.join(_COMMANDS)}")
        return _COMMANDS[name](service, arguments)
    except KeyError as missing:
        return {"error": f"the command lacks {missing}"}
    except (ValueError, TypeError, AttributeError) as error:
        return {"error": f"{error}"}


def _http(service: Service, arguments: dict[str, Any]) -> dict[str, Any]:
    method, path = str(arguments["method"]).upper(), str(arguments["path"])
    if service.generates(method, path.partition("?")[0]):
        answered = simulate_client(service, [Posted(0, path.partition("?")[0], (arguments.get("body") or "").encode())])
        _pass_time(service, answered)
        reply = answered[0].answer(service)
        if reply is None:
            raise CommandError(f"{path} was not answered: {answered[0].ending}")
    else:
        reply = service.reply(method, path)
    return {"status": reply.status, "content_type": reply.content_type, "body": reply.body.decode(),
            "now_ns": service.deployment.now_ns}


def _simulate(service: Service, arguments: dict[str, Any]) -> dict[str, Any]:
    posts = [_posted(request) for request in arguments["requests"]]
    patience = Patience(**(arguments.get("limits") or {}))
    deployment = service.deployment
    deployment.begin_run()
    started_ns = deployment.now_ns
    events = [ReplicaEvent(**event) for event in arguments.get("events", ())]
    client = Client(service, posts, arguments.get("concurrency"), patience, events)
    answered = client.run()
    ended_ns = _pass_time(service, answered)
    records = [request.record() for request in answered]
    return {"started_ns": started_ns, "ended_ns": ended_ns, "now_ns": deployment.now_ns, "records": records,
            "events": client.past}


def _posted(given: dict[str, Any]) -> Posted:
    """A request of a plan: the fields of `Posted`, with the body as text."""
    return Posted(**{"path": "/v1/completions"} | given | {"body": given["body"].encode()})


def _pass_time(service: Service, answered: list[EmulatedRequest]) -> int:
    """Advance the clock to the end of the last request, and return this time."""
    ended_ns = max((request.ended_ns or 0 for request in answered), default=0)
    ended_ns = max(ended_ns, service.deployment.now_ns)
    service.deployment.sleep_until(ended_ns)
    return ended_ns


def _sleep(service: Service, arguments: dict[str, Any]) -> dict[str, Any]:
    duration_ns = int(arguments["ns"])
    if duration_ns < 0:
        raise CommandError(f"time does not go back by {-duration_ns} ns")
    deployment = service.deployment
    deployment.sleep_until(deployment.now_ns + duration_ns)
    return {"now_ns": deployment.now_ns}


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value, separators=(",", ":")) + "\n")
    answers.flush()


_COMMANDS: dict[str, Callable[[Service, dict[str, Any]], dict[str, Any]]] = {
    "http": _http, "simulate": _simulate, "sleep": _sleep,
}  # fmt: skip
