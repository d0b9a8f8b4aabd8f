"""The emulated server over a real loopback socket."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from pytest_llmperf.emulator.build import build_service
from pytest_llmperf.emulator.options import read_options
from pytest_llmperf.load.virtual_client import Client
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest
from pytest_llmperf.testing.waiting import until

ALL = {"include_usage": True, "continuous_usage_stats": True}


def events(response):
    return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


def body(tokens=8, **more):
    return {"prompt": list(range(40)), "max_tokens": tokens, "stream": True, "stream_options": ALL} | more


def run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_emulator_prints_address_and_exits_with_0_on_stop(emulate, client):
    server = emulate()
    assert server.said.startswith("emulated h200: vllm tiny")
    assert server.url in server.said
    assert client.get(f"{server.url}/health").status_code == 200
    assert server.stop() == 0


def test_completion_stream_contains_tokens_usage_and_done_event(emulate, client):
    server = emulate()
    with client.stream("POST", f"{server.url}/v1/completions", json=body()) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        stream_events = events(response)
    assert stream_events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in stream_events[:-2]]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == list(range(1, 9))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert json.loads(stream_events[-2])["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_streamed_and_whole_answers_agree(emulate, client):
    server = emulate()
    with client.stream("POST", f"{server.url}/v1/completions", json=body(return_token_ids=True)) as response:
        chunks = [json.loads(event) for event in events(response)[:-2]]
    whole = client.post(
        f"{server.url}/v1/completions", json={"prompt": list(range(40)), "max_tokens": 8, "return_token_ids": True}
    ).json()
    (choice,) = whole["choices"]
    assert choice["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert choice["token_ids"] == [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


def test_chat_and_information_pages_are_served(emulate, client):
    server = emulate()
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    said = client.post(f"{server.url}/v1/chat/completions", json=chat).json()
    assert said["choices"][0]["message"]["content"]
    (model,) = client.get(f"{server.url}/v1/models").json()["data"]
    assert (model["id"], model["root"], model["max_model_len"]) == ("tiny", "tiny", 4096)
    assert "emulated" in client.get(f"{server.url}/version").json()["version"]
    info = client.get(f"{server.url}/server_info", params={"config_format": "json"}).json()["vllm_config"]
    assert info["scheduler_config"]["async_scheduling"] is True
    assert client.post(f"{server.url}/reset_prefix_cache").json() == {"success": True}
    page = client.get(f"{server.url}/metrics").text
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 3.0' in page


def test_errors_have_openais_form(emulate, client):
    server = emulate()
    answers = [
        (client.post(f"{server.url}/v1/completions", content=b"{"), 400),
        (client.post(f"{server.url}/v1/completions", json=body(model="other")), 404),
        (client.post(f"{server.url}/v1/completions", json=body(tokens=5000)), 400),
        (client.get(f"{server.url}/v1/completions"), 405),
        (client.get(f"{server.url}/none"), 404),
    ]
    for response, status in answers:
        assert response.status_code == status
        assert response.json()["error"]["code"] == status


def test_client_disconnect_cancels_sequence(emulate, client):
    server = emulate(engine=["serve", "llama-3.1-8b", "--max-model-len", "8192"])
    with client.stream("POST", f"{server.url}/v1/completions", json=body(tokens=4000)) as response:
        lines = response.iter_lines()  # closes the response when nobody keeps it
        next(lines)
        page = client.get(f"{server.url}/metrics").text
        assert 'vllm:num_requests_running{engine="0",model_name="llama-3.1-8b"} 1.0' in page
    idle = 'vllm:num_requests_running{engine="0",model_name="llama-3.1-8b"} 0.0'
    page = until(lambda: page if idle in (page := client.get(f"{server.url}/metrics").text) else None)
    assert 'finished_reason="abort"} 1.0' in page
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="llama-3.1-8b"} 0.0' in page


def test_slow_client_does_not_block_other_requests(emulate, client):
    server = emulate()
    with client.stream("POST", f"{server.url}/v1/completions", json=body(tokens=4000)) as response:
        with client.stream("POST", f"{server.url}/v1/completions", json=body(tokens=500)) as other:
            assert len(events(other)) == 502
        time.sleep(4)
        assert len(events(response)) == 4002


def test_sigterm_does_not_wait_for_streams(emulate):
    server = emulate(engine=["serve", "llama-3.1-8b", "--max-model-len", "100000"])
    seen = []

    def read():
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body(tokens=50_000), trust_env=False, timeout=60) as response:
            try:
                seen.extend(response.iter_lines())
            except httpx.HTTPError as broken:
                seen.append(type(broken).__name__)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: seen)
    assert server.stop() == 0
    reader.join(60)
    assert seen[-1] == "RemoteProtocolError"  # what was left to send takes minutes


def test_emulator_exits_immediately_if_port_is_taken(emulate):
    server = emulate()
    command = [sys.executable, "-m", "pytest_llmperf.emulator", "--hardware", "h200", "--model", "tiny"]
    second = run([*command, "--port", str(server.port)])
    assert second.returncode == 1
    assert "address already in use" in second.stderr.lower()


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--hardware", "h200", "--", "serve", "tiny", "--enable-lora"], 2, "--enable-lora cannot be emulated"),
        (["--hardware", "h200", "--fault", "fire", "--model", "tiny"], 2, "no such fault"),
        (["--hardware", "h200", "--", "serve", "tiny", "-tp", "2"], 2, "has 1: lower the parallelism"),
        (["--hardware", "l4", "--model", "llama-3.1-70b"], 1, "No available memory for the cache blocks"),
        (["--model", "tiny"], 2, "--hardware"),
    ],
)
def test_invalid_command_line_is_refused_without_traceback(argv, code, words):
    done = run([sys.executable, "-m", "pytest_llmperf.emulator", *argv])
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("fault", "seen"), [("errors=100%", "error"), ("truncated=100%", "closed")])
def test_planted_http_faults_fail_requests_in_expected_ways(emulate, client, fault, seen):
    server = emulate("--fault", fault)
    collected = set()
    for _ in range(12):
        try:
            with client.stream("POST", f"{server.url}/v1/completions", json=body()) as response:
                said = events(response) if response.status_code == 200 else ["status"]
            collected.add("error" if any('"error":{' in event for event in said) else said[-1])
        except httpx.RemoteProtocolError:
            collected.add("closed")
    assert collected == ({"status", "error"} if seen == "error" else {"closed"})


def test_planted_hang_stops_request_but_not_health_page(emulate):
    server = emulate("--fault", "hangs=100%")
    with (
        httpx.Client(timeout=1, trust_env=False) as hasty,
        pytest.raises(httpx.ReadTimeout),
        hasty.stream("POST", f"{server.url}/v1/completions", json=body()) as response,
    ):
        events(response)
    assert httpx.get(f"{server.url}/health", trust_env=False, timeout=60).status_code == 200


def test_sglang_routes_return_tokens_and_counters(emulate, client):
    server = emulate("--engine", "sglang", engine=["--model-path", "tiny", "--enable-metrics", "--enable-cache-report"])
    request = {
        "input_ids": list(range(30)),
        "sampling_params": {"max_new_tokens": 4, "ignore_eos": True},
        "stream": True,
    }
    for _ in range(2):
        with client.stream("POST", f"{server.url}/generate", json=request) as response:
            stream_events = events(response)
    *chunks, done = stream_events
    assert done == "[DONE]"
    assert [len(json.loads(chunk)["output_ids"]) for chunk in chunks] == [1, 2, 3, 4]
    assert json.loads(chunks[-1])["meta_info"]["cached_tokens"] == 29
    for path in ("/health", "/health_generate", "/get_server_info", "/server_info", "/v1/models"):
        assert client.get(f"{server.url}{path}").status_code == 200, path
    assert "sglang:generation_tokens_total" in client.get(f"{server.url}/metrics").text
    assert client.post(f"{server.url}/flush_cache").status_code == 200
    assert client.post(f"{server.url}/reset_prefix_cache").status_code == 404


def test_real_time_agrees_with_virtual_time(emulate, client, tmp_path):
    """The same requests at the same times: steps are equal, so tokens differ by no more than the server's own error."""
    record = tmp_path / "sends.jsonl"
    server = emulate("--record", str(record), engine=["serve", "llama-3.1-8b", "--max-model-len", "8192"])
    with client.stream("POST", f"{server.url}/v1/completions", json=body(tokens=100)) as response:
        events(response)
    until(lambda: record.read_text().endswith("\n"))
    (row,) = [json.loads(line) for line in record.read_text().splitlines()]
    assert row["ending"] == "complete"
    service = build_service(read_options(["--hardware", "h200", "--", "serve", "llama-3.1-8b",
                                          "--max-model-len", "8192"]))  # fmt: skip
    post = PlannedRequest(0, "/v1/completions", json.dumps(body(tokens=100)).encode())
    (request,) = Client(service, LoadPlan("", 0, (post,))).run()
    virtual = [at_ns - request.arrived_ns for at_ns in request.token_times[0].token_ns]
    intended = [at_ns - row["arrived_ns"] for at_ns in row["intended_ns"]]
    assert intended == virtual
    assert row["arrived_ns"] - row["received_ns"] >= request.arrived_ns - request.sent_ns
    # How late they leave depends on the machine.
    assert all(sent > meant for sent, meant in zip(row["sent_ns"], row["intended_ns"], strict=True))


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ([], []),
        (["--noise", "session=1%,step=2%,ar=0.5", "--fault", "stalls=2%"], []),
        (["--gpus", "2"], ["-dp", "2"]),
        (["--gpus", "2", "--split", "50e9:20us"], []),
    ],
)
def test_many_streams_are_scheduled_as_in_virtual_time(emulate, tmp_path, options, more):
    """Whatever the moments at which the requests were read, virtual time with the same moments ends the same steps."""
    record = tmp_path / "sends.jsonl"
    flags = ["serve", "llama-3.1-8b", "--max-model-len", "8192", "--max-num-batched-tokens", "512", *more]
    server = emulate("--record", str(record), *options, engine=flags)
    bodies = [json.dumps(body(tokens=40) | {"prompt": [number] * 300}) for number in range(12)]

    def send(text):
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, content=text, trust_env=False, timeout=60) as response:
            events(response)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(send, bodies))
    until(lambda: record.read_text().count("\n") == 12)
    rows = sorted(map(json.loads, record.read_text().splitlines()), key=lambda row: row["number"])
    first_ns = min(row["arrived_ns"] for row in rows)
    posts = tuple(PlannedRequest(number, "/v1/completions", bodies[number].encode(), row["arrived_ns"] - first_ns)
                  for number, row in enumerate(rows))  # fmt: skip
    service = build_service(read_options(["--hardware", "h200", *options, "--", *flags]))
    requests = Client(service, LoadPlan("", 0, posts)).run()
    for row, request in zip(rows, requests, strict=True):
        assert request.arrived_ns - requests[0].arrived_ns == row["arrived_ns"] - rows[0]["arrived_ns"]
        start_ns = row["arrived_ns"] - request.arrived_ns
        assert [at_ns - start_ns for at_ns in row["intended_ns"]] == request.token_times[0].token_ns
