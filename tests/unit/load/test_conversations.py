"""Turns that contain the answers of a real server: bodies, branches, failures."""

import json
import threading
from dataclasses import replace

import pytest

from pytest_llmperf.engines.control.reader import completion_body
from pytest_llmperf.load.process import ProcessTransport
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.model.request import Request
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import DONE, Close, Send, event, http_chunk, plain, streamed
from pytest_llmperf.wire.conversation import part_of

MS = 1_000_000


def plan_of(server, requests, **options):
    planned = []
    for request in requests:
        body = completion_body(request, "m")
        planned.append(PlannedRequest(request.index, "/v1/completions", body, request.at_ns, request.after,
                                      request.think_ns, part_of(request, body)))
    return LoadPlan("127.0.0.1", server.port, tuple(planned), **options)


def answer(*ids):
    events = [event({"choices": [{"text": "x", "token_ids": [token], "finish_reason": None}]}) for token in ids]
    end = event({"choices": [{"text": "", "token_ids": [], "finish_reason": "length"}]})
    return streamed([*events, end, DONE])


def echo(_, received):
    """The ids of the prompt's last token, twice, each increased by 100."""
    prompt = json.loads(received.body)["prompt"]
    return answer(prompt[-1] + 100, prompt[-1] + 100)


def turn(index, *tokens, after=None, continues=None, last=False):
    return Request(index, tokens, 2, None, at_ns=0 if after is None else None, after=after, think_ns=5 * MS,
                   continues=after is not None if continues is None else continues, answer_used=not last)


def prompts_of(server):
    return [json.loads(received.body)["prompt"] for received in server.requests]


def test_each_turn_contains_all_earlier_answers():
    with ScriptedServer(answer=echo) as server:
        plan = plan_of(server, [turn(0, 1, 2), turn(1, 3, after=0), turn(2, 4, after=1, last=True)])
        replay = ProcessTransport().replay(plan, cancel=threading.Event())
    assert prompts_of(server) == [[1, 2], [1, 2, 102, 102, 3], [1, 2, 102, 102, 3, 103, 103, 4]]
    first, second, _ = replay.exchanges
    assert second.intended_ns == first.ended_ns + 5 * MS


def test_branches_continue_the_same_answer():
    with ScriptedServer(answer=echo) as server:
        requests = [turn(0, 1), turn(1, 2, after=0, last=True), turn(2, 3, after=0, last=True)]
        ProcessTransport().replay(plan_of(server, requests, concurrency=1), cancel=threading.Event())
    assert sorted(prompts_of(server)) == [[1], [1, 101, 101, 2], [1, 101, 101, 3]]


def test_conversations_stay_whole_across_load_processes():
    with ScriptedServer(answer=echo) as server:
        requests = [made for first in range(0, 12, 2)
                    for made in (turn(first, first), turn(first + 1, 50, after=first, last=True))]
        replay = ProcessTransport(processes=2).replay(plan_of(server, requests), cancel=threading.Event())
    assert {exchange.ending for exchange in replay.exchanges} == {Ending.COMPLETE}
    assert sorted(prompts_of(server))[1::2] == [[first, first + 100, first + 100, 50] for first in range(0, 12, 2)]


def test_turn_follows_end_that_the_plan_accepts():
    aborted = streamed([event({"choices": [{"text": "x", "token_ids": [7], "finish_reason": "abort"}]}), DONE])
    with ScriptedServer(answer=lambda *_: aborted) as server:
        plan = plan_of(server, [turn(0, 1), turn(1, 3, after=0, last=True)])
        requests = tuple(replace(request, ends=("abort",)) for request in plan.requests)
        ProcessTransport().replay(replace(plan, requests=requests), cancel=threading.Event())
    assert prompts_of(server) == [[1], [1, 7, 3]]


@pytest.mark.parametrize("script", [
    plain(500, b"{}"),
    [*streamed([event({"choices": [{"text": "x", "token_ids": [1]}]})])[:-1], Close()],
    streamed([event({"choices": [{"text": "x", "finish_reason": "stop"}]}), DONE]),
    streamed([event({"choices": [{"text": "x", "token_ids": [1], "finish_reason": "abort"}]}), DONE]),
    [Send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + http_chunk(b"\xff")), Close()],
], ids=["refused", "cut short", "without ids", "aborted", "not an event stream"])
def test_failed_turn_ends_one_conversation_only(script):
    def say(_, received):
        return script if json.loads(received.body)["prompt"][0] == 1 else echo(0, received)

    with ScriptedServer(answer=say) as server:
        requests = [turn(0, 1), turn(1, 3, after=0), turn(2, 4, after=1, last=True),
                    turn(3, 7), turn(4, 8, after=3, last=True)]
        replay = ProcessTransport().replay(plan_of(server, requests, concurrency=1), cancel=threading.Event())
    endings = [exchange.ending for exchange in replay.exchanges]
    assert endings[1:3] == [Ending.NOT_CONTINUED] * 2
    assert endings[3:] == [Ending.COMPLETE] * 2
    assert [exchange.sent_ns for exchange in replay.exchanges][1:3] == [None, None]
    assert len(server.requests) == 3
