"""A server in virtual time behind stdin and stdout: JSON lines in, JSON lines out, each command answered by one line.

    {"http": {"method", "path", "body"}}              any route at the present time; a completion runs until it is done
    {"simulate": {"concurrency", "requests": […]}}    a load plan; answers with what a client would have seen, and when
    {"plan": {"name", and the same}}                  a load plan to keep: it is read once
    {"simulate": {"plan": name}}                      one that was kept
    {"restart": {"noise_seed"}}                       the same command line started anew at time 0; plans are kept
    {"sleep": {"ns"}}                                 time passes
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TextIO

from pytest_llmperf.emulator.http.replies import Refusal
from pytest_llmperf.emulator.virtual.client import Patience, simulate_client
from pytest_llmperf.emulator.virtual.send_schedule import Posted

if TYPE_CHECKING:
    from pytest_llmperf.emulator.http.service import Service
    from pytest_llmperf.emulator.virtual.emulated_request import EmulatedRequest


class CommandError(ValueError):
    """A command that cannot be carried out; the text says why."""


@dataclass(frozen=True, slots=True)
class PipePlan:
    """The requests and limits of a client, see `simulate_client`."""

    posts: list[Posted]
    concurrency: int | None
    patience: Patience


@dataclass(slots=True)
class Pipe:
    """A server behind a pipe, with its stored plans.

    Args:
        service: the running server.
        start: starts a new server with the given noise seed; None if a restart is impossible.
        plans: stored plans by name.
        token_ids: token ids of all plans; equal ids share one object.
    """

    service: Service
    start: Callable[[int], Service] | None = None
    plans: dict[str, PipePlan] = field(default_factory=dict)
    token_ids: dict[int, int] = field(default_factory=dict)


def serve_pipe(pipe: Pipe, commands: TextIO, answers: TextIO) -> None:
    """Answer commands until there are no more."""
    _say(answers, {"ready": True, "now_ns": pipe.service.deployment.now_ns})
    for line in commands:
        if line.strip():
            _say(answers, answer(pipe, line))


def answer(pipe: Pipe, line: str) -> dict[str, Any]:
    """The answer to one command, which may be an error."""
    try:
        command = json.loads(line)
        if not isinstance(command, dict) or len(command) != 1:
            raise CommandError(f"a command is an object with one of {', '.join(_COMMANDS)}")
        ((name, arguments),) = command.items()
        if name not in _COMMANDS:
            raise CommandError(f"no command {name!r}; there are {', '.join(_COMMANDS)}")
        return _COMMANDS[name](pipe, arguments)
    except KeyError as missing:
        return {"error": f"the command lacks {missing}"}
    except (ValueError, TypeError, AttributeError) as error:
        return {"error": f"{error}"}


def _http(pipe: Pipe, arguments: dict[str, Any]) -> dict[str, Any]:
    method, path = str(arguments["method"]).upper(), str(arguments["path"])
    service, deployment = pipe.service, pipe.service.deployment
    if service.generates(method, path.partition("?")[0]):
        answered = simulate_client(service, [Posted(0, path.partition("?")[0], (arguments.get("body") or "").encode())])
        _pass_time(service, answered)
        reply = answered[0].answer(service)
        if reply is None:
            raise CommandError(f"{path} was not answered: {answered[0].ending}")
    else:
        reply = service.reply(method, path)
    return {"status": reply.status, "content_type": reply.content_type, "body": reply.body.decode(),
            "now_ns": deployment.now_ns}


def _simulate(pipe: Pipe, arguments: dict[str, Any]) -> dict[str, Any]:
    name = arguments.get("plan")
    if name is not None and name not in pipe.plans:
        raise CommandError(f"no plan {name!r} is kept")
    plan = _plan(arguments) if name is None else pipe.plans[name]
    deployment = pipe.service.deployment
    deployment.begin_run()
    started_ns = deployment.now_ns
    answered = simulate_client(pipe.service, plan.posts, plan.concurrency, plan.patience)
    ended_ns = _pass_time(pipe.service, answered)
    records = [request.record() for request in answered]
    return {"started_ns": started_ns, "ended_ns": ended_ns, "now_ns": deployment.now_ns, "records": records}


def _keep(pipe: Pipe, arguments: dict[str, Any]) -> dict[str, Any]:
    plan = _plan(arguments)
    posts = [_read(pipe.service, post, pipe.token_ids) for post in plan.posts]
    pipe.plans[str(arguments["name"])] = replace(plan, posts=posts)
    return {"now_ns": pipe.service.deployment.now_ns}


def _restart(pipe: Pipe, arguments: dict[str, Any]) -> dict[str, Any]:
    seed = int(arguments["noise_seed"])
    if pipe.start is None:
        raise CommandError("this server cannot be started anew")
    pipe.service = pipe.start(seed)
    return {"now_ns": pipe.service.deployment.now_ns}


def _plan(arguments: dict[str, Any]) -> PipePlan:
    posts = [
        Posted(
            index=given["index"],
            path=given.get("path", "/v1/completions"),
            body=given["body"].encode(),
            at_ns=given.get("at_ns"),
            after=given.get("after"),
            think_ns=given.get("think_ns") or 0,
            continues=bool(given.get("continues")),
            after_tokens=given.get("after_tokens"),
            after_ns=given.get("after_ns"),
            attempts=given.get("attempts") or 1,
            backoff_ns=given.get("backoff_ns") or 0,
        )
        for given in arguments["requests"]
    ]
    return PipePlan(posts, arguments.get("concurrency"), Patience(**(arguments.get("limits") or {})))


def _read(service: Service, post: Posted, tokens: dict[int, int]) -> Posted:
    """With its body read; one that is refused is refused again each time.

    Args:
        tokens: one object per token id, so that equal prompts are compared without looking at numbers.
    """
    try:
        generation = service.ask(post.path, post.body)
    except Refusal:
        return post
    prompts = tuple(tuple([tokens.setdefault(token, token) for token in prompt]) for prompt in generation.prompts)
    return replace(post, ask=replace(generation, prompts=prompts))


def _pass_time(service: Service, answered: list[EmulatedRequest]) -> int:
    """Advance the clock to the end of the last request, and return this time."""
    ended_ns = max((request.ended_ns or 0 for request in answered), default=0)
    ended_ns = max(ended_ns, service.deployment.now_ns)
    service.deployment.sleep_until(ended_ns)
    return ended_ns


def _sleep(pipe: Pipe, arguments: dict[str, Any]) -> dict[str, Any]:
    duration_ns = int(arguments["ns"])
    if duration_ns < 0:
        raise CommandError(f"time does not go back by {-duration_ns} ns")
    deployment = pipe.service.deployment
    deployment.sleep_until(deployment.now_ns + duration_ns)
    return {"now_ns": deployment.now_ns}


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value, separators=(",", ":")) + "\n")
    answers.flush()


_COMMANDS: dict[str, Callable[[Pipe, dict[str, Any]], dict[str, Any]]] = {
    "http": _http,
    "simulate": _simulate,
    "plan": _keep,
    "restart": _restart,
    "sleep": _sleep,
}
