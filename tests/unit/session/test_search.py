"""Settings of a tuning, the choice of the best, and the text of the written test."""

from dataclasses import replace

import pytest

from pytest_llmperf import closed, exponential, multi_turn, poisson, random_tokens, vllm
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import EnvironmentMissing, HardwareBusy, RunInvalid, ServerDied, UsageError
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.session.resumption import looks_elsewhere, stored_rates, take_rate
from pytest_llmperf.session.search import BETTER, Search, best_row, check_writable_suite, default_rates, distinct, gain
from pytest_llmperf.session.setting_rows import SettingFile, SettingRow
from pytest_llmperf.stats.interval import Interval
from pytest_llmperf.testing.records import make_record

TALK = multi_turn(conversations=60, turns=5, arrivals=poisson(0.5), starters=10, starter=(3500, 4000), input=(8, 24),
                  output=(555, 1008), think_s=exponential(2), reply="server")
SPEC = vllm("llama-3.1-8b", max_model_len=16384, enable_prefix_caching=True, model_alias="llama")
SEARCH = Search(SPEC, TALK, ({"max_num_seqs": 64, "speculative_config": {"method": "ngram"}},),
                ("ttft_p99 <= 1000ms", "tpot_p99 <= 60ms"), precision=0.1, start_sd=0.02)


def row(rate, **flags):
    return SettingRow(flags, {} if rate is None else {"max_rate": rate}, "" if rate else "it died")


class Searches:
    """A `Perf` whose searches find the given rates or fail with the given errors, its execution and its session."""

    series, settings, host = (), Settings(), "here"
    session = property(lambda self: self)

    def __init__(self, make_measurement, make_run, *answers):
        self.answers, self.searches = list(answers), []
        self.measured = lambda rate: make_measurement(make_run(counters={"max_rate": rate}))

    def max_rate(self, spec, workload, **terms):
        self.searches.append((spec, workload, terms["to_beat"]))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return self.measured(answer)

    def notify(self, _status):
        pass

    def release_records(self):
        pass

    def rows(self, file):
        return list(SEARCH.rows(self, self, file))


def test_candidates_are_searched_from_rate_of_default(tmp_path, make_measurement, make_run):
    searches = Searches(make_measurement, make_run, 6.0, 9.0, 7.0)
    rows = searches.rows(SettingFile(tmp_path / "tune.jsonl", "tuning"))
    assert [row.metrics["max_rate"] for row in rows] == [6.0, 9.0, 7.0]
    assert searches.searches == [(SPEC, TALK, None), (SEARCH.tuned(SEARCH.candidates[0]), TALK, 6.0),
                                 (SPEC, TALK.at_rate(0.5, 100), None)]
    assert default_rates(rows, "here") == [6.0, 7.0]


def test_setting_with_invalid_run_is_measured_again_and_refused_setting_is_not(tmp_path, make_measurement, make_run):
    file = SettingFile(tmp_path / "tune.jsonl", "tuning")
    first = Searches(make_measurement, make_run, 6.0, RunInvalid("at 7/s: requests were sent 11.3 ms late"), 7.0)
    assert [row.is_final for row in first.rows(file)] == [True, False, True]
    second = Searches(make_measurement, make_run, ServerDied("no such flag"))
    rows = second.rows(file)
    assert [spec for spec, _, _ in second.searches] == [SEARCH.tuned(SEARCH.candidates[0])]
    assert [(row.metrics.get("max_rate"), row.problem) for row in rows] == [
        (6.0, ""), (None, "no such flag"), (7.0, "")]
    third = Searches(make_measurement, make_run)
    third.rows(file)
    assert third.searches == []


def test_default_is_measured_again_on_another_host_and_candidate_is_not(tmp_path, make_measurement, make_run):
    file = SettingFile(tmp_path / "tune.jsonl", "tuning")
    Searches(make_measurement, make_run, 6.0, 9.0, 7.0).rows(file)
    elsewhere = Searches(make_measurement, make_run, 12.0, 11.0)
    elsewhere.host = "there"
    rows = elsewhere.rows(file)
    assert [spec for spec, _, _ in elsewhere.searches] == [SPEC, SPEC]
    assert [(row.host, row.metrics["max_rate"]) for row in rows] == [
        ("here", 6.0), ("here", 7.0), ("there", 12.0), ("here", 9.0), ("there", 11.0)]
    assert default_rates(rows, "there") == [12.0, 11.0]
    assert gain(best_row(rows), rows) == pytest.approx(9.0 / 7.0)


def test_side_of_another_host_is_not_resumed_and_counts_as_a_look(make_measurement, make_run):
    """The starts of the stored rates tell the host of each side."""
    side = replace(make_measurement(make_run(start_id=3)), side="a", conditions={"search": "terms"})
    rate = replace(make_measurement(make_run(start_id=3)), conditions={
        "tried_rate": "8/s", "rate_host": "there", "rate_verdict": "PASS"})
    rates = stored_rates(TestResult("llmperf tune", False, None, (side, rate), ()), "here")
    assert looks_elsewhere(rates, "there") == 0
    assert looks_elsewhere(rates, "here") == 1
    begun = {host: replace(side, conditions={"search": "terms", "rate_host": host}) for host in ("here", "there")}
    assert take_rate(rates, begun["here"]) is None
    assert take_rate(rates, begun["there"]).side == "a"
    assert take_rate(rates, begun["there"]) is None


def test_settings_equal_to_default_or_to_each_other_are_left_out():
    settings = [{"max_model_len": 16384}, {"max_num_seqs": 8}, {"max_num_seqs": 8, "max_model_len": 16384}]
    assert len(distinct(SPEC, settings)) == 1


def test_best_setting_is_the_first_with_largest_gain():
    rows = [row(5.0), row(4.0, a=1), row(6.0, a=2), row(6.0, a=3), row(None, a=4), row(None)]
    assert best_row(rows) == rows[2]
    assert default_rates(rows, "") == [5.0]
    assert best_row([row(9.0), row(None, a=1), row(9.0, a=2)]) is None


@pytest.mark.parametrize(("low", "limit"), [(1.44, ">= 1.20"), (1.2, ">= 1.09"), (1.001, ">= 1.00")])
def test_written_test_defines_same_engines_load_and_half_of_the_gain(low, limit):
    proof = CheckResult(BETTER, Verdict.PASS, unit=Unit.RATIO, estimate=1.6, interval=Interval(low, 1.8, 0.99))
    text = SEARCH.suite(SEARCH.candidates[0], proof, "h200", "one H200", 2.0)
    assert '(TUNED, DEFAULT, LOAD, CLAIM, slo=SLOS, precision=0.1, quick=True, start_sd={"max_rate": 0.02})' in text
    assert max(map(len, text.splitlines())) <= 120
    assert "@pytest.mark.h200" in text
    names = {}
    exec(compile(text, "test_tuned.py", "exec"), names)
    assert names["CLAIM"] == f"max_rate(a) / max_rate(b) {limit}"
    assert names["DEFAULT"] == SPEC
    assert names["TUNED"] == SEARCH.tuned(SEARCH.candidates[0])
    assert names["LOAD"] == TALK.at_rate(0.4, 1000)
    assert names["SLOS"] == list(SEARCH.slos)


def test_written_test_of_unnamed_hardware_has_no_marker():
    proof = CheckResult(BETTER, Verdict.PASS, estimate=2.0, interval=Interval(1.5, 2.5, 0.99))
    assert "pytest.mark" not in SEARCH.suite({"max_num_seqs": 8}, proof, "other-gpu", "somewhere", 2.0)


def test_flag_with_a_secret_is_not_written(tmp_path):
    with pytest.raises(UsageError, match="a flag holds a secret"):
        check_writable_suite(tmp_path / "test_tuned.py", SPEC.with_flags(api_key="sk-123456789012345"))


class Half:
    """A `Perf` whose engine fails half of the requests."""

    def __init__(self, measurement):
        self.measurement = measurement

    def measure(self, *_given, **_options):
        return self.measurement


class Refusing:
    """A `Perf` that cannot measure."""

    def __init__(self, error):
        self.error = error

    def measure(self, *_given, **_options):
        raise self.error


def table_of(perf, tmp_path, *metrics):
    """The rows of a table without searches, of a default alone."""
    perf.series, perf.settings, perf.host, perf.session = (), Settings(), "here", perf
    perf.notify = perf.release_records = lambda *_given: None
    load = random_tokens(input=8, output=5, arrivals=closed(1), requests=20)
    search = Search(vllm("m"), load, (), metrics=metrics)
    return list(search.rows(perf, perf, SettingFile(tmp_path / "tune.jsonl", "table")))


def test_only_server_failures_become_problem_of_setting(tmp_path):
    (row,) = table_of(Refusing(ServerDied("it died")), tmp_path, "ttft_p95")
    assert row.problem == "it died"
    for error in (EnvironmentMissing("vllm is not installed"), HardwareBusy("somebody is there")):
        with pytest.raises(type(error)):
            table_of(Refusing(error), tmp_path, "ttft_p95")


@pytest.mark.parametrize(("metrics", "problem"), [(("ttft_p95",), True), (("ttft_p95", "error_rate"), False)])
def test_failed_requests_are_a_problem_unless_error_rate_is_requested(
    tmp_path, make_run, make_measurement, metrics, problem
):
    outcomes = [Outcome.OK, Outcome.HTTP_STATUS]
    records = [make_record(i, intended_ms=100 * i, outcome=outcomes[i % 2]) for i in range(20)]
    (row,) = table_of(Half(make_measurement(make_run(records))), tmp_path, *metrics)
    assert bool(row.problem) is problem
    assert bool(row.metrics) is not problem
