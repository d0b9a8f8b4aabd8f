"""Requests in virtual time: a plan gives what a client would have seen, and when."""

import json

import pytest

from pytest_llmperf.emulator.build import build_service
from pytest_llmperf.emulator.faults import parse_faults
from pytest_llmperf.emulator.options import read_options
from pytest_llmperf.load.virtual_client import Client
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.record import Outcome

MS = 1_000_000


def service(*options, model="tiny", flags=("--max-model-len", "4096", "--enable-prompt-tokens-details")):
    return build_service(read_options(["--hardware", "h200", *options, "--", "serve", model, *flags]))


def asked(prompt=(1, 2, 3), tokens=4, **more):
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = {"prompt": list(prompt), "max_tokens": tokens, "stream": True, "stream_options": options}
    return json.dumps(streamed | more)


def post(index, at_ns=None, body=None, **given):
    return PlannedRequest(index, "/v1/completions", (body or asked()).encode(), at_ns, **given)


def http(server, path, method="POST", given=None):
    if not server.generates(method, path):
        return server.reply(method, path)
    (answered,) = Client(server, LoadPlan("", 0, (PlannedRequest(0, path, given.encode()),))).run()
    return answered.answer(server)


def replay(server, *requests, concurrency=None, **limits):
    plan = LoadPlan("", 0, requests, concurrency=concurrency, limits=StreamLimits(**limits))
    server.deployment.begin_run()
    return [request.exchange(0, plan.limits) for request in Client(server, plan).run()]


def test_unreadable_request_of_a_plan_is_refused_and_the_next_is_sent():
    refused, served = replay(service(), post(0, body="no JSON"), post(1), concurrency=1)
    assert (refused.outcome, served.outcome) == (Outcome.HTTP_STATUS, Outcome.OK)


def test_record_has_times_tokens_and_usage_of_request():
    server = service()
    first, second = replay(server, post(0, at_ns=2 * MS), post(1, at_ns=3 * MS))
    assert (first.intended_ns, first.sent_ns, first.ending) == (2 * MS, 2 * MS, Ending.COMPLETE)
    for record in (first, second):
        assert record.token_counts == (1,) * 4
        assert record.sent_ns < record.token_ns[0]
        assert tuple(sorted(record.token_ns)) == record.token_ns
        assert record.ended_ns == record.token_ns[-1]
        assert (record.prompt_tokens, record.output_tokens, record.outcome) == (3, 4, Outcome.OK)
    assert server.deployment.now_ns == second.ended_ns


def test_streamed_completion_is_answered_as_events():
    events = http(service(), "/v1/completions", "POST", asked()).body.decode().split("\n\n")
    assert len(events) == 6 + 1
    assert events[-2:] == ["data: [DONE]", ""]
    assert json.loads(events[-3].removeprefix("data: "))["usage"]["completion_tokens"] == 4


def test_every_route_answers_and_a_completion_takes_virtual_time():
    server = service()
    models = http(server, "/v1/models", "GET")
    assert json.loads(models.body)["data"][0]["id"] == "tiny"
    whole = http(server, "/v1/completions", "POST", '{"prompt": [1], "max_tokens": 9}')
    assert whole.status == 200
    assert json.loads(whole.body)["usage"]["completion_tokens"] == 9
    assert server.deployment.now_ns > 0
    streamed = http(server, "/v1/completions", "POST", asked())
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    bad = http(server, "/v1/completions", "POST", "{}")
    assert bad.status == 400
    assert http(server, "/v1/completions", "GET").status == 405
    assert http(server, "/generate", "GET").status == 405
    assert http(server, "/none", "GET").status == 404
    page = http(server, "/metrics?x=1", "GET").body.decode()
    assert 'vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"} 2.0' in page


def test_the_prefix_cache_works_and_is_reset():
    server = service()
    prompt = list(range(100))
    replay(server, post(0, body=asked(prompt)))
    cached = replay(server, post(0, body=asked(prompt)))[0].cached_tokens
    assert cached == 96
    reset = http(server, "/reset_prefix_cache", "POST")
    assert json.loads(reset.body) == {"success": True}
    assert replay(server, post(0, body=asked(prompt)))[0].cached_tokens == 0


@pytest.mark.parametrize(("query", "expected"), [("", 96), ("?reset_external=false", 96), ("?reset_external=true", 0)])
def test_offloaded_cache_is_emptied_only_if_requested(query, expected):
    server = service(flags=("--kv-offloading-size", "4", "--enable-prompt-tokens-details"))
    replay(server, post(0, body=asked(range(100))))
    http(server, f"/reset_prefix_cache{query}", "POST")
    assert replay(server, post(0, body=asked(range(100))))[0].cached_tokens == expected


def test_cache_disabled_by_fault_keeps_flag_and_never_hits():
    server = service("--fault", "prefix_cache=off")
    for _ in range(2):
        (record,) = replay(server, post(0, body=asked(range(100))))
    assert record.cached_tokens == 0
    page = http(server, "/metrics", "GET").body.decode()
    assert 'enable_prefix_caching="True"' in page


def test_a_smaller_budget_by_fault_shows():
    info = http(service("--fault", "chunk_budget=/4"), "/server_info", "GET")
    assert json.loads(info.body)["vllm_config"]["scheduler_config"]["max_num_batched_tokens"] == 2048


def test_slower_steps_by_fault_take_longer():
    def took(*options):
        token_ns = replay(service(*options), post(0, body=asked(tokens=50)))[0].token_ns
        return token_ns[-1] - token_ns[0]

    assert took("--fault", "step_time=+5%") == pytest.approx(1.05 * took(), rel=1e-6)


def test_closed_loop_and_conversation_are_replayed():
    requests = [post(0), post(1), post(2), post(3, after=0, think_ns=7 * MS)]
    replayed = replay(service(), *requests, concurrency=2)
    assert replayed[2].sent_ns == min(replayed[0].ended_ns, replayed[1].ended_ns)
    assert replayed[3].intended_ns >= replayed[0].ended_ns + 7 * MS


def faulty(fault, tokens=20, requests=40):
    server = service("--fault", f"{fault}=50%", "--noise-seed", "3")
    return replay(server, *[post(i, at_ns=i * MS, body=asked([i], tokens)) for i in range(requests)])


def test_errors_are_statuses_and_events():
    replayed = faulty("errors")
    outcomes = [record.outcome for record in replayed]
    refused, inside = outcomes.count(Outcome.HTTP_STATUS), outcomes.count(Outcome.ERROR_IN_STREAM)
    assert refused >= 4
    assert inside >= 4
    assert refused + inside + outcomes.count(Outcome.OK) == 40
    assert refused + inside < 35
    assert {record.ending for record in replayed} == {Ending.COMPLETE}


def test_error_in_stream_is_event_before_end_of_stream():
    server = service("--fault", "errors=100%", "--noise-seed", "3")
    answers = [http(server, "/v1/completions", "POST", asked()) for _ in range(9)]
    assert {reply.status for reply in answers} == {200, 500}
    for reply in answers:
        if reply.status == 200:
            *_, error, done, end = reply.body.decode().split("\n\n")
            assert (done, end) == ("data: [DONE]", "")
            assert "error" in json.loads(error.removeprefix("data: "))


def test_truncated_streams_close_early():
    planted = parse_faults(["truncated=50%"])
    faults = [planted.of_request(3, number, 20) for number in range(40)]
    assert 10 <= sum(fault is not None for fault in faults) <= 30
    for record, fault in zip(faulty("truncated"), faults, strict=True):
        assert record.ending == (Ending.COMPLETE if fault is None else Ending.CLOSED_EARLY)
        assert len(record.token_ns) == (20 if fault is None else fault.after_tokens)


def test_hanging_streams_end_when_the_client_loses_patience():
    replayed = faulty("hangs")
    hung = [record for record in replayed if record.ending == Ending.IDLE_TIMEOUT]
    assert 10 <= len(hung) <= 30
    for record in hung:
        assert record.ended_ns == record.token_ns[-1] + StreamLimits().idle_ns
    silent = [record for record in replayed if record.ending == Ending.FIRST_BYTE_TIMEOUT]
    assert 1 <= len(silent) <= 5  # one in twenty hangs after the head already
    for record in silent:
        assert record.ended_ns == record.sent_ns + StreamLimits().first_byte_ns


def test_a_queue_longer_than_the_idle_limit_is_no_silence():
    """The head of a stream comes at once; its first token has the longer limit."""
    limits = {"first_byte_ns": 60_000 * MS, "idle_ns": 50 * MS}
    server = service(flags=("--max-model-len", "4096", "--max-num-seqs", "1"))
    records = replay(server, *[post(i, at_ns=0, body=asked([i], 100)) for i in range(3)], **limits)
    assert [record.ending for record in records] == [Ending.COMPLETE] * 3
    assert records[-1].token_ns[0] - records[-1].sent_ns > 2 * limits["idle_ns"]


def test_client_limit_ends_request_in_virtual_time():
    (record,) = replay(service(), post(0, body=asked(tokens=200)), total_ns=20_000_000)
    assert record.ending == Ending.TOTAL_TIMEOUT
    assert record.ended_ns == record.sent_ns + 20_000_000


def test_requests_to_a_server_that_leaks_blocks_time_out():
    server = service("--fault", "leak=4", flags=("--num-gpu-blocks-override", "40", "--max-model-len", "256"))
    requests = [post(i, body=asked([i] * 100, 20)) for i in range(20)]
    endings = [record.ending for record in replay(server, *requests, concurrency=1)]
    assert endings[0] == Ending.COMPLETE
    assert endings[-1] == Ending.FIRST_BYTE_TIMEOUT
    whole = json.dumps({"prompt": [1] * 200, "max_tokens": 5})
    (last,) = replay(server, post(0, body=whole))
    assert last.outcome == Outcome.TIMEOUT
    assert last.ended_ns == last.sent_ns + StreamLimits().first_byte_ns


def test_runs_are_deterministic():
    noise = ("--noise", "session=1%,run=1%,step=2%,ar=0.5", "--fault", "stalls=1%", "--noise-seed", "9")

    def run():
        server = service(*noise)
        return [replay(server, *[post(i, at_ns=i * MS) for i in range(10)]) for _ in range(2)]

    assert run() == run()


@pytest.mark.parametrize(("noise", "differ"), [("session=1%", False), ("run=1%", True)])
def test_each_replay_has_a_new_run_factor(noise, differ):
    server = service("--noise", noise, "--noise-seed", "9")
    runs = [replay(server, post(0, body=asked([9], 20)))[0].token_ns for _ in range(2)]
    assert (runs[0][-1] - runs[0][1] != runs[1][-1] - runs[1][1]) is differ


def test_sleeping_vllm_answers_no_request_before_wake_up():
    server = service(flags=("--enable-sleep-mode",))
    assert json.loads(http(server, "/is_sleeping", "GET").body) == {"is_sleeping": False}
    assert http(server, "/sleep?level=1").status == 200
    assert json.loads(http(server, "/is_sleeping", "GET").body) == {"is_sleeping": True}
    (record,) = replay(server, post(0))
    assert record.ending == Ending.FIRST_BYTE_TIMEOUT
    assert not record.token_ns
    assert http(server, "/wake_up").status == 200
    (record,) = replay(server, post(0))
    assert record.ending == Ending.COMPLETE


def test_prefix_cache_is_empty_after_sleep():
    server = service(flags=("--enable-sleep-mode", "--enable-prompt-tokens-details"))
    long = asked(prompt=range(100))
    replay(server, post(0, body=long))
    http(server, "/sleep?level=1")
    http(server, "/wake_up")
    (record,) = replay(server, post(0, body=long))
    assert record.cached_tokens == 0


def test_sglang_refuses_requests_while_memory_is_released():
    argv = ["--hardware", "h200", "--engine", "sglang", "--", "--model-path", "tiny", "--enable-memory-saver"]
    server = build_service(read_options(argv))
    whole = json.dumps({"prompt": [1, 2, 3], "max_tokens": 4})
    assert http(server, "/release_memory_occupation", given="{}").status == 200
    assert http(server, "/v1/completions", given=whole).status == 500
    assert http(server, "/resume_memory_occupation", given="{}").status == 200
    assert http(server, "/v1/completions", given=whole).status == 200
