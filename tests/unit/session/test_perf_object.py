"""`perf.measure`, `check` and `claim` on fake servers: what is kept, told and refused."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest

from pytest_llmperf import CheckResult, Perf, Verdict, closed, endpoint, random_tokens, shared_prefix, vllm
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import ConfigError, EngineError, SloError, SpecError, UsageError
from pytest_llmperf.judging.claim_judge import runs_apart
from pytest_llmperf.model.status import Measuring, WarmingUp
from pytest_llmperf.report.junit import outcome_properties, properties
from pytest_llmperf.results.causes.comparisons import MachineDrifts, NoPrimaryMetric
from pytest_llmperf.results.causes.limits import RunsInvalid
from pytest_llmperf.results.causes.runs import ForeignRequests
from pytest_llmperf.results.ended_test import EndedTest
from pytest_llmperf.results.sentences import basis_text, limit_text
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.telemetry.hardware import Hardware
from pytest_llmperf.testing.scripted_transport import make_exchange

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WORKLOAD = random_tokens(input=8, output=5, arrivals=closed(2), requests=12)
CLAIM = "ttft_p50(b) / ttft_p50(a) >= 3"
SETTINGS = Settings(clock_gap_limit_ms=60_000.0)


@pytest.fixture
def statuses():
    return []


@pytest.fixture
def session(tmp_path, fake_engine, statuses):
    with_fakes = {"transport": fake_engine.transport, "now": lambda: NOW, "rng": random.Random(5)}
    session = PerfSession(SETTINGS, tmp_path, Hardware(), statuses.append, "gw1", **with_fakes)
    yield session
    session.close()


@pytest.fixture
def perf(session):
    return Perf(begin_execution(session, "tests/test_a.py::test_x[a/b]", "cpu"))


def written(session):
    (path,) = session.run_dir.glob("tests/*.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        ("PASS", r"perf.record\('PASS'\): give it a pytest_llmperf.CheckResult"),
        (CheckResult("mine", Verdict.FAIL, facts={"exceedances": 3}),
         r"needs the fact 'observations'.*CheckResult\.stated"),
        (CheckResult("mine", Verdict.FAIL, cause="slow"), "'str' object has no attribute 'facts'"),
    ],
)
def test_record_refuses_result_without_sentence(perf, result, complaint):
    with pytest.raises(UsageError, match=complaint):
        perf.record(CheckResult("first", Verdict.PASS), result)
    assert perf.results == ()


def test_check_refuses_misspelled_metric_with_suggestion(perf, make_server):
    measurement = perf.measure(make_server(), WORKLOAD, runs=1)
    with pytest.raises(SloError, match="did you mean"):
        perf.check(measurement, "ttft_p50 <= 60ms", "ttft_p9 <= 60ms")
    assert perf.results == ()


def test_measure_makes_one_run_per_seed(perf, make_server, fake_engine):
    measurement = perf.measure(make_server(), WORKLOAD, runs=2)
    assert [run.seed for run in measurement.runs] == [0, 1]
    assert perf.measurements == (measurement,)
    assert measurement.complete
    assert [run.expected_hit_rate for run in measurement.runs] == [0, 0]
    assert measurement.value("ttft_p50") == pytest.approx(50.0)
    assert len(fake_engine.transport.plans) == 2 + 2  # two batches of warm-up


@pytest.mark.parametrize("emulated", [False, True])
def test_perf_object_shows_whether_session_is_emulated(tmp_path, statuses, emulated):
    session = PerfSession(SETTINGS, tmp_path, Hardware(emulated=emulated), statuses.append)
    assert Perf(begin_execution(session, "tests/test_a.py::test_x", "cpu")).emulated is emulated
    session.close()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"may_preempt": True}, None),
        ({"keep": ("l1", "engine")}, "keeps engine, l1"),
        ({"gauges": True}, "gauges every 0.25 s"),
        ({"keep": ["l2"], "gauges": True}, "keeps l2; gauges every 0.25 s"),
    ],
)
def test_another_treatment_of_server_and_caches_is_a_condition(perf, make_server, options, expected):
    measurement = perf.measure(make_server(), WORKLOAD, runs=1, **options)
    assert measurement.conditions.get("treatment") == expected


def test_alternately_extended_measurements_keep_separate_seeds(perf, make_server):
    server = make_server()
    first, other = (perf.measure(server, WORKLOAD, runs=1) for _ in range(2))
    other = perf.extend(other)
    first = perf.extend(first, runs=2)
    assert [run.seed for run in first.runs] == [0, 1, 2]
    assert [run.seed for run in other.runs] == [0, 1]
    assert perf.measurements == (first, other)
    (result,) = perf.compare("tpot_mean(one) / tpot_mean(other)", one=first, other=other)
    assert (result.numbers["pairs"], "start_sd" in result.numbers) == (2, False)


def test_outdated_run_or_invalid_count_cannot_be_extended(perf, make_server):
    earlier_measurement = perf.measure(make_server(), WORKLOAD, runs=1)
    perf.extend(earlier_measurement)
    with pytest.raises(UsageError, match=r"perf\.extend\(run\): this run .* was extended or compared since"):
        perf.extend(earlier_measurement)
    with pytest.raises(SpecError, match=r"runs=0\): at least one"):
        perf.extend(earlier_measurement, runs=0)


def test_a_warm_server_is_not_warmed_again(perf, make_server, fake_engine, statuses):
    server = make_server()
    perf.measure(server, WORKLOAD, runs=1)
    perf.measure(server, WORKLOAD, runs=1)
    assert len(fake_engine.transport.plans) == 2 + 1 + 1
    assert sum(isinstance(status, WarmingUp) for status in statuses) == 1
    assert [status.done for status in statuses if isinstance(status, Measuring)] == [12, 12]


def test_results_reach_the_run_folder(perf, session, make_server):
    measurement = perf.measure(make_server(), WORKLOAD, runs=1)
    (result,) = perf.check(measurement, "error_rate == 0")
    assert result.verdict is Verdict.PASS
    assert perf.results == (result,)
    perf._execution.end("PASS", complete=True)
    perf._execution.close()
    run_file = written(session)
    assert run_file["test"] == "tests/test_a.py::test_x[a/b]"
    assert run_file["checks"][0]["verdict"] == "PASS"
    assert run_file["measurements"][0]["runs"][0]["metrics"]["error_rate"] == 0
    assert session.run_dir.name == session.id
    assert session.id.startswith("20260102T030405Z-")
    assert run_file["worker"] == "gw1"
    assert perf._execution.run_file.name.endswith(".gw1.json")


def test_git_ignores_the_folder_that_is_ours(perf, session, make_server):
    perf.measure(make_server(), WORKLOAD, runs=1)
    assert (session.root / ".llmperf" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize("named", ["results", ".llmperf/mine"])
def test_a_folder_that_the_user_named_is_left_alone(tmp_path, fake_engine, named):
    settings = replace(SETTINGS, runs_dir=named)
    session = PerfSession(settings, tmp_path, Hardware(), print, transport=fake_engine.transport)
    session.folder.begin()
    session.close()
    assert session.run_dir.is_dir()
    assert list(tmp_path.rglob(".gitignore")) == []


def test_server_failure_in_second_run_keeps_first_run_without_result(perf, session, make_server, fake_engine):
    server = make_server()

    def vanish_in_the_second_run():
        if len(fake_engine.transport.plans) == 2 + 2:
            fake_engine.answers["/metrics"] = httpx.ConnectError("refused")

    fake_engine.on_replay = vanish_in_the_second_run
    with pytest.raises(EngineError, match="not after it"):
        perf.measure(server, WORKLOAD, runs=3)
    run_file = written(session)
    assert len(run_file["measurements"][0]["runs"]) == 1
    assert run_file["complete"] is False
    assert run_file["measurements"][0]["complete"] is False


def test_invalid_runs_are_errors(perf, make_server, fake_engine):
    def somebody_else():
        fake_engine.finished += 1

    server = make_server()
    perf.measure(server, WORKLOAD, runs=1)
    fake_engine.on_replay = somebody_else
    (result,) = perf.check(perf.measure(server, WORKLOAD, runs=1), "error_rate == 0")
    assert (result.verdict, type(result.cause)) == (Verdict.ERROR, RunsInvalid)
    (problem,) = result.problems
    assert problem.fault == ForeignRequests(13, 12)


@pytest.mark.parametrize(
    ("call", "error", "complaint"),
    [
        (lambda perf, server: perf.measure(server, "tokens"), SpecError, "this is no workload"),
        (lambda perf, server: perf.measure(server, WORKLOAD, runs=0), SpecError, "at least one run"),
        (lambda perf, server: perf.measure(server, WORKLOAD, keep=["l3"]), SpecError, "tiers of the cache are engine"),
        (lambda perf, server: perf.measure(vllm("m"), WORKLOAD, fresh=True, keep=["l1"]), SpecError, "ends with it"),
        (lambda perf, server: perf.measure(server, WORKLOAD, fresh=True), SpecError, "that server runs already"),
        (lambda perf, server: perf.measure(server, WORKLOAD, starts=2), SpecError, "that server runs already"),
        (lambda perf, server: perf.measure(vllm("m"), WORKLOAD, starts=0), SpecError, "at least one start"),
        (lambda perf, server: perf.measure(vllm("m"), WORKLOAD, starts=2, keep=["l1"]), SpecError, "out starts=2"),
        (lambda perf, server: perf.measure("vllm", WORKLOAD), SpecError, "an engine is the `engine` fixture or a spec"),
        (lambda perf, server: perf.measure(vllm, WORKLOAD), SpecError, r"measure\(<function .*, workload\): an engine"),
        (lambda perf, server: perf.measure(None, WORKLOAD), SpecError, r"perf\.measure\(None, workload\): an engine"),
        (lambda perf, server: perf.measure(server, WORKLOAD, runs=True), SpecError, "runs=True"),
        (lambda perf, server: perf.measure(vllm("m"), WORKLOAD, starts=True), SpecError, "starts=True"),
        (lambda perf, server: perf.measure(server, WORKLOAD, gauges=["kv_usage_peak"]), SpecError,
         "measure: gauges must be True or False"),
        (lambda perf, server: perf.measure(server, WORKLOAD, fresh=None), SpecError, "fresh must be True or False"),
        (lambda perf, server: perf.measure(server, WORKLOAD, may_preempt="no"), SpecError, "may_preempt must be True"),
        (lambda perf, server: perf.measure(server, WORKLOAD, until="ttft <= 1s"), SloError, "ttft"),
        (lambda perf, server: perf.measure(server, WORKLOAD, until=5), SloError, "until=5: write one text, or a list"),
        (lambda perf, server: perf.measure(vllm("m"), WORKLOAD, until="ttft_p50 <= 1s", starts=2), SpecError,
         "so it needs starts=1. Leave out until= or starts="),
        (lambda perf, server: perf.extend("run"), UsageError, r"extend\(run\): .* must be what perf\.meas"),
        (lambda perf, server: perf.max_rate({"m": 1}, WORKLOAD, slo="ttft_p50 <= 1s"), SpecError,
         r"perf\.max_rate\({'m': 1}, workload\): an engine is"),
        (lambda perf, server: perf.max_rate(server, WORKLOAD, slo=None), SloError, "slo=None: write one text, or"),
        (lambda perf, server: perf.claim("a", server, WORKLOAD, CLAIM), SpecError, r"claim\('a', b, .*an engine is"),
        (lambda perf, server: perf.claim(server, None, WORKLOAD, CLAIM), SpecError, r"\(a, None, .*an engine is"),
        (lambda perf, server: perf.check(None), UsageError, "name at least one SLO"),
        (lambda perf, server: perf.claim(server, server, WORKLOAD, "ttft >= 3"), SloError, "ttft"),
        (lambda perf, server: perf.measure(server, WORKLOAD, runs=2.5), SpecError, r"runs=2\.5\): at least one run"),
        (lambda perf, server: perf.max_rate(server, WORKLOAD, slo=CLAIM, runs=2.5), SpecError, r"rate\(…, runs=2"),
        (lambda perf, server: perf.max_rate(server, "x", slo="ttft_p50 <= 1s"), SpecError, "this is no workload"),
        (lambda perf, server: perf.claim(server, server, WORKLOAD, CLAIM, runs=0), SpecError, r"claim\(…, runs=0\)"),
        (lambda perf, server: perf.measure(server, WORKLOAD, keep="engine"), SpecError, r"keep=\['engine'\]"),
        (lambda perf, server: perf.measure(server, WORKLOAD, keep=None), SpecError, "keep=None: write a list of texts"),
        (lambda perf, server: perf.check("ttft_p50 <= 1s", server), UsageError, "argument must be what perf.meas"),
        (lambda perf, server: perf.claim(server, server, CLAIM, WORKLOAD), SpecError, "b, 'ttft.*Build it with"),
        (lambda perf, server: perf.claim(server, server, WORKLOAD, [CLAIM]), SloError, "must be a text, .* type list"),
        (lambda perf, server: perf.claim(server, server, WORKLOAD, CLAIM, allow=["tpot_mean"]), SloError,
         "name the price"),
        (lambda perf, server: perf.claim(server, server, WORKLOAD, "max_rate(a) / max_rate(b) >= 2"), SpecError,
         r"max_rate needs an SLO: perf\.claim_max_rate\(a, b, workload, 'max_rate"),
        (lambda perf, server: perf.claim(server, server, WORKLOAD, CLAIM, guards=["x"]), SloError, "name the margin"),
        (lambda perf, server: perf.claim(server, server, WORKLOAD, CLAIM, guards={"ttft_p50": "10%"}), SloError,
         "'10%'}: a margin is a number. Write 0.05 for 5 %"),
    ],
)
def test_invalid_measure_arguments_are_refused_before_requests(perf, make_server, fake_engine, call, error, complaint):
    with pytest.raises(error, match=complaint):
        call(perf, make_server())
    assert not fake_engine.transport.plans


@pytest.mark.parametrize(("given", "error", "complaint"), [
    ({"may_preempt": "no"}, SpecError, "perf.claim: may_preempt must be True or False, got 'no'"),
    ({"mechanism": None}, SloError, "mechanism=None: write one text, or a list of texts"),
    ({"mechanism": [5]}, SloError, "must be a text, got a value of type int"),
    ({"start_sd": 0.1}, SloError, r'start_sd=0\.1: name the deviation of each metric, as in start_sd={"ttft_p50"'),
    ({"start_sd": 0}, SloError, "start_sd=0: name the deviation"),
    ({"allow": 0}, SloError, "allow=0: name the price"),
    ({"allow": {1: 2}}, SloError, "a metric must be a text such as 'ttft_p50', got 1"),
    ({"guards": []}, SloError, "name the margin"),
    ({"baseline": True}, UsageError, r"takes no baseline=: .*perf\.compare_with_baseline\(claim\.a, …\)"),
    ({"primaries": ["ttft_p50"]}, UsageError, r"takes no primaries=: .*perf\.compare_with_baseline\(claim\.a, …\)"),
    ({"margins": {}}, UsageError, r"takes no margins=: .*guards={"),
    ({"slo": "ttft_p50 <= 1s"}, UsageError, r"takes no slo=: .*perf\.claim_max_rate\(a, b, workload, text, slo=…\)"),
])
def test_invalid_claim_arguments_are_refused_before_requests(perf, make_server, fake_engine, given, error, complaint):
    with pytest.raises(error, match=complaint):
        perf.claim(make_server(), make_server(), WORKLOAD, CLAIM, **given)
    assert not fake_engine.transport.plans


@pytest.mark.parametrize(("call", "error", "complaint"), [
    (lambda perf, run: perf.check(run, ["ttft_p50 <= 30ms", "error_rate == 0"]), SloError, "must be a text, .* list"),
    (lambda perf, run: perf.check(run), UsageError, r"write perf\.compare_with_baseline\(run\)"),
    (lambda perf, run: perf.check(run, "error_rate == 0", baseline=True), UsageError,
     r"perf\.check\(run, …\) takes no baseline=: .*perf\.compare_with_baseline\(run, …\)"),
    (lambda perf, run: perf.check(run, "error_rate == 0", primaries=["itl_p99"]), UsageError, "takes no primaries="),
    (lambda perf, run: perf.check(run, "error_rate == 0", margins={"itl_p99": 0.1}), UsageError, "takes no margins="),
    (lambda perf, run: perf.compare_with_baseline(run, primaries="ttft_p50"), SpecError,
     r"write a list, primaries=\['ttft_p50'\]"),
    (lambda perf, run: perf.compare_with_baseline(run, primaries=["itl_p9"]), SloError, "did you mean"),
    (lambda perf, run: perf.compare_with_baseline(run, margins={"ttft_p50": "10%"}), SloError, "a margin is a number"),
    (lambda perf, run: perf.compare_with_baseline(run, margins=0), SloError, "margins=0: name the margin"),
    (lambda perf, run: perf.compare_with_baseline(run, margins={1: 0.1}), SloError, "a metric must be a text"),
    (lambda perf, run: perf.compare_with_baseline(run, True), SpecError, "stored measurement must be a text, got True"),
    (lambda perf, run: perf.compare_with_baseline("run"), UsageError, "the first argument must be what perf.measure"),
])
def test_invalid_argument_of_a_check_adds_no_result(perf, make_server, call, error, complaint):
    run = perf.measure(make_server(), WORKLOAD, runs=1)
    with pytest.raises(error, match=complaint):
        call(perf, run)
    assert perf.results == ()


def test_check_of_slos_sends_no_request_and_keeps_the_measurement(perf, make_server, fake_engine):
    run = perf.measure(make_server(), WORKLOAD)
    sent = len(fake_engine.transport.plans)
    perf.check(run, "ttft_p99 <= 51ms")  # 36 requests cannot decide a p99
    assert perf.results[0].verdict is Verdict.INCONCLUSIVE
    assert len(fake_engine.transport.plans) == sent
    assert perf.measurements == (run,)


def test_measurement_ends_at_the_first_look_that_decides_the_slos(perf, make_server):
    run = perf.measure(make_server(), WORKLOAD, runs=4, until=("ttft_mean <= 10s", "error_rate == 0"))
    assert (len(run.runs), run.looks, run.complete) == (2, 4, True)
    results = perf.check(run, "ttft_mean <= 10s")
    assert results[0].verdict is Verdict.PASS
    assert results[0].interval.confidence == pytest.approx(1 - 0.05 / 4)
    assert "error of 5 % shared by 4 looks" in basis_text(results[0])
    assert perf.results == tuple(results)  # a look is not a check


def test_measurement_with_an_undecided_slo_makes_all_runs(perf, make_server):
    run = perf.measure(make_server(), WORKLOAD, until="ttft_p99 <= 51ms")
    assert [each.seed for each in run.runs] == [0, 1, 2]
    assert run.looks == 3


def test_measurement_without_slos_is_judged_at_one_look(perf, make_server):
    run = perf.measure(make_server(), WORKLOAD)
    assert (len(run.runs), run.looks) == (3, 1)
    assert perf.check(run, "ttft_mean <= 10s")[0].interval.confidence == pytest.approx(0.95)


def test_invalid_run_ends_a_measurement_that_waits_for_a_decision(perf, make_server, fake_engine):
    fake_engine.transport._exchanges = lambda plan: (refuse_all if len(plan.requests) == 12 else fake_engine.exchanges)(
        plan
    )
    run = perf.measure(make_server(), WORKLOAD, until="ttft_mean <= 10s")
    assert len(run.runs) == 1
    assert perf.check(run, "ttft_mean <= 10s")[0].verdict is Verdict.ERROR


def test_side_that_was_not_measured_is_not_compared(perf):
    assert perf.compare_with_baseline(None) == []


def test_note_says_why_announced_servers_on_a_cpu_start_alone(perf, statuses):
    specs = tuple(endpoint(f"http://127.0.0.1:{port}", model="m") for port in (1, 2))
    assert perf.together(*specs) == specs
    assert "2 servers do not run at the same time: on a CPU a start takes all cores" in str(statuses[-1])


def test_dir_of_perf_lists_verbs_and_results_only(perf):
    assert dir(perf) == ["accuracy", "check", "check_answers", "check_smaller", "claim", "claim_max_rate",
                         "compare", "compare_with_baseline", "emulated", "extend", "kind", "max_rate", "measure",
                         "measure_each", "measurements", "profile", "record", "refuses", "results", "together"]
    with pytest.raises(AttributeError):
        perf.results = ()
    with pytest.raises(AttributeError):
        perf.series = []


def test_measurement_is_no_name_of_a_baseline(perf, make_server):
    first, second = (perf.measure(make_server(), WORKLOAD, runs=2) for _ in range(2))
    with pytest.raises(SpecError, match=r"got Measurement.* are put beside each other by perf\.compare"):
        perf.compare_with_baseline(second, first)


@pytest.mark.parametrize("wrong", [1, None, "run", {"ttft_p50": 1}])
def test_comparison_with_unmeasured_object_is_refused(perf, make_server, wrong):
    run = perf.measure(make_server(), WORKLOAD, runs=2)
    with pytest.raises(UsageError, match=r"perf\.compare\(…, other=…\): other must be what perf\.measure"):
        perf.compare("ttft_p50(run) / ttft_p50(other)", run=run, other=wrong)
    assert perf.results == ()


@pytest.fixture
def sides_in_sequence(make_server, fake_process):
    """A function that makes two servers. A claim measures all runs on the first server, then all runs on the second."""
    return lambda: (make_server(), make_server(vllm("llama-3.1-8b"), process=fake_process, start_id=2))


def test_claim_judges_ratio_and_guard_of_both_sides(perf, session, sides_in_sequence, fake_engine):
    fast, slow = sides_in_sequence()

    def b_is_slower():
        fake_engine.ttft_ms = 100.0 if len(fake_engine.transport.plans) > 2 + 3 else 10.0

    fake_engine.on_replay = b_is_slower
    claim = perf.claim(fast, slow, WORKLOAD, "ttft_p50(b) / ttft_p50(a) >= 3")
    assert [result.verdict for result in claim.results] == [Verdict.PASS, Verdict.PASS]
    assert claim.verdict is Verdict.PASS
    assert perf.results == claim.results
    assert perf.measurements == (claim.a, claim.b)


def test_undecided_claim_measures_more_pairs_in_reversed_order(perf, sides_in_sequence, fake_engine):
    """Three pairs leave 2× open because one of them is far off; six do not, nine are not bought."""
    fast, slow = sides_in_sequence()
    first_of_b, last_of_b, odd_one = 6, 13, 10  # A: 2 batches of warm-up, 3 runs; B: 2, 3 and at once 3 more; A: 3 more

    def one_slow_pair():
        sent = len(fake_engine.transport.plans)
        of_b = first_of_b <= sent <= last_of_b
        fake_engine.ttft_ms = (26.0 if sent == odd_one else 40.0) if of_b else 10.0

    fake_engine.on_replay = one_slow_pair
    result = perf.claim(fast, slow, WORKLOAD, "ttft_p50(b) / ttft_p50(a) >= 2").results[0]
    assert result.verdict is Verdict.PASS
    assert result.numbers["pairs"] == 6
    assert [run.seed for run in perf.measurements[0].runs] == [0, 1, 2, 3, 4, 5]


def test_sides_of_a_claim_send_seeds_in_opposite_order(perf, sides_in_sequence):
    """Pairs then lie 5, 3 and 1 runs apart, so that they show a drift of the machine."""
    fast, slow = sides_in_sequence()
    perf.claim(fast, slow, WORKLOAD, "ttft_p50(b) / ttft_p50(a) >= 1.4")
    assert [[run.seed for run in side.runs] for side in perf.measurements] == [
        [0, 1, 2, 3, 4, 5, 6, 7, 8], [2, 1, 0, 5, 4, 3, 8, 7, 6]]
    a, b = perf.measurements
    assert runs_apart(a, b) == [5, 3, 1, -1, -3, -5, 5, 3, 1]
    (paired,) = perf.compare("tpot_mean(a) / tpot_mean(b)", a=a, b=b)
    assert paired.numbers["pairs"] == 9


@pytest.mark.parametrize(("drift", "limit"), [(1.05, ">= 1.05"), (1 / 1.05, "<= 0.95")])
def test_drifting_machine_decides_no_claim_at_the_first_look(session, sides_in_sequence, fake_engine, drift, limit):
    """Both sides are alike, and the machine changes by 5 % a run: A A A B B B differ by 16 % all the same."""
    session.settings = replace(session.settings, extension_limit_s=0.0)
    perf = Perf(begin_execution(session, "tests/test_a.py::test_x", "h200"))
    fast, slow = sides_in_sequence()

    def slower_each_run():
        sent = len(fake_engine.transport.plans)
        fake_engine.ttft_ms = 100.0 * drift ** (sent if sent <= 5 else sent - 2)  # two batches of B are its warm-up

    fake_engine.on_replay = slower_each_run
    sd = {"ttft_p50": 0.01}
    result = perf.claim(fast, slow, WORKLOAD, f"ttft_p50(b) / ttft_p50(a) {limit}", start_sd=sd).results[0]
    assert (result.verdict, type(result.cause)) == (Verdict.INCONCLUSIVE, MachineDrifts)
    assert (result.numbers["pairs"], result.numbers["no_further_runs"]) == (3, "out_of_time")


@pytest.mark.parametrize("specs", [
    (vllm("llama-3.1-8b", max_num_seqs=8), vllm("llama-3.1-8b", max_num_seqs=8)),
    (endpoint("http://127.0.0.1:1", model="m"), endpoint("http://127.0.0.1:1/", model="m")),
])
def test_claim_of_two_equal_specifications_is_refused(perf, fake_engine, specs):
    with pytest.raises(SpecError, match=r"perf\.claim\(a, b, …\): both sides are .* put both into perf\.compare"):
        perf.claim(*specs, WORKLOAD, CLAIM)
    assert not fake_engine.transport.plans


def test_claim_of_a_server_against_an_equal_specification_is_refused(perf, make_server, fake_engine):
    with pytest.raises(SpecError, match="both sides are endpoint"):
        perf.claim(make_server(), make_server().spec, WORKLOAD, CLAIM)
    assert not fake_engine.transport.plans


@pytest.mark.parametrize(("url", "tolerated"), [("http://10.0.0.5:8000", "1.15"), ("http://127.0.0.1:8000", "1.25")])
def test_guards_of_an_endpoint_on_another_machine_have_no_cpu_s_margin(perf, make_server, url, tolerated):
    sides = (make_server(endpoint(url, model=model)) for model in ("one", "other"))
    results = perf.claim(*sides, WORKLOAD, "tpot_mean(b) / tpot_mean(a) >= 0.5").results
    assert f"≤ {tolerated}×" in map(limit_text, results)


def test_undecided_claim_ends_inconclusive_after_nine_pairs(perf, sides_in_sequence):
    same, other = sides_in_sequence()
    result = perf.claim(same, other, WORKLOAD, "ttft_p50(b) / ttft_p50(a) >= 1.4").results[0]
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.numbers["pairs"] == 9
    assert "no_further_runs" not in result.numbers  # more time would buy no more pairs


def test_junit_properties_contain_engine_metrics_and_deciding_check(perf, make_server):
    measurement = perf.measure(make_server(), WORKLOAD, runs=2)
    perf.check(measurement, "error_rate == 0")
    ended = EndedTest("test_it", "PASS", tuple(perf.results))
    property_by_name = {**dict(properties("test_it", perf.measurements, perf.results)), **outcome_properties(ended)}
    assert property_by_name["llmperf.engine"].startswith("endpoint('http://127.0.0.1:8000'")
    assert property_by_name["llmperf.metric.ttft_p50_ms"] == "50"
    assert property_by_name["llmperf.decided_by"] == "0 %  error_rate == 0"


def test_a_setting_for_no_engine_is_refused(tmp_path):
    settings = Settings(engines={"vlm": "/opt/vllm"})
    with pytest.raises(ConfigError, match="Did you mean 'vllm'"):
        PerfSession(settings, tmp_path, Hardware(), print)


def test_repr_of_perf_object_creates_no_run_folder(perf, session):
    assert "0 measurements" in repr(perf)
    assert not session.run_dir.exists()


@pytest.mark.parametrize(("text", "bound"), [(False, 0), (True, None)])
def test_expected_hit_rate_is_bounded_if_block_size_is_unknown(perf, make_server, text, bound):
    """By blocks of one token; of text the server's own tokens hit, too, and nobody knows how many they are."""
    server = make_server()
    server.facts = {"version": "1"}
    workload = random_tokens(input=8, output=5, arrivals=closed(2), requests=12, text=text)
    assert perf.measure(server, workload, runs=1).runs[0].expected_hit_rate == bound


def test_a_word_of_text_is_several_tokens(perf, make_server):
    """30 shared words round down to 16 in blocks of 16 words; the engine's 60 tokens round down to 48 of them."""
    workload = shared_prefix(prefix=30, suffix=30, output=4, groups=1, arrivals=closed(1), requests=12, text=True)
    (run,) = perf.measure(make_server(), workload, runs=1).runs
    assert run.expected_hit_rate == workload.expected_hit_rate(1) > workload.expected_hit_rate(16) + 0.1


def test_expected_hit_rate_is_computed_from_requests_of_each_run(perf, make_server):
    """With suffixes of 10 to 4,000 tokens a perfect cache has 25 % of one seed's prompts, and 35 % of another's."""
    workload = shared_prefix(prefix=1000, suffix=(10, 4000), output=4, groups=1, arrivals=closed(1), requests=10)
    hit_rates = [run.expected_hit_rate for run in perf.measure(make_server(), workload, runs=3).runs]
    assert hit_rates == [workload.expected_hit_rate(16, seed) for seed in range(3)]
    assert max(hit_rates) > min(hit_rates) + 0.02


def refuse_all(plan):
    """503 for every request of a run; a warm-up is answered."""
    data = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"
    return [make_exchange([(1, data)], index=request.index) for request in plan.requests]


def test_missing_metric_values_are_reported_beside_the_slo(perf, make_server, fake_engine):
    fake_engine.transport._exchanges = lambda plan: (refuse_all if len(plan.requests) == 12 else fake_engine.exchanges)(
        plan
    )
    run = perf.measure(make_server(), WORKLOAD)
    perf.check(run, "error_rate == 0")
    perf.compare_with_baseline(run)
    verdicts = {result.metric: result for result in perf.results}
    assert verdicts["error_rate"].verdict is Verdict.FAIL
    assert verdicts["baseline"].verdict is Verdict.ERROR
    assert verdicts["baseline"].cause == NoPrimaryMetric(3)


def test_invalid_side_of_claim_is_refused_before_requests(perf, make_server):
    for sides in ((make_server(), vllm("lama-3.1-8b")), (vllm("lama-3.1-8b"), make_server())):
        with pytest.raises(SpecError, match=r"Did you mean 'llama-3\.1-8b'"):
            perf.claim(*sides, WORKLOAD, "ttft_p50(b) / ttft_p50(a) >= 1.2")
    assert perf.measurements == ()


@pytest.mark.parametrize(("margin", "wrong"), [
    ([0.1], ""), (10, "a margin must be below 1, and 10 % is 0.1"), ((2, 5), "5 %"),
])
def test_margins_are_read_before_a_server_starts(perf, margin, wrong):
    engine = endpoint("http://127.0.0.1:1", model="m")
    with pytest.raises(SloError, match=rf"{wrong}.*Write 0\.05 for 5 %"):
        perf.claim(engine, engine, WORKLOAD, "ttft_p50(b) / ttft_p50(a) >= 1.2", guards={"ttft_p50": margin})
    assert perf.measurements == ()


@pytest.mark.parametrize(("page", "verdict", "runs"), [
    (httpx.Response(404), Verdict.INCONCLUSIVE, 3), (None, Verdict.PASS, 3),
])
def test_claim_with_unverified_token_counts_buys_no_runs(perf, make_server, fake_engine, page, verdict, runs):
    fake_engine.counts_per_chunk = False
    if page is not None:
        fake_engine.answers["/metrics"] = page  # else the counter of generated tokens verifies them
    quick, other = make_server(), make_server(endpoint("http://127.0.0.1:1", model="slow"))
    first, *_ = perf.claim(quick, other, WORKLOAD, "tpot_mean(b) / tpot_mean(a) >= 0.5").results
    assert first.verdict is verdict
    assert [len(side.runs) for side in perf.measurements] == [runs, runs]


def test_guards_take_the_margin_that_the_claim_names(perf, make_server):
    fast, slow = make_server(), make_server(endpoint("http://127.0.0.1:1", model="slow"))
    guard = perf.claim(fast, slow, WORKLOAD, "ttft_p50(b) / ttft_p50(a) >= 0.5", guards={"tpot_mean": 0.3}).results[1]
    assert (limit_text(guard), guard.verdict) == ("≤ 1.3×", Verdict.PASS)


def test_comparison_of_side_a_follows_the_results_of_the_claim(perf, make_server):
    fast, slow = make_server(), make_server(endpoint("http://127.0.0.1:1", model="slow"))
    claim = perf.claim(fast, slow, WORKLOAD, "ttft_p50(b) / ttft_p50(a) >= 0.5")
    (result,) = perf.compare_with_baseline(claim.a, primaries=["ttft_p50"])
    assert result.verdict is Verdict.NO_BASELINE
    assert perf.results == (*claim.results, result)
