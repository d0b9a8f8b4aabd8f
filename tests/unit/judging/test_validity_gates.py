"""Each validity check fails on its condition and names a remedy. A check is skipped if the test judges the same metric
itself."""

from dataclasses import replace

import pytest

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.validity import judged_by_comparison, judged_by_requirements, validity_problems
from pytest_llmperf.model.exchange import LoadReport
from pytest_llmperf.model.record import Outcome
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
        problems = validity_problems(make_measurement(make_run(**fields), **of_measurement), set(named), settings)
        return [problem_text(problem) for problem in problems]

    return problems


def test_valid_run_has_no_problems(problems):
    assert problems(["ttft_p99", "itl_p99"]) == []


def test_valid_run_without_counters_has_no_problems(problems):
    assert problems(counters=False, expected_hit_rate=0.0) == []


@pytest.mark.parametrize("judging", ["error_rate", "goodput", "slo_attainment"])
def test_failed_requests_invalidate_run_unless_test_judges_failures(problems, judging):
    bad = [*records(18), make_record(18, outcome=Outcome.RESET), make_record(19, outcome=Outcome.TIMEOUT)]
    (text,) = problems(["ttft_p99"], records=bad)
    assert text.startswith("run 1 (seed 0): 2 of 20 requests failed (1 × reset, 1 × timeout; first: reset).")
    assert "error_rate == 0" in text
    assert problems([judging], records=bad) == []


@pytest.mark.parametrize("named", [(), ("error_rate",)])
def test_answers_that_contradict_themselves_are_judged_by_no_limit(problems, named):
    broken = make_record(19, outcome=Outcome.COUNTS_DISAGREE, detail="5 content chunks, usage says 4 tokens")
    (text,) = problems(named, records=[*records(19), broken])
    assert "token counts disagree in 1 of 20 answers (first: 5 content chunks, usage says 4 tokens)" in text


def of_models(*names):
    return [replace(record, models=names) for record in records()]


@pytest.mark.parametrize(("models", "names"), [
    ((), ("m",)), (("m",), ("m",)), (("m-1",), ("m", "m-1")), (("m", "m-1"), ("m", "m-1")), (("m-1",), ()),
])
def test_answers_of_requested_or_declared_model_are_valid(problems, models, names):
    assert problems(["error_rate"], records=of_models(*models), model_names=names) == []


def test_answers_of_another_model_make_the_run_invalid(problems):
    (text,) = problems(["error_rate"], records=of_models("m", "x" * 200), model_names=("m", "m-1"))
    assert f"20 of 20 answers came from model '{'x' * 80}…', and 'm' was requested; declared: 'm-1'." in text
    assert "model_alias=" in text


@pytest.mark.parametrize("judging", ["send_delay_p99", "send_delay_max"])
def test_late_load_generator_invalidates_run_unless_test_judges_send_delay(problems, judging):
    late = records(send_delay_ms=11.0)
    (text,) = problems(records=late)
    assert "load generator saturated: requests were sent 11.0 ms late (p99, limit 10 ms)" in text
    assert problems([judging], records=late) == []
    assert problems(settings=Settings(send_delay_p99_limit_ms=12.0), records=late) == []


def test_judging_mean_send_delay_keeps_check_of_p99_send_delay(problems):
    (text,) = problems(["send_delay_mean"], records=records(send_delay_ms=11.0))
    assert "11.0 ms late" in text


def test_answers_in_one_piece_have_no_time_per_token(problems):
    whole = [*records(18), make_record(18, chunk_tokens=[10]), make_record(19, chunks=10, itl_ms=0.0)]
    for judging in ("tpot_mean", "ttft_p50"):
        (text,) = problems([judging], records=whole)
        assert "2 of 20 answers of several tokens came in one piece (limit 5%)" in text
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
    sound = LoadReport(1, (0, 1), False, 1.0, 0, 100_000, None, 0.2, 1 << 25)
    return replace(sound, **fields)


def test_valid_load_report_has_no_problems(problems):
    assert problems(load=load_report(turnaround_p99_ns=9_900_000, read_delay_p99_ns=50_000_000)) == []


def test_saturation_names_numbers_and_remedy(problems):
    (text,) = problems(records=records(send_delay_ms=11.0), load=load_report(busy=0.97, read_delay_p99_ns=31_000_000))
    assert "1 load process(es) on 2 CPUs that servers share, busy 97% of the time, read bytes 31.0 ms after" in text
    assert "Raise load_processes (now 1), give it a free core (load_cpus), send from another host" in text


def test_problem_of_unstamped_reads_does_not_name_read_delay(problems):
    late = load_report(kernel_stamped=0.0, stamp_error_p99_ns=6_000_000, read_delay_p99_ns=None)
    (text,) = problems(load=late)
    assert "stamped only 0% of the reads" in text
    assert "read bytes" not in text


def test_idle_load_process_gets_advice_about_cpus_instead_of_processes(problems):
    (text,) = problems(records=records(send_delay_ms=11.0), load=load_report(busy=0.1))
    assert "load_processes" not in text
    (text,) = problems(records=records(send_delay_ms=11.0), load=load_report(busy=0.1, own_cpus=True))
    assert "load_cpus" not in text
    assert "Send from another host" in text


@pytest.mark.parametrize("judging", ["send_delay_p99", "send_delay_max"])
def test_slow_refill_of_closed_loop_invalidates_run(problems, judging):
    """Closed loop: latency counts from the send, so a slow client would show nowhere else."""
    empty = load_report(turnaround_p99_ns=12_000_000)
    (text,) = problems(load=empty)
    assert "load generator saturated: slots of the closed loop stood empty for 12.0 ms (p99, limit 10 ms)" in text
    assert problems([judging], load=empty) == [text]  # where nobody intends a moment no request is late
    assert problems(load=empty, settings=Settings(send_delay_p99_limit_ms=13.0)) == []


def test_late_stamps_invalidate_run(problems):
    late = load_report(kernel_stamped=0.25, stamp_error_p99_ns=6_000_000)
    (text,) = problems(load=late)
    assert "saturated: arrivals may be stamped 6.0 ms late (p99, limit 5 ms), because the kernel" in text
    assert "stamped only 25%" in text
    assert problems(load=late, settings=Settings(stamp_error_p99_limit_ms=7.0)) == []


@pytest.mark.parametrize("asking", ["itl_p99", "itl_per_token_p50", "largest_stall_max"])
def test_coalesced_chunks_invalidate_gap_metrics_only(problems, asking):
    together = records(coalesced_chunks=3)
    (text,) = problems([asking], records=together)
    assert "33% of the chunks arrived together" in text
    assert problems(["ttft_p99", "tpot_mean"], records=together) == []
    assert problems([asking, "coalesced_share"], records=together) == []


def test_clock_gap_above_limit_invalidates_run(problems):
    (text,) = problems(clock_gap_ms=1200.0)
    assert "did not run for 1200 ms" in text
    assert problems(clock_gap_ms=900.0) == []


def test_server_restart_invalidates_run(problems):
    (text,) = problems(restarted="its counter prompt_tokens fell from 9 to 0")
    assert text.endswith("restarted itself: its counter prompt_tokens fell from 9 to 0 between two readings.")


def test_unexpected_cache_hits_invalidate_run(problems):
    hits = {"prompt_tokens_cached": 80.0}
    (text,) = problems(counters=hits, expected_hit_rate=0.1)
    assert "hit rate 50.0%, and these requests can have 10.0% at most" in text
    assert problems(counters=hits, expected_hit_rate=0.49) == []  # within the slack
    assert problems(counters=hits) == []  # no bound is known
    assert problems(["prefix_cache_hit_rate"], counters=hits, expected_hit_rate=0.1) == []


@pytest.mark.parametrize("counters", [False, {"prompt_tokens_cached": None}])
def test_without_counters_the_usage_tells_of_hits(problems, counters):
    """A server that leaves a 0 out of its usage has told at least what it has told."""
    usage_records = [*records(15, cached_tokens=None), *records(5, cached_tokens=4)]
    (text,) = problems(counters=counters, records=usage_records, expected_hit_rate=0.1)
    assert "hit rate 12.5% by the usage of the answers, and these requests can have 10.0% at most" in text
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
    (text,) = problems(counters=IDLE, m_lmcache_reuse=0.8)
    assert "LMCache is attached and had no hit: 80% of the prompt tokens repeat" in text
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
    (text,) = problems(counters={"preemptions": 2.0})
    assert "2 preemptions" in text
    assert "may_preempt=True" in text
    assert problems(counters={"preemptions": 2.0}, m_may_preempt=True) == []
    assert problems(["preemptions"], counters={"preemptions": 2.0}) == []


def test_foreign_requests_on_server_invalidate_run(problems):
    (text,) = problems(counters={"requests_finished": 21.0, "generation_tokens": 210.0})
    assert "the server finished 21 requests and this run sent 20" in text


@pytest.mark.parametrize("counted", [100, 400])
def test_token_counts_that_contradict_server_invalidate_run(problems, counted):
    (text,) = problems(counters={"generation_tokens": float(counted)})
    assert f"answers report 200 generated tokens, and the server counted {counted}" in text


def test_failed_requests_make_the_counts_incomparable(problems):
    bad = [*records(19), make_record(19, outcome=Outcome.RESET)]
    assert problems(["error_rate"], records=bad, counters={"generation_tokens": 100.0, "requests_finished": 3.0}) == []


def test_problem_names_number_and_seed_of_run(make_run, make_measurement):
    measurement = make_measurement(make_run(), make_run(seed=1, restarted="its counter prompt_tokens fell from 9 to 0"))
    (text,) = map(problem_text, validity_problems(measurement, set(), SETTINGS))
    assert text.startswith("run 2 (seed 1): ")


def test_replica_that_appears_or_vanishes_during_a_run_invalidates_the_run(problems):
    (text,) = problems(["ttft_p99"], scaled="replica b:1 vanished (ConnectError: refused)")
    assert text.startswith("run 1 (seed 0): the service was not steady: replica b:1 vanished (ConnectError: refused).")
    assert "no autoscaler" in text


def test_service_that_scales_between_two_runs_is_not_steady(make_run, make_measurement):
    runs = [make_run(seed=seed, replicas={name: {}}) for seed, name in enumerate(("a:1", "b:1"))]
    (problem,) = validity_problems(make_measurement(*runs), set(), SETTINGS)
    assert "run 2 (seed 1): the service was not steady: replica a:1 vanished, replica b:1 appeared since the first " \
        "run." in problem_text(problem)
