"""`perf.max_rate` on a fake server whose latency follows the offered rate."""

import random
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest

from pytest_llmperf import Perf, Verdict, closed, endpoint, multi_turn, poisson, random_tokens, vllm
from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import LoadError, RunInvalid, SloError, SpecError
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.status import Measuring, Note
from pytest_llmperf.results.sentences import estimate_text
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import Hardware
from pytest_llmperf.testing.scripted_transport import make_exchange

KNEE = 20.0
WORKLOAD = random_tokens(input=8, output=5, arrivals=poisson(8), requests=200)


@pytest.fixture
def statuses():
    return []


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def perf(tmp_path, fake_engine, statuses, clock):
    def slow_beyond_the_knee(_plan):
        due_ns = [request.at_ns for request in _plan.requests if request.at_ns is not None]
        rate = (len(due_ns) - 1) / max(due_ns) * 1e9 if len(due_ns) > 1 else 0
        fake_engine.ttft_ms = 50.0 if rate < KNEE else 900.0
        return fake_engine.exchanges(_plan)

    fake_engine.transport._exchanges = slow_beyond_the_knee
    now = datetime(2026, 1, 2, tzinfo=UTC)
    session = PerfSession(Settings(clock_gap_limit_ms=60_000.0), tmp_path, Hardware(), statuses.append, clock=clock,
                          transport=fake_engine.transport, now=lambda: now, rng=random.Random(5))
    execution = begin_execution(session, "tests/test_a.py::test_x", "cpu")
    yield Perf(execution)
    execution.close()
    session.close()


def test_max_rate_search_finds_knee_and_returns_measurement(perf, make_server, statuses, clock):
    measurement = perf.max_rate(make_server(), WORKLOAD, slo="ttft_p95 <= 500ms", cooldown_s=7)
    (rate,) = measurement.values("max_rate")
    assert KNEE / 1.05 <= rate <= KNEE * 1.01  # arrivals of a seed end at n / rate, so the rate shown is 1 % off
    (result,) = perf.check(measurement, "max_rate >= 15/s")
    assert estimate_text(result) == f"{result.facts['proven_rate']:.4g}/s, proven"
    points = perf._execution.series[0].results[0].points
    assert clock.now_ns() == 7e9 * (len(points) - 1)  # a rest between two rates
    assert [status.text for status in statuses if isinstance(status, Note)][:2] == ["8/s: within the SLO",
                                                                               "16/s: within the SLO"]
    assert len(perf.measurements) == 1 + len(points)  # every rate is kept, too


def test_search_shows_remaining_pauses_once_limit_is_bracketed(perf, make_server, statuses):
    """Runs take no time on this clock, so the pauses between the rates are the least time that is left."""
    perf.max_rate(make_server(), WORKLOAD, slo="ttft_p95 <= 500ms", cooldown_s=7)
    search_by_rate = {status.label: status.search for status in statuses if isinstance(status, Measuring)}
    least_s = [search and search.least_s for search in search_by_rate.values()]
    assert least_s == [None, None, None, 28, 21, 14, 7, 0]
    assert all(search.most_s >= search.least_s for search in search_by_rate.values() if search is not None)


def test_repeated_max_rate_search_gives_equal_rate(perf, make_server):
    first, second = (perf.max_rate(make_server(), WORKLOAD, slo="ttft_p95 <= 500ms").values("max_rate") for _ in "ab")
    assert first == second


def test_each_max_rate_search_uses_separate_seeds(perf, make_server, fake_engine):
    perf.max_rate(make_server(vllm("m")), WORKLOAD, slo="ttft_p95 <= 500ms", runs=2)
    bodies = {plan.requests[0].body for plan in fake_engine.transport.plans if plan.concurrency is None}
    assert len(bodies) == 4  # two searches, two runs a rate, whatever the rates


def test_max_rate_search_without_cache_reset_sends_each_prompt_once(perf, make_server, fake_engine):
    perf.max_rate(make_server(endpoint("http://127.0.0.1:1", model="m")), WORKLOAD, slo="ttft_p95 <= 500ms", runs=2)
    bodies = [plan.requests[0].body for plan in fake_engine.transport.plans if plan.concurrency is None]
    assert len(set(bodies)) == len(bodies) > 8


def test_search_within_a_limit_on_unverified_token_counts_is_an_error(perf, make_server, fake_engine):
    fake_engine.counts_per_chunk = False
    fake_engine.answers["/metrics"] = httpx.Response(404)
    with pytest.raises(LoadError, match=r"at 8/s nothing can be proven: unverified token count: tpot_p95"):
        perf.max_rate(make_server(), WORKLOAD, slo="tpot_p95 <= 500ms")


@pytest.fixture
def too_brief(perf, make_server, statuses):
    """Search with a workload; gives the rate as it is said, and the notes on loads that were over too soon."""

    def too_brief(workload):
        (rate,) = perf.max_rate(make_server(), workload, slo="ttft_p50 <= 500ms").values("max_rate")
        notes = [status.text for status in statuses if isinstance(status, Note)]
        return rate, [note for note in notes if "had little time to grow" in note]

    return too_brief


@pytest.mark.parametrize(("requests", "notes"), [(20, 1), (200, 0)])
def test_load_too_short_for_queue_growth_is_reported(too_brief, requests, notes):
    """An answer takes 90 ms here, so twenty of them last for 1.8 s."""
    rate, said = too_brief(random_tokens(input=8, output=5, arrivals=poisson(8), requests=requests))
    assert len(said) == notes
    if said:
        assert said[0].startswith(f"{rate:.4g}/s: all 20 requests were sent within 0.9")
        assert 20 < int(said[0].rpartition("Send ")[2].partition(" ")[0]) < 50


@pytest.mark.parametrize(("conversations", "notes"), [(20, 1), (200, 0)])
def test_conversations_but_not_turns_arrive_at_tested_rate(too_brief, conversations, notes):
    """In 2 s at 10/s, and 50 ms an answer: 40 turns would last longer than twenty answers, 20 conversations do not."""
    rate, said = too_brief(multi_turn(conversations=conversations, turns=2, input=8, output=5, arrivals=poisson(8)))
    assert len(said) == notes
    if said:
        assert said[0].startswith(f"{rate:.4g}/s: all 20 conversations began within {2 * 20 / rate:.2g} s")


def test_max_rate_of_conversations_counts_requests(perf, make_server):
    """The knee is at 20 conversations/s, each of three requests."""
    talks = multi_turn(conversations=200, turns=3, input=8, output=5, arrivals=poisson(8))
    measurement = perf.max_rate(make_server(), talks, slo="ttft_p95 <= 500ms")
    assert 3 * KNEE / 1.05 <= measurement.value("max_rate") <= 3 * KNEE * 1.01
    assert find("max_rate").formula_id == "max_rate.2"
    tried = [
        measurement.conditions["tried_rate"]
        for measurement in perf.measurements
        if "tried_rate" in measurement.conditions
    ]
    assert tried[:2] == ["24/s", "48/s"]


def open_search(perf, make_server):
    """A search that proves nothing above 8/s."""
    result = perf.max_rate(make_server(), WORKLOAD, slo="ttft_p95 <= 500ms")
    capacity = perf._execution.series[0]
    points = [point for point in capacity.results[0].points if point.rate <= 8 or point.verdict is Verdict.FAIL]
    capacity.results[0] = replace(capacity.results[0], points=tuple(points))
    run = replace(result.runs[0], counters=capacity._counters(capacity.results[0]))
    capacity.measurement = replace(result, runs=(run,), metrics=(run.metrics,))
    return capacity


def test_check_of_an_open_search_is_undecided_and_sends_no_request(perf, make_server, fake_engine):
    measurement = open_search(perf, make_server).finished
    plans = len(fake_engine.transport.plans)
    assert perf.check(measurement, "max_rate >= 12/s")[0].verdict is Verdict.INCONCLUSIVE
    assert len(fake_engine.transport.plans) == plans


def test_rate_that_the_search_left_open_is_tried(perf, make_server, fake_engine):
    capacity = open_search(perf, make_server)
    plans = len(fake_engine.transport.plans)
    capacity.settle(12)
    assert len(fake_engine.transport.plans) == plans + 2
    assert capacity.results[0].points[-1].rate == 12
    assert capacity.finished.value("max_rate_proven") == 12
    assert perf.check(capacity.finished, "max_rate >= 12/s")[0].verdict is Verdict.PASS


def test_rate_that_the_search_decided_is_not_tried_again(perf, make_server, fake_engine):
    capacity = open_search(perf, make_server)
    plans = len(fake_engine.transport.plans)
    capacity.settle(7)
    assert len(fake_engine.transport.plans) == plans


def test_try_rates_are_tried_after_the_search(perf, make_server):
    measurement = perf.max_rate(make_server(), WORKLOAD, slo="ttft_p95 <= 500ms", precision=0.5, try_rates=[18])
    assert {point.rate for point in perf._execution.series[0].results[0].points} >= {18}
    assert perf.check(measurement, "max_rate >= 18/s")[0].verdict is not Verdict.INCONCLUSIVE
    assert len(perf.extend(measurement, 1).runs) == 2


def test_max_rate_search_warms_server_once(perf, make_server, fake_engine):
    perf.max_rate(make_server(), WORKLOAD, slo="ttft_p95 <= 500ms")
    assert sum(plan.concurrency is not None for plan in fake_engine.transport.plans) == 2


def test_slo_that_no_rate_meets_raises_load_error(perf, make_server):
    with pytest.raises(LoadError, match="not even"):
        perf.max_rate(make_server(), WORKLOAD, slo="ttft_p95 <= 1ms")


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"workload": random_tokens(input=8, output=5, arrivals=closed(2), requests=9)}, SpecError),
        ({"slo": ()}, SpecError),
        ({"slo": "ttft <= 500ms"}, SloError),
        ({"precision": 0}, SpecError),
        ({"precision": 1e-16}, SpecError),
        ({"precision": "4%"}, SpecError),
        ({"cooldown_s": float("nan")}, SpecError),
        ({"cooldown_s": -1}, SpecError),
        ({"runs": 0}, SpecError),
        ({"try_rates": "12/s"}, SpecError),
        ({"try_rates": [0]}, SpecError),
        ({"try_rates": 12}, SpecError),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_invalid_max_rate_arguments_are_refused_before_first_request(perf, make_server, fake_engine, changed, error):
    arguments = {"workload": WORKLOAD, "slo": "ttft_p95 <= 500ms"} | changed
    with pytest.raises(error):
        perf.max_rate(make_server(), **arguments)
    assert fake_engine.transport.plans == []


def test_claim_and_claim_max_rate_refuse_each_others_metrics(perf):
    sides = vllm("m"), vllm("m", seed=1), WORKLOAD
    with pytest.raises(SpecError, match=r"max_rate needs an SLO: perf\.claim_max_rate\("):
        perf.claim(*sides, "max_rate(a) / max_rate(b) >= 1.2")
    with pytest.raises(SpecError, match="this claim is about ttft_p50, and not about max_rate"):
        perf.claim_max_rate(*sides, "ttft_p50(b) / ttft_p50(a) >= 3", slo="ttft_p95 <= 500ms")


@pytest.mark.thorough
def test_max_rate_claim_between_equal_servers_fails(perf, fake_engine, make_server, monkeypatch):
    monkeypatch.setattr(perf._execution.session.pool, "acquire", lambda spec, *_args, **_kwargs: make_server(spec))
    a, b = endpoint("http://h:1", model="m"), endpoint("http://h:2", model="m")
    results = perf.claim_max_rate(a, b, WORKLOAD, "max_rate(a) / max_rate(b) >= 2", slo="ttft_p95 <= 500ms").results
    assert results[0].verdict is Verdict.FAIL  # equal servers
    assert estimate_text(results[0]) == "1×"


@pytest.mark.parametrize("slo", ["slo_attainment(ttft <= 500ms) >= 80%", "goodput(ttft <= 500ms) >= 1/s"])
def test_undecided_rate_is_classified_by_measured_value(perf, make_server, fake_engine, slo):
    """Of few requests most rates prove nothing."""
    def slow_beyond_the_knee(plan):
        due_ns = [request.at_ns for request in plan.requests if request.at_ns is not None]
        rate = (len(due_ns) - 1) / max(due_ns) * 1e9 if len(due_ns) > 1 else 0
        fake_engine.ttft_ms = 900.0
        slow = fake_engine.exchanges(plan)
        fake_engine.ttft_ms = 50.0
        counted = fake_engine.finished, fake_engine.prompt, fake_engine.generated
        fast = fake_engine.exchanges(plan)
        fake_engine.finished, fake_engine.prompt, fake_engine.generated = counted  # each was sent once
        every = 1 if rate > KNEE else 7
        return [late if late.index % every == 0 else soon for soon, late in zip(fast, slow, strict=True)]

    fake_engine.transport._exchanges = slow_beyond_the_knee
    few = random_tokens(input=8, output=5, arrivals=poisson(8), requests=14)
    (rate,) = perf.max_rate(make_server(), few, slo=slo).values("max_rate")
    points = perf._execution.series[0].results[0].points
    open_points = [point for point in points if point.verdict is Verdict.INCONCLUSIVE]
    assert open_points or slo.startswith("goodput")  # which has an interval over two runs
    assert KNEE / 1.2 <= rate <= KNEE * 1.1


def test_missed_slo_decides_rate_although_other_metric_is_unavailable(perf, make_server):
    """An overloaded server may have no value of the other: that is no reason to give the search up."""
    with pytest.raises(LoadError, match="not even"):
        perf.max_rate(make_server(), WORKLOAD, slo=["ttft_p95 <= 1ms", "lmcache_hit_rate >= 50%"])


def test_a_limit_that_cannot_be_judged_ends_the_search(perf, make_server):
    with pytest.raises(LoadError, match=r"^at 8/s: lmcache_hit_rate is unavailable"):
        perf.max_rate(make_server(), WORKLOAD, slo="lmcache_hit_rate >= 50%")


@pytest.mark.parametrize("slo", ["ttft_p50 <= 500ms", "tpot_mean <= 40ms", "e2el_mean <= 1s"])
def test_requests_that_overload_refuses_are_not_within_a_mean_or_median(perf, make_server, fake_engine, slo):
    def refused_beyond_the_knee(plan):
        due_ns = [request.at_ns for request in plan.requests if request.at_ns is not None]
        rate = (len(due_ns) - 1) / max(due_ns) * 1e9 if len(due_ns) > 1 else 0
        answers = fake_engine.exchanges(plan)
        if rate < KNEE:
            return answers
        return [refused(answer) if answer.index % 5 < 3 else answer for answer in answers]

    def refused(answer):
        at_ns = answer.intended_ns
        data = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"
        return make_exchange([(at_ns + 1, data)], index=answer.index, intended_ns=at_ns, sent_ns=at_ns)

    fake_engine.transport._exchanges = refused_beyond_the_knee
    (rate,) = perf.max_rate(make_server(), WORKLOAD, slo=slo).values("max_rate")
    assert KNEE / 1.05 <= rate <= KNEE * 1.01


def tried(perf):
    """The tried rates: rate → number of runs."""
    return [(measurement.conditions["tried_rate"], len(measurement.runs)) for measurement in perf.measurements
            if "tried_rate" in measurement.conditions]


def test_quick_search_finds_knee_with_few_runs_per_rate(perf, make_server):
    measurement = perf.max_rate(make_server(), WORKLOAD, slo="ttft_p95 <= 500ms", precision=0.2, runs=3, quick=True)
    for rate in measurement.values("max_rate"):
        assert KNEE / 1.2 <= rate <= KNEE * 1.01
    rates = tried(perf)
    assert {runs for _, runs in rates} <= {1, 2}
    assert len({rate for rate, _ in rates}) == len(rates)  # the searches are displaced


@pytest.mark.parametrize(("quick", "runs"), [(True, [1, 1]), (False, [2])])
def test_quick_search_repeats_rate_with_an_invalid_run_once(perf, make_server, fake_engine, statuses, quick, runs):
    server, disturbed = make_server(vllm("m")), []

    def disturb():
        if perf.measurements and not disturbed:  # in the first run after the warm-up
            disturbed.append(True)
            fake_engine.finished += 100  # of somebody else

    fake_engine.on_replay = disturb
    if quick:
        perf.max_rate(server, WORKLOAD, slo="ttft_p95 <= 500ms", precision=0.2, quick=True)
        assert any("This rate is measured again" in status.text for status in statuses if isinstance(status, Note))
    else:
        with pytest.raises(RunInvalid):
            perf.max_rate(server, WORKLOAD, slo="ttft_p95 <= 500ms", precision=0.2)
    assert [count for rate, count in tried(perf) if rate == tried(perf)[0][0]] == runs


def test_quick_search_ends_where_only_a_burst_meets_the_slo(perf, make_server):
    few = random_tokens(input=8, output=5, arrivals=poisson(400), requests=20)  # an answer takes 90 ms
    with pytest.raises(LoadError, match=r"At 400/s the SLOs are met by a burst: all 20 requests were sent within"):
        perf.max_rate(make_server(), few, slo="ttft_p50 <= 1000ms", quick=True)


def test_search_ends_at_rate_to_beat_that_server_does_not_serve(perf, make_server):
    with pytest.raises(LoadError, match=r"Slower than the rate to beat: over the SLOs at 40/s \(proven\)"):
        perf.max_rate(make_server(), WORKLOAD, slo="ttft_p95 <= 500ms", quick=True, to_beat=40.0)
    assert [rate for rate, _ in tried(perf)] == ["40/s"]
