"""A server in virtual time behind stdin and stdout: JSON lines in, JSON lines out, each command answered by one line.

    {"http": {"method", "path", "body"}}              any route at the present time; a completion runs until it is done
    {"replay": {"concurrency", "requests": […]}}      a load plan; answers with what a client would have read, and when
    {"simulate": the same}                            the same without bytes
    {"sleep": {"ns"}}                                 time passes
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from pytest_llmperf.emulator.virtual.client import Patience, Posted, fly

if TYPE_CHECKING:
    from pytest_llmperf.emulator.http.service import Service
    from pytest_llmperf.emulator.virtual.flights import Flight


class CommandError(ValueError):
    """A command that cannot be carried out; the text says why."""


def serve_pipe(service: Service, commands: TextIO, answers: TextIO) -> None:
    """Answer commands until there are no more."""
    _say(answers, {"ready": True, "now_ns": service.deployment.now_ns})
    for line in commands:
        if line.strip():
            _say(answers, answer(service, line))


def answer(service: Service, line: str) -> dict[str, Any]:
    """What one command comes to; an error is an answer too."""
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
    deployment = service.deployment
    if service.generates(method, path.partition("?")[0]):
        flights = fly(service, [Posted(0, path.partition("?")[0], (arguments.get("body") or "").encode())])
        _pass_time(service, flights)
        data = b"".join(data for _, data in flights[0].reads(service))
        if not data:
            raise CommandError(f"{path} was not answered: {flights[0].ending}")
        status, content_type, body = _unframed(data)
    else:
        reply = service.reply(method, path)
        status, content_type, body = reply.status, reply.content_type, reply.body.decode()
    return {"status": status, "content_type": content_type, "body": body, "now_ns": deployment.now_ns}


def _unframed(data: bytes) -> tuple[int, str, str]:
    """Status, media type and body of an answer as framing.py wrote it."""
    top, _, rest = data.decode().partition("\r\n\r\n")
    lines = top.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    if "content-length" in headers:
        return int(lines[0].split()[1]), headers["content-type"], rest
    body = []
    while rest:
        size, _, rest = rest.partition("\r\n")
        body.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return int(lines[0].split()[1]), headers["content-type"], "".join(body)


def _replay(service: Service, arguments: dict[str, Any]) -> dict[str, Any]:
    return _run(service, arguments, "exchanges", lambda flight: _exchange(service, flight))


def _simulate(service: Service, arguments: dict[str, Any]) -> dict[str, Any]:
    return _run(service, arguments, "records", lambda flight: flight.record())


def _run(
    service: Service, arguments: dict[str, Any], name: str, shown: Callable[[Flight], dict[str, Any]]
) -> dict[str, Any]:
    posts = [
        Posted(
            index=given["index"],
            path=given.get("path", "/v1/completions"),
            body=given["body"].encode(),
            at_ns=given.get("at_ns"),
            after=given.get("after"),
            think_ns=given.get("think_ns") or 0,
        )
        for given in arguments["requests"]
    ]
    deployment = service.deployment
    deployment.begin_run()
    started_ns = deployment.now_ns
    patience = Patience(**(arguments.get("limits") or {}))
    flights = fly(service, posts, arguments.get("concurrency"), patience)
    ended_ns = _pass_time(service, flights)
    rows = [shown(flight) for flight in flights]
    return {"started_ns": started_ns, "ended_ns": ended_ns, "now_ns": deployment.now_ns, name: rows}


def _exchange(service: Service, flight: Flight) -> dict[str, Any]:
    reads = flight.reads(service)
    return {
        "index": flight.index,
        "intended_ns": flight.intended_ns,
        "sent_ns": flight.sent_ns,
        "ended_ns": flight.ended_ns,
        "ending": flight.ending,
        "read_ns": [at_ns for at_ns, _ in reads],
        "read_bytes": [len(data) for _, data in reads],
        "data": b"".join(data for _, data in reads).decode(),
    }


def _pass_time(service: Service, flights: list[Flight]) -> int:
    """Let the clock go to the last end, and return that."""
    ended_ns = max((flight.ended_ns or 0 for flight in flights), default=0)
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
    "http": _http,
    "replay": _replay,
    "simulate": _simulate,
    "sleep": _sleep,
}
