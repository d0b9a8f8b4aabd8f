"""One replay against a fake server: plan, counters, peaks, and every way in which the server fails during it."""

import json
import re
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from pytest_llmperf import closed, constant, endpoint, random_tokens, sglang, vllm
from pytest_llmperf.errors import EngineError, LoadError, ServerDied
from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.api import DIALECTS, PROTOCOLS
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import StreamLimits
from pytest_llmperf.model.telemetry import CpuUse
from pytest_llmperf.session.replay import Replayer, most_bytes
from pytest_llmperf.session.warm_up import BATCH, MOST_BATCHES, warm_up
from pytest_llmperf.testing.scripted_transport import ScriptedTransport

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WORKLOAD = random_tokens(input=8, output=5, arrivals=constant(10), requests=12)


class StillClock:
    """Two readings apart by nothing."""

    def now_ns(self):
        return 0

    def sleep_ns(self, duration_ns):
        raise AssertionError("nothing here waits")


@pytest.fixture
def replayer(fake_engine):
    def replayer(**fields):
        return Replayer(fake_engine.transport, lambda: NOW, clock=StillClock(), **fields)

    return replayer


def test_run_contains_seed_start_records_and_counters(make_server, replayer):
    run = replayer().run(make_server(), WORKLOAD, 3)
    assert (run.seed, run.start_id, run.started_at) == (3, 1, "2026-01-02T03:04:05+00:00")
    assert [record.index for record in run.records] == list(range(12))
    assert all(record.ok for record in run.records)
    assert run.counters["generation_tokens"] == 60
    assert run.counters["requests_finished"] == 12
    assert run.restarted is None
    assert run.cache_reset is False  # an endpoint's cache is not ours
    assert run.loop_lag_p99_ms is None
    assert run.wall_clock_jump_ms == 0


def test_run_stores_how_far_wall_clock_jumped(make_server, fake_engine):
    moments = iter([NOW, NOW + timedelta(hours=2)])
    run = Replayer(fake_engine.transport, lambda: next(moments), clock=StillClock()).run(make_server(), WORKLOAD, 3)
    assert run.wall_clock_jump_ms == 7_200_000


def test_cpu_time_counts_while_the_load_runs(make_server, replayer, fake_engine):
    sent_before = []

    def cpu_use():
        assert not fake_engine.transport.plans
        return lambda: sent_before.append(len(fake_engine.transport.plans)) or CpuUse(0.5, 0.1)

    assert replayer(cpu_use=cpu_use).run(make_server(), WORKLOAD, 0).cpu == CpuUse(0.5, 0.1)
    assert sent_before == [1]
    assert replayer().run(make_server(), WORKLOAD, 0).cpu is None  # in virtual time no machine's passes


def test_a_tier_that_is_kept_is_not_emptied(make_server, replayer, fake_engine):
    server = make_server(vllm("m"))
    assert replayer().run(server, WORKLOAD, 0, keep=("engine",)).cache_reset is False
    assert "/reset_prefix_cache" not in fake_engine.paths
    assert replayer().run(server, WORKLOAD, 0).cache_reset is True


def test_load_plan_contains_requests_and_times_of_seed(make_server, replayer, fake_engine):
    server = make_server(endpoint("http://h:81/proxy", model="m", ends="eos_token"), url="http://h:81/proxy")
    limits = StreamLimits(idle_ns=7)
    replayer(limits=limits).run(server, WORKLOAD, 3)
    (plan,) = fake_engine.transport.plans
    requests = WORKLOAD.requests(3)
    assert (plan.host, plan.port, plan.concurrency) == ("h", 81, None)
    assert plan.limits == replace(limits, replay_bytes=most_bytes(requests))
    assert [request.at_ns for request in plan.requests] == [request.at_ns for request in requests]
    assert plan.requests[0].path == "/proxy/v1/completions"
    assert b'"model":"m"' in plan.requests[0].body
    assert plan.requests[0].ends == ("stop", "length", "tool_calls", "function_call", "eos_token")


@pytest.mark.parametrize("spec", [
    vllm("m"), sglang("m"), *(endpoint("http://h:81", model="m", protocol=protocol, dialect=dialect)
                              for protocol in PROTOCOLS for dialect in DIALECTS)], ids=str)
def test_planned_request_has_output_tokens_of_workload_for_every_api(make_server, replayer, spec):
    """SGLang, chat and Responses name the number differently in the body."""
    server, requests = make_server(spec, url="http://h:81"), WORKLOAD.requests(0)
    assert {request.output_tokens for request in replayer().plan(server, requests, None).requests} == {5}


def sent_prompts(fake_engine):
    """The prompts of each replay."""
    return [[json.loads(request.body)["prompt"] for request in plan.requests] for plan in fake_engine.transport.plans]


def test_endpoint_gets_other_prompts_in_each_run_of_a_seed(make_server, replayer, fake_engine):
    """Nobody can see or empty its cache, which may hold what an earlier session sent."""
    server = make_server()
    for _ in range(2):
        replayer().run(server, WORKLOAD, 3)
    first, second = sent_prompts(fake_engine)
    drawn = [list(request.prompt) for request in WORKLOAD.requests(3)]
    assert not {tuple(prompt) for prompt in first} & {tuple(prompt) for prompt in [*second, *drawn]}
    assert [len(prompt) for prompt in first] == [len(prompt) for prompt in second] == [8] * 12


def test_endpoint_gets_the_last_prompts_again_where_tiers_are_kept(make_server, replayer, fake_engine):
    server = make_server()
    replayer().run(server, WORKLOAD, 3)
    replayer().run(server, WORKLOAD, 3, keep=("engine",))
    first, second = sent_prompts(fake_engine)
    assert first == second


def test_started_server_gets_the_prompts_of_the_seed(make_server, replayer, fake_engine, fake_process):
    replayer().run(make_server(vllm("m"), process=fake_process), WORKLOAD, 3)
    assert sent_prompts(fake_engine) == [[list(request.prompt) for request in WORKLOAD.requests(3)]]


def test_run_knows_the_names_of_the_model(make_server, replayer):
    assert replayer().run(make_server(), WORKLOAD, 0).model_names == ("m",)
    declared = endpoint("http://127.0.0.1:8000", model="m", model_alias=["m-2024-08-06", "m-latest"])
    run = replayer().run(make_server(declared), WORKLOAD, 0)
    assert run.model_names == ("m", "m-2024-08-06", "m-latest")


def test_closed_loop_limit_is_passed_to_load_generator(make_server, replayer, fake_engine):
    replayer().run(make_server(), random_tokens(input=8, output=5, arrivals=closed(3), requests=6), 0)
    assert fake_engine.transport.plans[0].concurrency == 3


def test_cache_of_started_server_is_reset_before_run(make_server, replayer, fake_engine, fake_process):
    run = replayer().run(make_server(vllm("m"), process=fake_process), WORKLOAD, 0)
    assert run.cache_reset
    assert fake_engine.paths.index("/reset_prefix_cache") < fake_engine.paths.index("/metrics")


def test_a_server_without_counters_is_measured_all_the_same(make_server, replayer, fake_engine):
    fake_engine.answers["/metrics"] = httpx.Response(404)
    run = replayer().run(make_server(), WORKLOAD, 0)
    assert run.counters == {}
    assert len(run.records) == 12


def test_counters_that_vanish_during_the_run_are_an_error(make_server, replayer, fake_engine):
    gone = {"/metrics": httpx.ConnectError("refused")}
    fake_engine.on_replay = lambda: fake_engine.answers.update(gone)
    with pytest.raises(EngineError, match="showed its counters before the run, and not after it"):
        replayer().run(make_server(), WORKLOAD, 0)


@pytest.mark.parametrize("sign", ["no counters", "broken answers"])
def test_server_whose_end_is_known_only_after_its_sockets_closed_is_named(
    make_server, replayer, fake_engine, fake_process, monkeypatch, sign
):
    server = make_server(vllm("m"), process=fake_process)

    def ends_late(timeout_s=None):
        if timeout_s and timeout_s >= 1:
            fake_process.ended = "signal 9 (SIGKILL)"
        return fake_process.ended

    def dies():
        monkeypatch.setattr(fake_process, "wait_exit", ends_late)
        if sign == "no counters":
            fake_engine.answers["/metrics"] = httpx.ConnectError("refused")

    fake_engine.on_replay = dies
    if sign == "broken answers":
        answer_with(fake_engine, b"HTTP/1.1 200 OK\r\nContent-Length: 1200\r\n\r\ndata:", Ending.CLOSED_EARLY)
        monkeypatch.setattr(fake_process, "wait_exit", ends_late)
    with pytest.raises(ServerDied, match="The vllm server died: signal 9"):
        replayer().run(server, WORKLOAD, 0)


def test_counters_missing_before_run_raise_error(make_server, replayer, fake_engine):
    fake_engine.answers["/metrics"] = httpx.ConnectError("refused")
    fake_engine.on_replay = lambda: fake_engine.answers.pop("/metrics")
    with pytest.raises(EngineError, match=r"after the run, and not before it: nobody could see .* Run it again"):
        replayer().run(make_server(), WORKLOAD, 0)


def test_counter_that_falls_between_gauge_readings_is_reported(make_server, replayer, fake_engine):
    """Before and after the run alone it only grows."""
    fake_engine.prompt = 1000
    fell = threading.Event()
    server = make_server()

    def page(request):
        response = fake_engine.answer(request)
        if request.url.path == "/metrics" and fake_engine.prompt == 7:
            fell.set()
        return response

    def fall_and_recover():
        fake_engine.prompt = 7
        assert fell.wait(60)
        fake_engine.prompt = 2000

    server.control.client = httpx.Client(base_url=server.contact.url, transport=httpx.MockTransport(page))
    fake_engine.on_replay = fall_and_recover
    run = replayer().run(server, WORKLOAD, 0, gauge_interval_s=0.001)
    assert run.restarted == "its counter prompt_tokens fell from 1000 to 7"
    assert run.counters["prompt_tokens"] > 0
    fake_engine.on_replay = lambda: None
    assert replayer().run(server, WORKLOAD, 1).restarted is None


def test_counter_that_falls_between_two_runs_is_reported(make_server, replayer, fake_engine):
    server = make_server()
    replayer().run(server, WORKLOAD, 0)
    fake_engine.generated = 0
    assert replayer().run(server, WORKLOAD, 1).restarted == "its counter generation_tokens fell from 60 to 0"


@pytest.mark.parametrize("value", [-3, 10**25])
def test_impossible_counter_is_an_error_and_named(make_server, replayer, fake_engine, value):
    fake_engine.preemptions = value
    with pytest.raises(EngineError, match=re.escape(f"counter preemptions is {value:.15g}, and a counter")):
        replayer().run(make_server(), WORKLOAD, 0)


def test_impossible_gauge_is_left_out(make_server, fake_engine):
    page = fake_engine.page()
    fake_engine.answers["/metrics"] = httpx.Response(200, text=page.replace("running 3", "running 1e300"))
    assert "running" not in make_server().counters.gauges()
    fake_engine.answers["/metrics"] = httpx.Response(200, text=page)
    assert make_server().counters.gauges()["running"] == 3


@pytest.mark.parametrize("blocks", ["\u00b2", "9" * 5000, "-1", "many"])
def test_resolved_text_without_number_is_left_out(make_server, replayer, fake_engine, blocks):
    fake_engine.answers["/metrics"] = httpx.Response(200, text=fake_engine.page().replace('"100"', f'"{blocks}"'))
    assert "kv_blocks" not in replayer().run(make_server(), WORKLOAD, 0).counters


def test_server_death_during_run_raises_with_signal(make_server, replayer, fake_engine, fake_process):
    def die():
        fake_process.ended = "signal 9 (SIGKILL)"

    fake_engine.on_replay = die
    with pytest.raises(ServerDied, match="signal 9"):
        replayer().run(make_server(vllm("m"), process=fake_process), WORKLOAD, 0)


def test_a_load_process_that_fails_with_the_server_is_not_the_cause(make_server, replayer, fake_engine, fake_process):
    def die():
        fake_process.ended = "signal 9 (SIGKILL)"
        raise LoadError("the load process hung and was ended")

    fake_engine.on_replay = die
    with pytest.raises(ServerDied, match="signal 9"):
        replayer().run(make_server(vllm("m"), process=fake_process), WORKLOAD, 0)
    fake_process.ended = None
    fake_engine.on_replay = lambda: (_ for _ in ()).throw(LoadError("the load process hung and was ended"))
    with pytest.raises(LoadError, match="hung"):
        replayer().run(make_server(vllm("m"), process=fake_process), WORKLOAD, 0)


@pytest.mark.parametrize(("timeout_s", "error"), [(0.01, LoadError), (900.0, EngineError)])
def test_timeout_in_virtual_time_is_not_reported_as_emulator_end(make_server, replayer, fake_engine, timeout_s, error):
    def end():
        time.sleep(0.3)
        raise EngineError("The emulator ended: signal 9 (SIGKILL).")

    fake_engine.on_replay = end
    with pytest.raises(error, match="did not end within 0.01 s" if error is LoadError else "The emulator ended"):
        replayer(timeout_s=timeout_s).run(make_server(), WORKLOAD, 0)


def test_resolved_chunk_budget_is_a_counter_of_run(make_server, replayer, fake_engine):
    config = {"vllm_config": {"scheduler_config": {"max_num_batched_tokens": 2048}}}
    fake_engine.answers["/server_info"] = httpx.Response(200, json=config)
    assert replayer().run(make_server(), WORKLOAD, 0).counters["chunk_budget"] == 2048.0


def test_run_counters_include_resolved_flags_and_startup_time(make_server, replayer, fake_engine):
    config = {"model_config": {"enforce_eager": True},
              "parallel_config": {"enable_expert_parallel": False, "tensor_parallel_size": 2}}
    fake_engine.answers["/server_info"] = httpx.Response(200, json={"vllm_config": config})
    server = make_server(vllm("m"))
    server.unit.starting_s = 61.5
    counters = replayer().run(server, WORKLOAD, 0).counters
    assert (counters["eager"], counters["expert_parallel"], counters["startup_s"]) == (1.0, 0.0, 61.5)
    assert counters["tensor_parallel"] == 2.0
    assert "startup_s" not in replayer().run(make_server(), WORKLOAD, 0).counters


def test_resolved_tensor_parallel_size_of_sglang_is_a_counter_of_run(make_server, replayer, fake_engine):
    fake_engine.answers["/server_info"] = httpx.Response(200, json={"tp_size": 2})
    assert replayer().run(make_server(sglang("m")), WORKLOAD, 0).counters["tensor_parallel"] == 2.0


def test_progress_is_passed_on(make_server, replayer):
    seen = []
    replayer().run(make_server(), WORKLOAD, 0, lambda progress, plan: seen.append((progress, plan)))
    ((progress, plan),) = seen
    assert isinstance(progress, Progress)
    assert len(plan.requests) == 12


def test_warm_up_ends_when_two_batches_agree(make_server, replayer, fake_engine):
    warm_up(make_server(), WORKLOAD, replayer())
    plans = fake_engine.transport.plans
    assert len(plans) == 2
    assert all(len(plan.requests) == BATCH and plan.concurrency == 2 for plan in plans)
    assert all(request.at_ns is None for plan in plans for request in plan.requests)
    measured = {request.body for request in fake_engine.transport.plans[0].requests}
    replayer().run(make_server(), WORKLOAD, 0)
    assert not measured & {request.body for request in plans[-1].requests}  # nothing warmed is measured


def test_warm_up_waits_until_server_counts_requests(make_server, replayer, fake_engine):
    """Without the wait, the first run takes warm-up requests for requests of another program."""
    warm_up(make_server(), WORKLOAD, replayer())
    # The probe of an endpoint; then before the first batch, and after the last.
    assert fake_engine.paths == ["/v1/completions", "/metrics", "/metrics"]


def test_server_that_never_becomes_steady_ends_warm_up_with_error(make_server, replayer, fake_engine):
    def slow_down():
        fake_engine.ttft_ms *= 2

    fake_engine.on_replay = slow_down
    with pytest.raises(EngineError, match="did not become steady"):
        warm_up(make_server(), WORKLOAD, replayer())
    assert len(fake_engine.transport.plans) == MOST_BATCHES


def test_failed_warm_up_request_raises_engine_error(make_server, replayer, fake_engine):
    fake_engine.tokens = 3
    with pytest.raises(EngineError, match=r"of \d warm-up requests failed \(\d × wrong length; first: "):
        warm_up(make_server(), WORKLOAD, replayer())


def with_header(exchange, name):
    """The exchange with a header that names the replica."""
    line = f"X-Pod: {name}\r\n".encode()
    sizes = exchange.read_bytes[:]
    sizes[0] += len(line)
    return replace(exchange, data=exchange.data.replace(b"\r\n", b"\r\n" + line, 1), read_bytes=sizes)


def service(fake_engine, make_server, names, header="X-Pod"):
    """A service without metrics pages whose answers name these replicas in turn."""
    fake_engine.answers["/metrics"] = httpx.Response(404)
    exchanges = fake_engine.exchanges
    fake_engine.transport = ScriptedTransport(lambda plan: [
        with_header(exchange, names[number % len(names)]) for number, exchange in enumerate(exchanges(plan))])
    return make_server(endpoint("http://127.0.0.1:8000", model="m", replica_header=header))


def test_header_of_answers_gives_counters_of_each_replica(make_server, replayer, fake_engine):
    server = service(fake_engine, make_server, ["a", "b"])
    run = replayer().run(server, WORKLOAD, 0)
    assert {name: counters["requests_finished"] for name, counters in run.replicas.items()} == {"a": 6, "b": 6}
    assert run.replicas["a"]["tpot_s_sum"] > 0
    assert run.counters["replica_largest_computed_tokens"] == 6 * (8 + 5)


@pytest.mark.parametrize(("names", "header", "problem"), [
    (["a"], "X-Other", "No answer of .* has the header 'x-other'"),
    (list("abcdefghijkl"), "X-Pod", "The header 'x-pod' has 12 values in 12 answers"),
])
def test_header_that_names_no_replica_is_an_error(make_server, replayer, fake_engine, names, header, problem):
    server = service(fake_engine, make_server, names, header)
    with pytest.raises(EngineError, match=problem):
        replayer().run(server, WORKLOAD, 0)


def answer_with(fake_engine, data, ending=Ending.COMPLETE):
    """Each request gets these bytes as its answer."""
    exchanges = fake_engine.exchanges
    fake_engine.transport = ScriptedTransport(lambda plan: [
        replace(exchange, data=data, read_bytes=type(exchange.read_bytes)("q", [len(data)]),
                read_ns=exchange.read_ns[:1], ending=ending) for exchange in exchanges(plan)])


@pytest.mark.parametrize("allowed", [False, True])
def test_generated_text_of_a_defective_answer_is_shown_only_where_allowed(make_server, replayer, fake_engine, allowed):
    answer_with(fake_engine, b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nlive ans\'wer")
    run = replayer(quotes_answers=allowed).run(make_server(), WORKLOAD, 0)
    details = {record.detail for record in run.records}
    assert all("no server-sent event in the answer" in detail for detail in details)
    assert all(("live" in detail) is allowed for detail in details)


def test_server_whose_process_ends_after_its_first_errors_is_named_in_the_warm_up(
    make_server, replayer, fake_engine, fake_process, monkeypatch
):
    """vLLM answers with errors for some seconds after its engine process has died."""
    server = make_server(vllm("m"), process=fake_process)

    def wait_death(timeout_s):
        fake_process.ended = "signal 9 (SIGKILL)" if timeout_s >= 1 else None
        return fake_process.ended is not None

    monkeypatch.setattr(server.unit, "wait_death", wait_death)
    answer_with(fake_engine, b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nno")
    with pytest.raises(ServerDied, match="The vllm server died: signal 9"):
        warm_up(server, WORKLOAD, replayer())


def test_prompt_that_a_started_server_counts_otherwise_than_its_words_is_an_error(
    make_server, replayer, fake_process, monkeypatch
):
    class Tokenizer:
        name = "words"
        words = ("a b c",)  # three words for each token

    server = make_server(vllm("m"), process=fake_process, tokenizer=Tokenizer())
    monkeypatch.setattr(type(server), "api", replace(server.api, text=True))
    with pytest.raises(EngineError, match=r"the server counts 47 tokens for a prompt of 24 words"):
        warm_up(server, WORKLOAD, replayer())
