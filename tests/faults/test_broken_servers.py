"""Servers that answer each request and make the run invalid: other model, invented counts, warm cache, early garbage.

Each is a real server on loopback that shows no counters, measured as an endpoint through the whole session.
"""

import json
import random
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, cycle

import pytest

from pytest_llmperf import Perf, Verdict, closed, endpoint, random_tokens
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import EngineError, WrongServer
from pytest_llmperf.results.causes.limits import TokensUnverified
from pytest_llmperf.results.causes.runs import AnswersNotStreamed, OtherModel, TokenCountsDisagree
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import Hardware
from pytest_llmperf.testing.scripted_server import ScriptedServer
from pytest_llmperf.testing.streams import Send, StreamShape, event, http_chunk, plain, streamed

TOKENS = 40  # more than the warm-up asks for
WORKLOAD = random_tokens(input=8, output=TOKENS, arrivals=closed(2), requests=12)
ONE_TOKEN = {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}


@contextmanager
def serving(stream):
    """The URL of a server whose streams `stream` writes, from the JSON body of each request."""

    def answer(_number, received):
        path = received.head.split(b" ")[1].decode()
        if path == "/v1/models":
            return plain(200, json.dumps({"data": [{"id": "m"}]}).encode())
        if path != "/v1/completions":
            return plain(404)
        body = json.loads(received.body)
        return stream(body) if body.get("stream") else plain(200, json.dumps(ONE_TOKEN).encode())

    with ScriptedServer(answer=answer) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measures an endpoint in a session of its own, and gives the results of some checks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of the machine of its own
    settings = Settings(send_delay_p99_limit_ms=5000.0, stamp_error_p99_limit_ms=5000.0, clock_gap_limit_ms=60_000.0)

    def measured(url, *slos, coalesced_limit=settings.coalesced_limit, **spec):
        own = replace(settings, coalesced_limit=coalesced_limit)
        session = PerfSession(own, tmp_path, Hardware(), lambda _status: None, rng=random.Random())
        try:
            perf = Perf(begin_execution(session, "test", "cpu"))
            return perf.check(perf.measure(endpoint(url, model="m", **spec), WORKLOAD, runs=2), *slos)
        finally:
            session.close()

    return measured


def shape_of(body, **fields):
    """A stream of as many tokens as were asked for, one in each chunk."""
    return StreamShape((1,) * body["max_tokens"], **({"model": "m"} | fields))


def of_another_model(body):
    return shape_of(body, model="m-2024-08-06").events()


def half_of_the_tokens(body):
    """As many chunks as half of the tokens that the usage says; no counts per chunk."""
    tokens = body["max_tokens"]
    return StreamShape((2,) * (tokens // 2) if tokens > 1 else (1,), continuous_usage=False, model="m").events()


def only_when_measured(bad):
    """Streams of a server that is sound while it is warmed up."""

    def stream(body):
        return streamed(bad(body) if body["max_tokens"] == TOKENS else shape_of(body).events(), itl_s=0.001)

    return stream


def test_answers_of_another_model_are_an_error(measured):
    with serving(only_when_measured(of_another_model)) as url:
        (result,) = measured(url, "error_rate == 0")
    assert result.verdict is Verdict.ERROR
    fault = result.problems[0].fault
    assert isinstance(fault, OtherModel)
    assert (fault.answers, fault.names, fault.asked_model) == (12, ["m-2024-08-06"], "m")


def test_other_model_is_found_before_the_first_run(measured):
    with serving(lambda body: streamed(of_another_model(body))) as url, pytest.raises(WrongServer) as raised:
        measured(url, "error_rate == 0")
    assert "6 of 6 answers came from model 'm-2024-08-06', and 'm' was requested" in str(raised.value)


def test_declared_alias_is_the_model_that_was_asked_for(measured):
    with serving(lambda body: streamed(of_another_model(body), itl_s=0.001)) as url:
        (result,) = measured(url, "error_rate == 0", model_alias=["m-latest", "m-2024-08-06"])
    assert result.verdict is Verdict.PASS, result


def test_unconfirmed_usage_leaves_token_metrics_inconclusive(measured):
    """A proxy sends 20 tokens and says 40: half the TPOT."""
    per_token = ["tpot_p50 <= 500ms", "itl_p99 <= 500ms", "output_throughput >= 0.1/s", "goodput(tpot <= 1s) >= 0.1/s"]
    others = ["ttft_p50 <= 5s", "e2el_p50 <= 5s", "error_rate == 0"]
    with serving(lambda body: streamed(half_of_the_tokens(body), ttft_s=0.02, itl_s=0.002)) as url:
        results = measured(url, *per_token, *others, coalesced_limit=1.0)  # a busy machine reads some chunks together
    assert [result.verdict for result in results] == [Verdict.INCONCLUSIVE] * 4 + [Verdict.PASS] * 3
    assert all(isinstance(result.cause, TokensUnverified) for result in results[:4])
    assert results[4].numbers["hardware_bound_unknown"]


def test_prompts_of_an_earlier_session_are_not_sent_again(measured):
    seen = set()

    def caching(body):
        hit = tuple(body["prompt"]) in seen
        seen.add(tuple(body["prompt"]))
        return streamed(shape_of(body).events(), ttft_s=0.0 if hit else 0.2, itl_s=0.001)

    with serving(caching) as url:
        verdicts = [measured(url, "ttft_p50 <= 100ms")[0].verdict for _ in range(2)]
    assert verdicts == [Verdict.FAIL, Verdict.FAIL]


def with_text_after_the_last_token(body):
    shape = shape_of(body)
    more = event({"choices": [{"index": 0, "text": " more"}], "usage": shape.usage(body["max_tokens"])})
    events = shape.events()
    return [*events[:-2], *[more] * 8, *events[-2:]]


def test_more_text_than_usage_counts_is_an_error_under_any_error_rate_limit(measured):
    with serving(only_when_measured(with_text_after_the_last_token)) as url:
        (result,) = measured(url, "error_rate <= 99%")
    problem = result.problems[0]
    assert (result.verdict, type(problem.fault)) == (Verdict.ERROR, TokenCountsDisagree)
    assert problem.fault.answers == 12
    assert "8 chunks bring 40 characters" in problem.fault.first


def aborting(body):
    """Two tokens in two of three answers, as of an engine that gives up; no length is forced."""
    events = shape_of(body).events()
    if next(aborting.numbers) % 3 == 0:
        return events
    return [*shape_of({"max_tokens": 2}).events()[:1], events[0].replace(b"null", b'"abort"'), *events[-1:]]


def with_ids(ids):
    """Answers with an id of their own, or with these ids in turn while it is measured."""
    own, given = count(), cycle(ids)

    def events(body):
        name = next(given) if body["max_tokens"] == TOKENS else f"own-{next(own)}"
        return [data.replace(b'"cmpl-0"', json.dumps(name).encode()) for data in shape_of(body).events()]

    return lambda body: streamed(events(body), itl_s=0.001)


def test_aborted_answers_are_failed_requests(measured):
    aborting.numbers = count()
    with serving(only_when_measured(aborting)) as url:
        results = measured(url, "error_rate == 0", "e2el_p50 <= 10ms", dialect="openai")
    assert [result.verdict for result in results] == [Verdict.FAIL, Verdict.FAIL]


def test_answers_with_the_id_of_an_earlier_answer_are_failed_requests(measured):
    with serving(with_ids(["a", "b", "b", "c"])) as url:
        (result,) = measured(url, "error_rate == 0")
    assert result.verdict is Verdict.FAIL
    with serving(with_ids(f"other-{at}" for at in range(24))) as url:
        (result,) = measured(url, "error_rate == 0")
    assert result.verdict is Verdict.PASS


def test_text_beyond_the_usage_ends_the_warm_up(measured):
    with (
        serving(lambda body: streamed([*shape_of(body).events(), *shape_of(body).events()[:4]])) as url,
        pytest.raises(EngineError) as raised,
    ):
        measured(url, "error_rate == 0")
    assert str(raised.value).startswith(
        "6 of 6 warm-up requests failed (6 × token counts disagree; first: 4 events follow [DONE])")


def test_empty_chunk_at_once_is_not_the_first_token(measured):
    empty = event({"model": "m", "choices": [{"index": 0, "text": ""}]})

    def early(body):
        head, *rest = streamed(half_of_the_tokens(body), ttft_s=0.2, itl_s=0.001)
        return [head, Send(http_chunk(empty)), *rest]

    with serving(early) as url:
        (result,) = measured(url, "ttft_p50 <= 100ms")
    assert result.verdict is Verdict.FAIL


def test_whole_answer_at_once_shows_no_first_token(measured):
    def at_once(body):
        shape = StreamShape((body["max_tokens"],), model="m", text="#" * body["max_tokens"])
        return streamed(shape.events(), ttft_s=0.03)  # an answer in less than 1 ms is never steady on a busy machine

    with serving(at_once) as url:
        first, whole = measured(url, "ttft_p50 <= 5s"), measured(url, "e2el_p50 <= 5s")
    assert first[0].verdict is Verdict.ERROR
    problem = first[0].problems[0]
    assert (type(problem.fault), problem.fault.answers) == (AnswersNotStreamed, 12)
    assert whole[0].verdict is Verdict.PASS
