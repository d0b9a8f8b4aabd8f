"""Each validity check fails on its condition and names a remedy. A check is skipped if the test judges the same metric
itself."""

from dataclasses import replace

import pytest

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.validity import judged_by_comparison, judged_by_requirements, validity_problems
from pytest_llmperf.model.exchange import LoadReport
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.results.causes.runs import (
    AnswersNotStreamed,
    ArrivalsStampedLate,
    CacheNotEmpty,
    ChunksCoalesced,
    ForeignRequests,
    LmcacheUnused,
    LoadProcessSuspended,
    OtherModel,
    Preemptions,
    ReplicaIdle,
    RequestsFailed,
    RequestsSentLate,
    ServerRestarted,
    ServiceScaled,
    SlotsEmpty,
    TokenCountsDisagree,
    TokensMiscounted,
)
from pytest_llmperf.results.check import Problem
from pytest_llmperf.results.sentences import problem_text
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.testing.records import make_record

SETTINGS = Settings()


def records(count=20, **fields):
    return [make_record(index, intended_ms=100 * index, **fields) for index in range(count)]


@pytest.fixture
def problems(make_run, make_measurement):
    """Problems of one run; keywords of the measurement start with `m_`."""

    def problems(named=(), *, settings=SETTINGS, **fields):
        of_measurement = {name[2:]: fields.pop(name) for name in list(fields) if name.startswith("m_")}
        return validity_problems(make_measurement(make_run(**fields), **of_measurement), set(named), settings)

    return problems


def states(problem, cause, **facts):
    """Whether a problem has this cause and these facts. sentences.txt has the wording of each cause."""
    place = {"run": problem.run, "seed": problem.seed}
    return isinstance(problem.fault, cause) and (problem.fault.facts | place).items() >= facts.items()


def test_valid_run_has_no_problems(problems):
    assert problems(["ttft_p99", "itl_p99"]) == []


def test_valid_run_without_counters_has_no_problems(problems):
    assert problems(counters=False, expected_hit_rate=0.0) == []


@pytest.mark.parametrize("judging", ["error_rate", "goodput", "slo_attainment"])
def test_failed_requests_invalidate_run_unless_test_judges_failures(problems, judging):
    bad = [*records(18), make_record(18, outcome=Outcome.RESET), make_record(19, outcome=Outcome.TIMEOUT)]
    (problem,) = problems(["ttft_p99"], records=bad)
    assert problem == Problem(RequestsFailed(2, 20, "reset", "1 × reset, 1 × timeout"), run=1, seed=0)
    assert problems([judging], records=bad) == []


def test_failures_are_listed_by_reason_with_the_most_frequent_first(problems):
    slow = "timeout (first_byte_timeout_s = 120)"
    reasons = ["HTTP 500", slow, "HTTP 503", slow, slow, "HTTP 502", "HTTP 504", "HTTP 505"]
    failed = [replace(make_record(12 + position, outcome=Outcome.TIMEOUT), reason=reason)
              for position, reason in enumerate(reasons)]
    (problem,) = problems([], records=[*records(12), *failed])
    assert problem.fault.text == f"3 × {slow}, 1 × HTTP 500, 1 × HTTP 503, 1 × HTTP 502, 1 × HTTP 504, 1 × others"


def test_refused_requests_are_counted_apart_from_other_failures(problems):
    limited = [*records(17), *(make_record(index, outcome=Outcome.RATE_LIMITED) for index in (17, 18))]
    bad = [*limited, make_record(19, outcome=Outcome.RESET)]
    (problem,) = problems(["ttft_p99"], records=bad)
    assert states(problem, RequestsFailed, answers=3, rate_limited_answers=2)
    (problem,) = problems(["error_rate"], records=bad)
    assert states(problem, RequestsFailed, answers=2, rate_limited_answers=2)
    (problem,) = problems(["rate_limited_rate"], records=bad)
    assert states(problem, RequestsFailed, answers=1)
    assert "rate_limited_answers" not in problem.fault.facts
    assert problems(["error_rate", "rate_limited_rate"], records=bad) == []


@pytest.mark.parametrize("named", [(), ("error_rate",)])
def test_answers_that_contradict_themselves_are_judged_by_no_limit(problems, named):
    broken = make_record(19, outcome=Outcome.COUNTS_DISAGREE, detail="5 content chunks, usage says 4 tokens")
    (problem,) = problems(named, records=[*records(19), broken])
    assert states(problem, TokenCountsDisagree, answers=1, of_answers=20, first=broken.detail)


def of_models(*names):
    return [replace(record, models=names) for record in records()]


@pytest.mark.parametrize(("models", "names"), [
    ((), ("m",)), (("m",), ("m",)), (("m-1",), ("m", "m-1")), (("m", "m-1"), ("m", "m-1")), (("m-1",), ()),
])
def test_answers_of_requested_or_declared_model_are_valid(problems, models, names):
    assert problems(["error_rate"], records=of_models(*models), model_names=names) == []


def test_answers_of_another_model_make_the_run_invalid(problems):
    (problem,) = problems(["error_rate"], records=of_models("m", "x" * 200), model_names=("m", "m-1"))
    assert states(problem, OtherModel, answers=20, of_answers=20, names=["x" * 200, "m-1"], asked_model="m")
    assert f"'{'x' * 80}…'" in problem_text(problem)


@pytest.mark.parametrize("judging", ["send_delay_p99", "send_delay_max"])
def test_late_load_generator_invalidates_run_unless_test_judges_send_delay(problems, judging):
    late = records(send_delay_ms=11.0)
    (problem,) = problems(records=late)
    assert states(problem, RequestsSentLate, measured_ms=11.0, limit_ms=10.0)
    assert problems([judging], records=late) == []
    assert problems(settings=Settings(send_delay_p99_limit_ms=12.0), records=late) == []


def test_judging_mean_send_delay_keeps_check_of_p99_send_delay(problems):
    (problem,) = problems(["send_delay_mean"], records=records(send_delay_ms=11.0))
    assert states(problem, RequestsSentLate, measured_ms=11.0)


def test_answers_in_one_piece_have_no_time_per_token(problems):
    whole = [*records(18), make_record(18, chunk_tokens=[10]), make_record(19, chunks=10, itl_ms=0.0)]
    for judging in ("tpot_mean", "ttft_p50"):
        (problem,) = problems([judging], records=whole)
        assert states(problem, AnswersNotStreamed, answers=2, of_answers=20, limit=0.05)
    assert problems(["e2el_p50"], records=whole) == []
    assert problems(["tpot_mean"], records=records(), settings=Settings(coalesced_limit=0.0)) == []
    single = records(chunks=1)
    assert problems(["tpot_mean"], counters=False, records=single) == []


def test_only_a_limit_from_above_judges_an_excess():
    texts = ["prefix_cache_hit_rate >= 20%", "error_rate <= 1%", "goodput(tpot <= 5ms) >= 1/s"]
    assert judged_by_requirements(map(parse_slo, texts)) == {"error_rate", "goodput", "tpot"}
    texts = ["prefix_cache_hit_rate <= 20%", "send_delay_p99 <= 5ms"]
    assert judged_by_requirements(map(parse_slo, texts)) == {"prefix_cache_hit_rate", "send_delay_p99"}
    assert judged_by_comparison(["prefix_cache_hit_rate", "tpot_mean"]) == {"tpot_mean"}


def load_report(**fields):
    sound = LoadReport(1, (0, 1), False, 1.0, 0, 100_000, None, 0, 0.2, 1 << 25)
    return replace(sound, **fields)


def test_valid_load_report_has_no_problems(problems):
    assert problems(load=load_report(turnaround_p99_ns=9_900_000, read_delay_p99_ns=50_000_000)) == []


def test_saturation_states_load_processes_and_first_remedies(problems):
    load = load_report(busy=0.97, read_delay_p99_ns=31_000_000)
    (problem,) = problems(records=records(send_delay_ms=11.0), load=load)
    assert states(problem, RequestsSentLate, load_processes=1, load_cpus=2, own_cpus=False, busy=0.97,
                  read_delay_ms=31.0)
    assert "Raise load_processes (now 1), give it a free core" in problem_text(problem)


def test_problem_of_unstamped_reads_does_not_name_read_delay(problems):
    late = load_report(kernel_stamped=0.0, stamp_error_p99_ns=6_000_000, read_delay_p99_ns=None)
    (problem,) = problems(load=late)
    assert states(problem, ArrivalsStampedLate, kernel_stamped=0.0)
    assert "read_delay_ms" not in problem.fault.facts


def test_idle_load_process_gets_advice_about_cpus_instead_of_processes(problems):
    (problem,) = problems(records=records(send_delay_ms=11.0), load=load_report(busy=0.1))
    assert "load_processes" not in problem_text(problem)
    (problem,) = problems(records=records(send_delay_ms=11.0), load=load_report(busy=0.1, own_cpus=True))
    assert "load_cpus" not in problem_text(problem)
    assert "Send from another host" in problem_text(problem)


@pytest.mark.parametrize("judging", ["send_delay_p99", "send_delay_max"])
def test_slow_refill_of_closed_loop_invalidates_run(problems, judging):
    """Closed loop: latency counts from the send, so a slow client would show nowhere else."""
    empty = load_report(turnaround_p99_ns=12_000_000, turnaround_total_ns=160_000_000)
    (problem,) = problems(load=empty)
    assert states(problem, SlotsEmpty, measured_ms=12.0, limit_ms=10.0, share_limit=0.01)
    assert problems([judging], load=empty) == [problem]  # a closed loop has no intended send time, so none is late
    assert problems(load=empty, settings=Settings(send_delay_p99_limit_ms=13.0)) == []


def test_single_pause_of_long_requests_leaves_run_valid(problems):
    """20 requests of 100 ms: their longest pause is the p99, and takes 0.65 % of the slots' time."""
    paused = load_report(turnaround_p99_ns=13_000_000, turnaround_total_ns=13_000_000)
    answers = [make_record(index, intended_ms=100 * index) for index in range(20)]
    taken_ns = sum(answer.ended_ns - answer.sent_ns for answer in answers)
    assert 0.001 < 13_000_000 / taken_ns < 0.01
    assert problems(records=answers, load=paused) == []


def test_late_stamps_invalidate_run(problems):
    late = load_report(kernel_stamped=0.25, stamp_error_p99_ns=6_000_000)
    (problem,) = problems(load=late)
    assert states(problem, ArrivalsStampedLate, measured_ms=6.0, limit_ms=5.0, kernel_stamped=0.25)
    assert problems(load=late, settings=Settings(stamp_error_p99_limit_ms=7.0)) == []


@pytest.mark.parametrize("asking", ["itl_p99", "itl_per_token_p50", "largest_stall_max"])
def test_coalesced_chunks_invalidate_gap_metrics_only(problems, asking):
    together = records(coalesced_chunks=3)
    (problem,) = problems([asking], records=together)
    assert states(problem, ChunksCoalesced, share=pytest.approx(1 / 3))
    assert problems(["ttft_p99", "tpot_mean"], records=together) == []
    assert problems([asking, "coalesced_share"], records=together) == []


def test_clock_gap_above_limit_invalidates_run(problems):
    (problem,) = problems(clock_gap_ms=1200.0)
    assert states(problem, LoadProcessSuspended, measured_ms=1200.0)
    assert problems(clock_gap_ms=900.0) == []


def test_server_restart_invalidates_run(problems):
    (problem,) = problems(restarted="its counters fell")
    assert states(problem, ServerRestarted, text="its counters fell")


def test_unexpected_cache_hits_invalidate_run(problems):
    hits = {"prompt_tokens_cached": 80.0}
    (problem,) = problems(counters=hits, expected_hit_rate=0.1)
    assert states(problem, CacheNotEmpty, hit_rate=pytest.approx(0.5), most_hit_rate=0.1, by_usage=False)
    assert problems(counters=hits, expected_hit_rate=0.49) == []  # within the slack
    assert problems(counters=hits) == []  # no bound is known
    assert problems(["prefix_cache_hit_rate"], counters=hits, expected_hit_rate=0.1) == []


@pytest.mark.parametrize("counters", [False, {"prompt_tokens_cached": None}])
def test_without_counters_the_usage_tells_of_hits(problems, counters):
    """A server that leaves a 0 out of its usage has told at least what it has told."""
    usage_records = [*records(15, cached_tokens=None), *records(5, cached_tokens=4)]
    (problem,) = problems(counters=counters, records=usage_records, expected_hit_rate=0.1)
    assert states(problem, CacheNotEmpty, hit_rate=pytest.approx(0.125), most_hit_rate=0.1, by_usage=True)
    assert problems(counters=counters, records=usage_records, expected_hit_rate=0.11) == []  # within the slack
    assert problems(counters=counters, records=usage_records) == []  # no bound is known
    assert problems(["prefix_cache_hit_rate"], counters=counters, records=usage_records, expected_hit_rate=0.1) == []
    assert problems(records=usage_records, expected_hit_rate=0.1) == []  # the counters know better


def test_failed_requests_do_not_change_hit_rate_bound_of_served_requests(problems):
    """Requests that can hit are served and the others are not: their share of hits is no larger than it may be."""
    half = [*records(10, cached_tokens=8), *records(10, outcome=Outcome.RESET)]
    assert problems(["error_rate"], counters=False, records=half, expected_hit_rate=0.5) == []
    unknown = [replace(record, asked_prompt_tokens=None, prompt_tokens=None) for record in half]
    assert problems(["error_rate"], counters=False, records=unknown, expected_hit_rate=0.0) == []


IDLE = {"external_cache_hits": 0.0, "prompt_tokens_cached": 0.0}


def test_lmcache_without_hits_invalidates_run(problems):
    (problem,) = problems(counters=IDLE, m_lmcache_reuse=0.8)
    assert states(problem, LmcacheUnused, reuse=0.8, hit_rate=0.0)
    assert problems(["external_cache_hit_rate"], counters=IDLE, m_lmcache_reuse=0.8) == []


@pytest.mark.parametrize(
    ("counters", "reuse"),
    [
        (IDLE, None),                                       # none is attached
        (IDLE, 0.05),                                       # nothing to hit
        (IDLE | {"external_cache_hits": 1.0}, 0.8),
        (IDLE | {"prompt_tokens_cached": 120.0}, 0.8),      # the engine's own cache had it all
        ({"prompt_tokens_cached": 0.0}, 0.8),               # nobody counts
    ],
)
def test_lmcache_without_possible_hits_does_not_invalidate_run(problems, counters, reuse):
    assert problems(counters=counters, m_lmcache_reuse=reuse) == []


def test_preemptions_invalidate_run_unless_allowed_or_judged(problems):
    (problem,) = problems(counters={"preemptions": 2.0})
    assert states(problem, Preemptions, count=2.0)
    assert problems(counters={"preemptions": 2.0}, m_may_preempt=True) == []
    assert problems(["preemptions"], counters={"preemptions": 2.0}) == []


def test_foreign_requests_on_server_invalidate_run(problems):
    (problem,) = problems(counters={"requests_finished": 21.0, "generation_tokens": 210.0})
    assert states(problem, ForeignRequests, counted=21.0, count=20)


@pytest.mark.parametrize("counted", [100, 400])
def test_token_counts_that_contradict_server_invalidate_run(problems, counted):
    (problem,) = problems(counters={"generation_tokens": float(counted)})
    assert states(problem, TokensMiscounted, count=200, counted=counted)


def test_failed_requests_make_the_counts_incomparable(problems):
    bad = [*records(19), make_record(19, outcome=Outcome.RESET)]
    assert problems(["error_rate"], records=bad, counters={"generation_tokens": 100.0, "requests_finished": 3.0}) == []


def test_problem_names_number_and_seed_of_run(make_run, make_measurement):
    measurement = make_measurement(make_run(), make_run(seed=1, restarted="its counters fell"))
    (problem,) = validity_problems(measurement, set(), SETTINGS)
    assert states(problem, ServerRestarted, run=2, seed=1)


def test_replica_that_appears_or_vanishes_during_a_run_invalidates_the_run(problems):
    (problem,) = problems(["ttft_p99"], scaled="replica b:1 vanished (refused)")
    assert states(problem, ServiceScaled, text="replica b:1 vanished (refused)", run=1, seed=0)


@pytest.mark.parametrize(("requests", "named", "conditions", "invalid"), [
    (20, [], {"router": "nginx", "router.policy": "consistent_hash"}, True),
    (19, [], {"router": "nginx", "router.policy": "consistent_hash"}, False),
    (20, ["replica_imbalance"], {"router": "nginx", "router.policy": "consistent_hash"}, False),
    (20, [], {}, False),  # a service
])
def test_replica_without_any_of_many_requests_invalidates_the_run(
    make_run, make_measurement, requests, named, conditions, invalid
):
    run = make_run(records=records(requests), replicas={"1": {"requests_finished": float(requests)},
                                                        "2": {"requests_finished": 0.0}})
    measurement = make_measurement(run)
    measurement = replace(measurement, conditions={**measurement.conditions, **conditions})
    found = [each for each in validity_problems(measurement, set(named), SETTINGS)
             if isinstance(each.fault, ReplicaIdle)]
    assert bool(found) is invalid
    if invalid:
        assert "replica 2 of 2 served none of 20 requests: nginx with policy consistent_hash" in found[0].fault.reason()


def test_service_that_scales_between_two_runs_is_not_steady(make_run, make_measurement):
    runs = [make_run(seed=seed, replicas={name: {}}) for seed, name in enumerate(("a:1", "b:1"))]
    (problem,) = validity_problems(make_measurement(*runs), set(), SETTINGS)
    assert states(problem, ServiceScaled, run=2, seed=1)
    assert "replica a:1 vanished, replica b:1 appeared" in problem.fault.facts["text"]


@pytest.mark.parametrize(("answers", "invalid"), [(2.0, False), (12.0, True)])
def test_replica_named_by_answers_vanishes_only_after_many_answers(make_run, make_measurement, answers, invalid):
    counts = {"a": {"answers": 20.0 - answers}, "b": {"answers": answers}}
    runs = [make_run(seed=0, replicas=counts), make_run(seed=1, replicas={"a": {"answers": 20.0}})]
    found = validity_problems(make_measurement(*runs), set(), SETTINGS)
    assert [problem.fault.facts["text"] for problem in found] == (
        ["replica b vanished since the first run"] if invalid else [])
