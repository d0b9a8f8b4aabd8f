"""The client in virtual time against one engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.config import EngineConfig
from pytest_llmperf.emulator.cost.step_time import StepLoad
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES

sys.path.insert(0, str(Path(__file__).parents[2] / "stubs"))

from virtual_client import Answer, Plan, Request, replay

INGRESS_NS = 500_000


class StepOfOneMillisecond:
    def seconds(self, load: StepLoad) -> Any:
        return 0.001 + 0.0 * load.kv_tokens

    def ingress_s(self, prompt_tokens: int) -> float:
        return INGRESS_NS / 1e9


def deployment(**changes: Any) -> Deployment:
    config = {
        "engine": "vllm", "shape": SHAPES["tiny"], "gpu": GPU_KINDS["h200"], "max_model_len": 512, "block_size": 4,
        "max_num_batched_tokens": 64, "max_num_seqs": 8, "num_blocks": 101, "async_scheduling": False,
    }  # fmt: skip
    return Deployment(EngineConfig(**(config | changes)), StepOfOneMillisecond())


def prompt(number: int, length: int = 10) -> tuple[int, ...]:
    return tuple(range(1000 * number, 1000 * number + length))


def test_single_request_has_exact_token_times():
    (answer,) = replay(deployment(), Plan((Request(0, prompt(0), 3, at_ns=1_000_000),)))
    first_ns = 1_000_000 + INGRESS_NS + 1_000_000
    assert answer == Answer(
        0, 1_000_000, 1_000_000, [first_ns, first_ns + 1_000_000, first_ns + 2_000_000], [1, 1, 1],
        first_ns + 2_000_000, 10, 0, 3,
    )  # fmt: skip


def test_closed_loop_keeps_concurrency():
    plan = Plan(tuple(Request(i, prompt(i), 4) for i in range(6)), concurrency=2)
    answers = replay(deployment(), plan)
    assert [a.sent_ns for a in answers] == [0, 0] + [answers[0].ended_ns] * 2 + [answers[2].ended_ns] * 2
    assert all(a.intended_ns == a.sent_ns for a in answers)


def test_timed_request_over_limit_is_intended_at_end_of_request_before():
    plan = Plan(tuple(Request(i, prompt(i), 4, at_ns=0) for i in range(2)), concurrency=1)
    first, second = replay(deployment(), plan)
    assert second.intended_ns == second.sent_ns == first.ended_ns


def test_next_turn_hits_cached_answer_of_previous_turn():
    server = deployment()
    first = Request(0, prompt(0, 16), 9)
    said = [answer_token(first, position) for position in range(16, 24)]
    follow = Request(1, first.prompt + tuple(said) + (7, 7), 2, after=0, think_ns=5_000_000)
    answers = replay(server, Plan((first, follow)))
    assert answers[1].sent_ns == answers[0].ended_ns + 5_000_000
    assert (answers[0].cached_tokens, answers[1].cached_tokens) == (0, 24)


def answer_token(request: Request, position: int) -> int:
    from pytest_llmperf.emulator.core.sequence import Sequence

    return Sequence(0, request.prompt, request.max_tokens, 0).token(position)


def test_time_goes_on_between_replays():
    server = deployment()
    plan = Plan((Request(0, prompt(0), 3),))
    (first,), (second,) = replay(server, plan), replay(server, plan)
    assert second.sent_ns == first.ended_ns
    server.sleep_until(second.ended_ns + 7)
    (third,) = replay(server, plan)
    assert third.sent_ns == second.ended_ns + 7


def test_follower_of_refused_request_is_sent():
    plan = Plan((Request(0, prompt(0), 600), Request(1, prompt(1), 2, after=0)))
    refused, served = replay(deployment(), plan)
    assert "maximum context length" in refused.refusal
    assert (refused.ended_ns, refused.output_tokens) == (INGRESS_NS, 0)
    assert (served.sent_ns, served.output_tokens) == (INGRESS_NS, 2)


def test_a_server_that_is_stuck_leaves_requests_open():
    server = deployment(num_blocks=11)
    server.engines[0].scheduler.pool.leak(4)
    server.engines[0].scheduler.add = server.engines[0].scheduler.waiting.append  # past the check
    (answer,) = replay(server, Plan((Request(0, prompt(0, 30), 3),)))
    assert (answer.ended_ns, answer.refusal, answer.token_ns) == (None, None, [])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_equal_plans_have_equal_answers(asynchronous):
    plan = Plan(tuple(Request(i, prompt(i % 5, 30), 20, at_ns=i * 700_000) for i in range(30)))
    servers = [deployment(async_scheduling=asynchronous, num_blocks=41) for _ in range(2)]
    assert replay(servers[0], plan) == replay(servers[1], plan)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 60), st.integers(1, 30), st.none() | st.integers(0, 30_000_000), st.integers(0, 9),
            st.integers(0, 5_000_000),
        ),
        min_size=1,
        max_size=12,
    ),
    st.none() | st.integers(1, 4),
    st.booleans(),
)  # fmt: skip
def test_every_replayed_request_gets_all_tokens_in_order(requests, concurrency, asynchronous):
    planned = tuple(
        Request(i, prompt(i % 3, length), most, at_ns, after if after < i else None, think_ns)
        for i, (length, most, at_ns, after, think_ns) in enumerate(requests)
    )
    answers = replay(deployment(async_scheduling=asynchronous), Plan(planned, concurrency))
    assert [a.index for a in answers] == list(range(len(planned)))
    for request, answer in zip(planned, answers, strict=True):
        assert sum(answer.token_counts) == answer.output_tokens == request.max_tokens
        assert answer.token_ns == sorted(set(answer.token_ns))
        assert answer.ended_ns == answer.token_ns[-1]
        assert answer.intended_ns <= answer.sent_ns < answer.token_ns[0] - INGRESS_NS
        if request.after is not None:
            assert answer.sent_ns >= answers[request.after].ended_ns + request.think_ns
        if request.at_ns is not None:
            assert answer.sent_ns >= request.at_ns
    if concurrency is not None:
        moments = [(a.sent_ns, 1) for a in answers] + [(a.ended_ns, -1) for a in answers]
        in_flight = 0
        for _, change in sorted(moments):
            in_flight += change
            assert in_flight <= concurrency
