"""What the emulator sends is read without a complaint by the client that reads the real engines."""

from array import array
from dataclasses import replace

import pytest

from pytest_llmperf.emulator.build import build_service
from pytest_llmperf.emulator.options import read_options
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.spec import build_spec
from pytest_llmperf.load.virtual_client import Client
from pytest_llmperf.model.exchange import Ending, Exchange
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest, StreamLimits
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.request import Request
from pytest_llmperf.telemetry.prometheus import parse
from pytest_llmperf.wire.completions import emulated_record, to_record

PROMPT = tuple(range(40))
#: Answers of dummy weights repeat themselves, so that their drafts are accepted.
DRAFTS = ["--load-format", "dummy", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']
SGLANG = ["--model-path", "tiny", "--enable-cache-report", "--enable-metrics"]


def service(engine, flags, *options):
    return build_service(read_options(["--hardware", "h200", "--engine", engine, *options, "--", *flags]))


def simulated(server, path, body):
    """The request as the emulated client has seen it."""
    server.deployment.begin_run()
    (request,) = Client(server, LoadPlan("", 0, (PlannedRequest(0, path, body),))).run()
    return request


def record(servers, path, body, tokens=20):
    """What a client parses from the bytes of one server, at the times of its twin: one read per event."""
    byte_server, twin = servers
    match = simulated(twin, path, body).exchange(0, StreamLimits())
    reply = simulated(byte_server, path, body).answer(byte_server)
    status, ending, text = reply.status, match.ending, reply.body.decode()
    length = f"content-length: {len(text)}\r\n" if status != 200 else ""
    head = f"HTTP/1.1 {status} Status\r\n{length}content-type: {reply.content_type}\r\n"
    pieces, chunked = [f"{head}\r\n{text}"], status == 200
    if chunked:
        events = [f"{event}\n\n" for event in text.split("\n\n")[:-1]]
        pieces = [f"{head}transfer-encoding: chunked\r\n\r\n", *(f"{len(e):x}\r\n{e}\r\n" for e in events)]
    token_ns = match.token_ns
    read_ns = [match.sent_ns + 1, *token_ns, *[match.ended_ns] * len(pieces)][: len(pieces)]
    read_ns = read_ns if chunked else [match.ended_ns]
    if chunked and ending is Ending.COMPLETE:
        pieces, read_ns = [*pieces, "0\r\n\r\n"], [*read_ns, match.ended_ns]
    exchange = Exchange(
        0, match.intended_ns, match.sent_ns, match.ended_ns, ending, array("q", read_ns),
        array("q", map(len, pieces)), "".join(pieces).encode(), error=StreamLimits().reached(ending),
    )  # fmt: skip
    return to_record(Request(0, PROMPT, tokens, len(PROMPT)), exchange)


def twins(engine, flags, *options):
    return service(engine, flags, *options), service(engine, flags, *options)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm", ["serve", "tiny", "--enable-prompt-tokens-details"]),
        ("vllm", ["serve", "tiny", "--enable-prompt-tokens-details", "--skip-tokenizer-init"]),
        ("vllm", ["serve", "tiny", "--enable-prompt-tokens-details", *DRAFTS]),
        ("sglang", SGLANG),
        ("sglang", [*SGLANG, "--skip-tokenizer-init"]),
    ],
)
def test_emulated_stream_is_accepted_by_client(engine, flags):
    server = twins(engine, flags)
    silent = {"skip_tokenizer_init": True} if "--skip-tokenizer-init" in flags else {}
    spec = build_spec(engine, "tiny", {}, silent)
    path, body = adapter_of(engine).post(spec, Request(0, PROMPT, 20, len(PROMPT)), "tiny")
    first, second = record(server, path, body), record(server, path, body)
    for exchange in (first, second):
        assert (exchange.outcome, exchange.detail) == (Outcome.OK, None)
        assert exchange.output_tokens == sum(exchange.chunk_tokens) == 20
        assert exchange.prompt_tokens == 40
        assert exchange.coalesced_chunks == 0
    assert first.cached_tokens == 0
    assert second.cached_tokens == (32 if engine == "vllm" else 39)
    if flags[-1] == DRAFTS[-1]:
        assert max(first.chunk_tokens) > 1


def simulated_record(server, path, body, tokens=20):
    match = simulated(server, path, body).exchange(0, StreamLimits())
    return emulated_record(Request(0, PROMPT, tokens, len(PROMPT)), match)


@pytest.mark.parametrize("fault", ["", "errors=100%", "hangs=100%", "truncated=100%"])
@pytest.mark.parametrize(
    ("engine", "flags"),
    [("vllm", ["serve", "tiny", "--enable-prompt-tokens-details"]), ("sglang", SGLANG),
     ("vllm", ["serve", "tiny", "--enable-prompt-tokens-details", *DRAFTS])],
    ids=["vllm", "sglang", "drafts"],
)  # fmt: skip
def test_emulated_record_equals_record_parsed_from_bytes(engine, flags, fault):
    """Virtual time has no bytes. So the emulated record must equal a client's record, except for the model's name."""
    options = ["--fault", fault] if fault else []
    path, body = adapter_of(engine).post(build_spec(engine, "tiny", {}, {}), Request(0, PROMPT, 20, 40), "tiny")
    servers, emulated_server = twins(engine, flags, *options), service(engine, flags, *options)
    for _ in range(8):  # the fault's kind is drawn per request
        assert simulated_record(emulated_server, path, body) == replace(record(servers, path, body), models=())


@pytest.mark.parametrize(
    ("fault", "outcomes"),
    [
        ("errors=100%", {Outcome.HTTP_STATUS, Outcome.ERROR_IN_STREAM}),
        ("hangs=100%", {Outcome.TIMEOUT}),
        ("truncated=100%", {Outcome.TRUNCATED}),
    ],
)
def test_planted_faults_have_expected_outcomes(fault, outcomes):
    server = twins("vllm", ["serve", "tiny"], "--fault", fault)
    path, body = adapter_of("vllm").post(build_spec("vllm", "tiny", {}, {}), Request(0, PROMPT, 20, 40), "tiny")
    assert {record(server, path, body).outcome for _ in range(12)} == outcomes


@pytest.mark.parametrize(("engine", "flags"), [("vllm", ["serve", "tiny", *DRAFTS]), ("sglang", SGLANG)])
def test_counters_are_found_where_the_adapter_looks(engine, flags):
    server = service(engine, flags)
    adapter = adapter_of(engine)
    path, body = adapter.post(build_spec(engine, "tiny", {}, {}), Request(0, PROMPT, 20, 40), "tiny")
    for _ in range(2):
        simulated(server, path, body)
    page = server.reply("GET", "/metrics").body.decode()
    counters = adapter.counters(parse(page))
    assert (counters["prompt_tokens"], counters["generation_tokens"], counters["requests_finished"]) == (80, 40, 2)
    assert counters["prompt_tokens_cached"] == (32 if engine == "vllm" else 39)
    assert counters["preemptions"] == 0
    assert counters["queue_time_count"] == 2
    assert counters["process_start_time_s"] > 0
    assert set(adapter.gauges(parse(page))) == {"kv_usage", "running", "waiting"}
    if engine == "vllm":
        assert counters["spec_accepted_tokens"] <= counters["spec_draft_tokens"] == 3 * counters["spec_drafts"]
        assert counters["spec_accepted_pos_0"] >= counters["spec_accepted_pos_2"]
        assert set(adapter.facts(parse(page))) == {
            "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching", "kv_cache_size_tokens"
        }  # fmt: skip
