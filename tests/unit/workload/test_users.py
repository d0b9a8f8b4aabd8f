"""Workloads of which users cancel, retry and distribute requests over models."""

import json

import pytest

from pytest_llmperf.errors import SpecError
from pytest_llmperf.workload import (
    across_models,
    cancelled,
    closed,
    multi_turn,
    poisson,
    random_tokens,
    retried,
    sharegpt,
)

CHAT = random_tokens(input=20, output=(4, 40), arrivals=poisson(8), requests=400)
TURNS = multi_turn(conversations=40, turns=3, input=20, output=30, arrivals=poisson(1))


def test_share_of_requests_is_cancelled_by_seeded_draw():
    workload = cancelled(CHAT, share=0.25, after_s=1.5)
    cancellations = [request.cancellation for request in workload.requests()]
    assert 70 <= sum(each is not None for each in cancellations) <= 130
    assert {each.after_ns for each in cancellations if each} == {1_500_000_000}
    assert workload.requests() == workload.requests()
    assert [r.cancellation for r in workload.requests(1)] != cancellations


def test_cancellation_keeps_prompts_times_and_lengths():
    plain, changed = CHAT.requests(), cancelled(CHAT, share=1, after_tokens=10).requests()
    assert [(r.prompt, r.at_ns, r.output_tokens) for r in changed] == [(r.prompt, r.at_ns, r.output_tokens)
                                                                     for r in plain]


def test_short_answer_is_read_whole():
    requests = cancelled(CHAT, share=1, after_tokens=10).requests()
    assert {request.cancellation is None for request in requests if request.output_tokens <= 10} == {True}
    assert {request.cancellation is None for request in requests if request.output_tokens > 10} == {False}


def test_every_turn_of_conversation_asks_one_model():
    requests = across_models(TURNS, {"": 3, "sql": 1}).requests()
    by_conversation = [{request.model for request in requests[first:first + 3]} for first in range(0, 120, 3)]
    assert all(len(names) == 1 for names in by_conversation)
    assert 3 <= sum(names == {"sql"} for names in by_conversation) <= 20


def test_wrapped_workloads_combine_and_keep_rate_and_seed():
    workload = retried(cancelled(across_models(CHAT, {"a": 1}), share=0.5, after_tokens=2), attempts=3, backoff_s=0.25)
    first = workload.requests()[0]
    assert (first.model, first.retry.attempts, first.retry.backoff_ns) == ("a", 3, 250_000_000)
    assert (workload.rate, workload.at_rate(16).rate, workload.at_rate(16).requests_per_arrival) == (8, 16, 1)
    assert workload.at_rate(8, 5).requests() == workload.requests(5)
    assert workload.expected_hit_rate(16) == CHAT.expected_hit_rate(16)
    assert retried(random_tokens(input=8, output=8, arrivals=closed(4), requests=8), attempts=2).concurrency == 4


def test_text_of_wrapped_workload_states_all_arguments():
    assert str(retried(CHAT, attempts=3)) == f"retried(workload={CHAT}, attempts=3)"
    assert str(cancelled(CHAT, share=0.5, after_s=2)) == f"cancelled(workload={CHAT}, share=0.5, after_s=2)"
    assert str(across_models(CHAT, {"a": 1})) == f"across_models(workload={CHAT}, models={{'a': 1.0}})"
    assert len({cancelled(CHAT, share=share, after_tokens=2).digest() for share in (0.5, 0.6)}) == 2


@pytest.mark.parametrize(("build", "message"), [
    (lambda: cancelled(CHAT, share=0.2), "say when requests are cancelled"),
    (lambda: cancelled(CHAT, share=0.2, after_tokens=2, after_s=2), "either after_tokens"),
    (lambda: cancelled(CHAT, share=1.5, after_tokens=2), "share must be at most 1"),
    (lambda: cancelled(CHAT, share=0, after_tokens=2), "share must be greater than 0"),
    (lambda: cancelled(CHAT, share=0.1, after_s=0), "after_s must be greater than 0"),
    (lambda: cancelled("chat", share=0.1, after_s=1), "the first argument is a workload"),
    (lambda: retried(CHAT, attempts=1), "attempts must be at least 2"),
    (lambda: retried(CHAT, attempts=21), "attempts must be at most 20"),
    (lambda: retried(CHAT, attempts=2, backoff_s=-1), "backoff_s must be at least 0"),
    (lambda: across_models(CHAT, {}), "shares by name"),
    (lambda: across_models(CHAT, ["a"]), "shares by name"),
    (lambda: across_models(CHAT, {"a": 0}), "the share of 'a' must be greater than 0"),
])  # fmt: skip
def test_invalid_argument_is_refused_with_remedy(build, message):
    with pytest.raises(SpecError, match=message):
        build()


def test_cancelled_conversation_with_answers_of_server_is_refused():
    live = multi_turn(conversations=4, turns=2, input=20, output=30, arrivals=poisson(1), reply="server")
    with pytest.raises(SpecError, match="the next turn contains the whole answer"):
        cancelled(retried(live, attempts=2), share=0.5, after_tokens=2)


def test_digest_follows_content_of_recorded_traffic(tmp_path):
    path = tmp_path / "talk.json"
    digests = set()
    for words in ("first question ", "second question "):
        turns = [{"from": "human", "value": words * 4}, {"from": "gpt", "value": words * 4}]
        path.write_text(json.dumps([{"conversations": turns}]))
        digests.add(retried(sharegpt(path=path, arrivals=poisson(1), requests=1), attempts=2).digest())
    assert len(digests) == 2
