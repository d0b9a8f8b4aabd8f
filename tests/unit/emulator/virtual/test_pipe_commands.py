"""The pipe: every command has one answer; a plan gives what a client would have seen, and when."""

import io
import json

import pytest

from pytest_llmperf.emulator.__main__ import build_service
from pytest_llmperf.emulator.faults import parse_faults
from pytest_llmperf.emulator.options import read_options
from pytest_llmperf.emulator.virtual.client import Patience
from pytest_llmperf.emulator.virtual.pipe import answer, serve_pipe

MS = 1_000_000


def service(*options, model="tiny", flags=("--max-model-len", "4096", "--enable-prompt-tokens-details")):
    return build_service(read_options(["--hardware", "h200", "--pipe", *options, "--", "serve", model, *flags]))


def body(prompt=(1, 2, 3), tokens=4, **more):
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = {"prompt": list(prompt), "max_tokens": tokens, "stream": True, "stream_options": options}
    return json.dumps(streamed | more)


def post(index, at_ns=None, path="/v1/completions", **given):
    return {"index": index, "path": path, "body": given.pop("body", None) or body(), "at_ns": at_ns, **given}


def say(server, **command):
    reply = answer(server, json.dumps(command))
    assert "error" not in reply, reply
    return reply


def replay(server, *requests, concurrency=None, **more):
    return say(server, simulate={"concurrency": concurrency, "requests": list(requests), **more})["records"]


def test_pipe_answers_every_command_once():
    commands = io.StringIO('{"sleep": {"ns": 5}}\n\n{"http": {"method": "GET", "path": "/health", "body": null}}\n')
    answers = io.StringIO()
    serve_pipe(service(), commands, answers)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"ready": True, "now_ns": 0},
        {"now_ns": 5},
        {"status": 200, "content_type": "text/plain; charset=utf-8", "body": "", "now_ns": 5},
    ]


def test_unreadable_request_of_a_plan_is_refused_and_the_next_is_sent():
    refused, served = replay(service(), post(0, body="no JSON"), post(1), concurrency=1)
    assert (refused["outcome"], served["outcome"]) == ("http status", "ok")


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", "{}", '{"x": 1}', '{"sleep": {"ns": -1}}', '{"sleep": {}}',
     '{"http": {"method": "GET"}}', '{"simulate": {}}',
     '{"simulate": {"requests": [{"index": 3, "body": "{}"}]}}', '{"simulate": {"requests": [{"index": 0}]}}',
     '{"simulate": {"requests": [{"index": 0, "body": "{}", "after": 7}]}}'],
)  # fmt: skip
def test_a_bad_command_is_answered_with_a_sentence(line):
    reply = answer(service(), line)
    assert set(reply) == {"error"}
    assert reply["error"]


def test_record_has_times_tokens_and_usage_of_request():
    server = service()
    first, second = replay(server, post(0, at_ns=2 * MS), post(1, at_ns=3 * MS))
    assert (first["intended_ns"], first["sent_ns"], first["ending"]) == (2 * MS, 2 * MS, "complete")
    for record in (first, second):
        assert record["token_counts"] == [1] * 4
        assert record["sent_ns"] < record["token_ns"][0]
        assert sorted(record["token_ns"]) == record["token_ns"]
        assert record["ended_ns"] == record["token_ns"][-1]
        assert (record["prompt_tokens"], record["output_tokens"], record["outcome"]) == (3, 4, "ok")
    assert server.deployment.now_ns == second["ended_ns"]


def test_streamed_completion_is_answered_as_events():
    events = say(service(), http={"method": "POST", "path": "/v1/completions", "body": body()})["body"].split("\n\n")
    assert len(events) == 6 + 1
    assert events[-2:] == ["data: [DONE]", ""]
    assert json.loads(events[-3].removeprefix("data: "))["usage"]["completion_tokens"] == 4


def test_every_route_answers_and_a_completion_takes_virtual_time():
    server = service()
    models = say(server, http={"method": "GET", "path": "/v1/models", "body": None})
    assert json.loads(models["body"])["data"][0]["id"] == "tiny"
    whole = say(server, http={"method": "POST", "path": "/v1/completions", "body": '{"prompt": [1], "max_tokens": 9}'})
    assert whole["status"] == 200
    assert json.loads(whole["body"])["usage"]["completion_tokens"] == 9
    assert whole["now_ns"] > 0
    streamed = say(server, http={"method": "POST", "path": "/v1/completions", "body": body()})
    assert streamed["body"].endswith("data: [DONE]\n\n")
    bad = say(server, http={"method": "POST", "path": "/v1/completions", "body": "{}"})
    assert bad["status"] == 400
    assert say(server, http={"method": "GET", "path": "/v1/completions", "body": None})["status"] == 405
    assert say(server, http={"method": "GET", "path": "/generate", "body": None})["status"] == 405
    assert say(server, http={"method": "GET", "path": "/none", "body": None})["status"] == 404
    page = say(server, http={"method": "GET", "path": "/metrics?x=1", "body": None})["body"]
    assert 'vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"} 2.0' in page


def test_the_prefix_cache_works_and_is_reset():
    server = service()
    prompt = list(range(100))
    replay(server, post(0, body=body(prompt)))
    cached = replay(server, post(0, body=body(prompt)))[0]["cached_tokens"]
    assert cached == 96
    reset = say(server, http={"method": "POST", "path": "/reset_prefix_cache", "body": ""})
    assert json.loads(reset["body"]) == {"success": True}
    assert replay(server, post(0, body=body(prompt)))[0]["cached_tokens"] == 0


@pytest.mark.parametrize(("query", "expected"), [("", 96), ("?reset_external=false", 96), ("?reset_external=true", 0)])
def test_offloaded_cache_is_emptied_only_if_requested(query, expected):
    server = service(flags=("--kv-offloading-size", "4", "--enable-prompt-tokens-details"))
    replay(server, post(0, body=body(range(100))))
    say(server, http={"method": "POST", "path": f"/reset_prefix_cache{query}", "body": ""})
    assert replay(server, post(0, body=body(range(100))))[0]["cached_tokens"] == expected


def test_cache_disabled_by_fault_keeps_flag_and_never_hits():
    server = service("--fault", "prefix_cache=off")
    for _ in range(2):
        (record,) = replay(server, post(0, body=body(range(100))))
    assert record["cached_tokens"] == 0
    page = say(server, http={"method": "GET", "path": "/metrics", "body": None})["body"]
    assert 'enable_prefix_caching="True"' in page


def test_a_smaller_budget_by_fault_shows():
    info = say(service("--fault", "chunk_budget=/4"), http={"method": "GET", "path": "/server_info", "body": None})
    assert json.loads(info["body"])["vllm_config"]["scheduler_config"]["max_num_batched_tokens"] == 2048


def test_slower_steps_by_fault_take_longer():
    def took(*options):
        token_ns = replay(service(*options), post(0, body=body(tokens=50)))[0]["token_ns"]
        return token_ns[-1] - token_ns[0]

    assert took("--fault", "step_time=+5%") == pytest.approx(1.05 * took(), rel=1e-6)


def test_closed_loop_and_conversation_are_replayed():
    requests = [post(0), post(1), post(2), post(3, after=0, think_ns=7 * MS)]
    replayed = replay(service(), *requests, concurrency=2)
    assert replayed[2]["sent_ns"] == min(replayed[0]["ended_ns"], replayed[1]["ended_ns"])
    assert replayed[3]["intended_ns"] >= replayed[0]["ended_ns"] + 7 * MS


def faulty(fault, tokens=20, requests=40):
    server = service("--fault", f"{fault}=50%", "--noise-seed", "3")
    return replay(server, *[post(i, at_ns=i * MS, body=body([i], tokens)) for i in range(requests)])


def test_errors_are_statuses_and_events():
    replayed = faulty("errors")
    outcomes = [record["outcome"] for record in replayed]
    refused, inside = outcomes.count("http status"), outcomes.count("error in stream")
    assert refused >= 4
    assert inside >= 4
    assert refused + inside + outcomes.count("ok") == 40
    assert refused + inside < 35
    assert {record["ending"] for record in replayed} == {"complete"}


def test_error_in_stream_is_event_before_end_of_stream():
    server = service("--fault", "errors=100%", "--noise-seed", "3")
    answers = [say(server, http={"method": "POST", "path": "/v1/completions", "body": body()}) for _ in range(9)]
    assert {reply["status"] for reply in answers} == {200, 500}
    for reply in answers:
        if reply["status"] == 200:
            *_, error, done, end = reply["body"].split("\n\n")
            assert (done, end) == ("data: [DONE]", "")
            assert "error" in json.loads(error.removeprefix("data: "))


def test_truncated_streams_close_early():
    planted = parse_faults(["truncated=50%"])
    faults = [planted.of_request(3, number, 20) for number in range(40)]
    assert 10 <= sum(fault is not None for fault in faults) <= 30
    for record, fault in zip(faulty("truncated"), faults, strict=True):
        assert record["ending"] == ("complete" if fault is None else "closed early")
        assert len(record["token_ns"]) == (20 if fault is None else fault.after_tokens)


def test_hanging_streams_end_when_the_client_loses_patience():
    replayed = faulty("hangs")
    hung = [record for record in replayed if record["ending"] == "idle timeout"]
    assert 10 <= len(hung) <= 30
    for record in hung:
        assert record["ended_ns"] == record["token_ns"][-1] + Patience().idle_ns
    silent = [record for record in replayed if record["ending"] == "first byte timeout"]
    assert 1 <= len(silent) <= 5  # one in twenty hangs after the head already
    for record in silent:
        assert record["ended_ns"] == record["sent_ns"] + Patience().first_byte_ns


def test_a_queue_longer_than_the_idle_limit_is_no_silence():
    """The head of a stream comes at once; its first token has the longer limit."""
    limits = {"first_byte_ns": 60_000 * MS, "idle_ns": 50 * MS}
    server = service(flags=("--max-model-len", "4096", "--max-num-seqs", "1"))
    records = replay(server, *[post(i, at_ns=0, body=body([i], 100)) for i in range(3)], limits=limits)
    assert [record["ending"] for record in records] == ["complete"] * 3
    assert records[-1]["token_ns"][0] - records[-1]["sent_ns"] > 2 * limits["idle_ns"]


def test_client_limit_ends_request_in_virtual_time():
    (record,) = replay(service(), post(0, body=body(tokens=200)), limits={"total_ns": 20_000_000})
    assert record["ending"] == "total timeout"
    assert record["ended_ns"] == record["sent_ns"] + 20_000_000


def test_requests_to_a_server_that_leaks_blocks_time_out():
    server = service("--fault", "leak=4", flags=("--num-gpu-blocks-override", "40", "--max-model-len", "256"))
    requests = [post(i, body=body([i] * 100, 20)) for i in range(20)]
    endings = [record["ending"] for record in replay(server, *requests, concurrency=1)]
    assert endings[0] == "complete"
    assert endings[-1] == "first byte timeout"
    whole = json.dumps({"prompt": [1] * 200, "max_tokens": 5})
    (last,) = replay(server, post(0, body=whole))
    assert last["outcome"] == "timeout"
    assert last["ended_ns"] == last["sent_ns"] + Patience().first_byte_ns


def test_runs_are_deterministic():
    noise = ("--noise", "session=1%,run=1%,step=2%,ar=0.5", "--fault", "stalls=1%", "--noise-seed", "9")

    def run():
        server = service(*noise)
        return [replay(server, *[post(i, at_ns=i * MS) for i in range(10)]) for _ in range(2)]

    assert run() == run()


@pytest.mark.parametrize(("noise", "differ"), [("session=1%", False), ("run=1%", True)])
def test_each_replay_has_a_new_run_factor(noise, differ):
    server = service("--noise", noise, "--noise-seed", "9")
    runs = [replay(server, post(0, body=body([9], 20)))[0]["token_ns"] for _ in range(2)]
    assert (runs[0][-1] - runs[0][1] != runs[1][-1] - runs[1][1]) is differ


def http(server, path, method="POST", given=None):
    return say(server, http={"method": method, "path": path, "body": given})


def test_sleeping_vllm_answers_no_request_before_wake_up():
    server = service(flags=("--enable-sleep-mode",))
    assert json.loads(http(server, "/is_sleeping", "GET")["body"]) == {"is_sleeping": False}
    assert http(server, "/sleep?level=1")["status"] == 200
    assert json.loads(http(server, "/is_sleeping", "GET")["body"]) == {"is_sleeping": True}
    (record,) = replay(server, post(0))
    assert record["ending"] == "first byte timeout"
    assert not record["token_ns"]
    assert http(server, "/wake_up")["status"] == 200
    (record,) = replay(server, post(0))
    assert record["ending"] == "complete"


def test_prefix_cache_is_empty_after_sleep():
    server = service(flags=("--enable-sleep-mode", "--enable-prompt-tokens-details"))
    long = body(prompt=range(100))
    replay(server, post(0, body=long))
    http(server, "/sleep?level=1")
    http(server, "/wake_up")
    (record,) = replay(server, post(0, body=long))
    assert record["cached_tokens"] == 0


def test_sglang_refuses_requests_while_memory_is_released():
    argv = ["--hardware", "h200", "--pipe", "--engine", "sglang", "--", "--model-path", "tiny", "--enable-memory-saver"]
    server = build_service(read_options(argv))
    whole = json.dumps({"prompt": [1, 2, 3], "max_tokens": 4})
    assert http(server, "/release_memory_occupation", given="{}")["status"] == 200
    assert http(server, "/v1/completions", given=whole)["status"] == 500
    assert http(server, "/resume_memory_occupation", given="{}")["status"] == 200
    assert http(server, "/v1/completions", given=whole)["status"] == 200
