"""Comparisons with stored sessions: verdicts, and the reasons if no comparison is possible."""

import shutil
from dataclasses import replace
from math import exp
from statistics import stdev
from types import SimpleNamespace

import pytest

from pytest_llmperf.baseline.paths import baseline_path
from pytest_llmperf.baseline.rules import gradual_drift, outlier_shifts
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import BaselineError, SloError
from pytest_llmperf.judging.baseline_comparison import (
    ComparisonTerms,
    default_primaries,
    incomparable_result,
    judge_against_baseline,
    margins_from,
    paired_runs,
)
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.run import CountedBy, RunMetrics
from pytest_llmperf.model.engine import UNKNOWN_HARDWARE
from pytest_llmperf.model.record import Outcome, RunRecords
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import StoredMeasurement, StoredSession
from pytest_llmperf.results.causes.comparisons import RunsTooFew, SpreadTooLarge
from pytest_llmperf.results.causes.limits import TokensUnverified, ValuesInfinite
from pytest_llmperf.results.check import NoFurtherRuns
from pytest_llmperf.results.conditions import DEFAULT_RULES, FieldRules, comparable_sessions, server_kind
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.sentences import basis_text, reason_text
from pytest_llmperf.session.sequential_comparison import compare_with_baseline
from pytest_llmperf.session.stored_baselines import Baselines
from pytest_llmperf.stats.priors import Kind, Margins, SuiteSpread, prior_for
from pytest_llmperf.testing.records import make_record


def terms(*primaries):
    return ComparisonTerms(primaries, {}, len(primaries), "h200", "host")


@pytest.fixture
def today(make, fake_measurement):
    return replace(fake_measurement, conditions=make.CONDITIONS, primaries=("tpot_mean",))


def test_metric_missing_in_older_sessions_is_compared_with_newer_sessions(make, today):
    values = today.values("ttft_p50")
    earlier_session = make.session(0, anchor=True, tpot_mean=(20.0, 15.5), ttft_p50=(None, None))
    stored = make.stored(earlier_session, make.session(1, tpot_mean=(20.0, 15.5), ttft_p50=values))
    assert incomparable_result(today, stored, terms("ttft_p50")) is None
    (result,) = judge_against_baseline(today, stored, terms("ttft_p50"), 0)
    assert result.verdict.value != "ERROR"
    assert "of one session" in basis_text(result)


def test_comparison_of_a_metric_that_no_session_has_is_incomparable(make, today):
    stored = make.stored(make.session(0, anchor=True, tpot_mean=(20.0, 15.5), ttft_p50=(None, None)))
    result = incomparable_result(today, stored, terms("tpot_mean", "ttft_p50"))
    assert result.verdict.value == "INCOMPARABLE"
    assert "ttft_p50 is not stored" in reason_text(result)


def test_incomparable_reason_names_same_build_where_the_setting_is_the_cause(make, today, message):
    stored = make.stored(make.session(0, anchor=True, tpot_mean=(20.0, 15.5)))

    def reason(rules=DEFAULT_RULES, **changed):
        now = replace(today, conditions=make.CONDITIONS | changed)
        return incomparable_result(now, stored, replace(terms("tpot_mean"), rules=rules))

    strict = FieldRules(same_build=("driver", "engine.version"))
    assert reason(strict, driver="5").numbers["same_build"] == ["driver"]
    for result in (reason(strict, gpu="another"), reason(gpu="another")):
        assert not result.numbers.get("same_build")
    message(reason_text(reason(strict, driver="5")))


@pytest.mark.parametrize(("named", "said"), [("gpu.ec", True), ("model", False), ("engine.fast", False)])
def test_a_typo_in_compare_across_is_named(make, today, named, said):
    earlier_session = make.session(0, anchor=True, tpot_mean=(20.0, 15.5))
    stored = make.stored(earlier_session, conditions=make.CONDITIONS | {"gpu.ecc": "on"})
    wanted = replace(terms("tpot_mean"), rules=FieldRules(compare_across=(named,)))
    facts = incomparable_result(today, stored, wanted).numbers
    assert facts["differing"] == {"gpu.ecc": ["on", None]}
    assert facts.get("suggestions", {}) == ({"gpu.ec": "gpu.ecc"} if said else {})


def test_compare_across_without_prefix_suggests_full_condition_name(make, today):
    earlier_session = make.session(0, anchor=True, tpot_mean=(20.0, 15.5))
    stored = make.stored(earlier_session, conditions=make.CONDITIONS | {"gpu.persistence": "on"})
    wanted = replace(terms("tpot_mean"), rules=FieldRules(compare_across=("persistence", "tence")))
    facts = incomparable_result(today, stored, wanted).numbers
    assert facts["suggestions"] == {"persistence": "gpu.persistence"}


@pytest.mark.parametrize(("named", "refused"), [
    ("engine.dtyp", True), ("engine.dtype", True), ("engine.page_size", False), ("driver", False)])
def test_typo_in_same_build_makes_changed_build_incomparable(make, today, named, refused):
    """Whoever asks for an equal build is not compared with another one because of a typo."""
    earlier_session = make.session(0, anchor=True, tpot_mean=(20.0, 15.5))
    stored = make.stored(earlier_session, conditions=make.CONDITIONS | {"engine.dtype": "float16"})
    wanted = replace(terms("tpot_mean"), rules=FieldRules(same_build=(named,)))
    result = incomparable_result(today, stored, wanted)
    assert (result is not None) is refused
    if named == "engine.dtyp":
        assert result.numbers["same_build_suggestions"] == {"engine.dtyp": "engine.dtype"}
    same = make.stored(earlier_session, conditions=make.CONDITIONS)
    assert incomparable_result(today, same, wanted) is None


UPGRADED = {"engine": "vllm", "engine.version": "2.0", "engine.max_num_batched_tokens": "16384"}
OLD = {"engine": "vllm", "engine.version": "1.0", "engine.max_num_batched_tokens": "8192"}


@pytest.mark.parametrize(("change", "verdict"), [
    (5.0, "FAIL"), (1.06, "INCONCLUSIVE"), (1.0, "PASS"), (0.2, "IMPROVED"),
])
def test_comparison_across_versions_names_builds_and_changed_default(make, three_runs, change, verdict):
    stored = of_sessions(make, three_runs, 2, change)
    stored = replace(stored, fingerprint=make.CONDITIONS | OLD)
    upgraded = replace(three_runs, conditions=make.CONDITIONS | UPGRADED)
    (result,) = judge_against_baseline(upgraded, stored, terms("tpot_mean"), 0, NoFurtherRuns.OUT_OF_TIME)
    assert result.verdict.value == verdict
    assert ("first suspect: changed defaults" in reason_text(result)) is (verdict in ("FAIL", "INCONCLUSIVE"))
    assert result.numbers["build_changes"] == {"engine.version": ["1.0", "2.0"],
                                             "engine.max_num_batched_tokens": ["8192", "16384"]}


def test_build_is_suspected_where_no_default_changed(make, three_runs, message):
    stored = replace(of_sessions(make, three_runs, 3, 5.0), fingerprint=make.CONDITIONS | {"driver": "580"})
    now = replace(three_runs, conditions=make.CONDITIONS | {"driver": "590"})
    (result,) = judge_against_baseline(now, stored, terms("tpot_mean"), 0)
    assert result.numbers["build_changes"] == {"driver": ["580", "590"]}
    message(reason_text(result))


def test_unusable_comparison_names_builds(make, today):
    stored = make.stored(make.session(0, anchor=True, tpot_mean=(20.0, 15.5)), conditions=make.CONDITIONS | OLD)
    now = replace(today, conditions=make.CONDITIONS | UPGRADED, metrics=tuple(map(without_tpot, today.metrics)))
    (result,) = judge_against_baseline(now, stored, terms("tpot_mean"), 0)
    assert result.verdict is Verdict.ERROR
    assert "vLLM 1.0 → 2.0" in basis_text(result)


@pytest.mark.parametrize(("host", "version", "text"), [
    ("host", "2.0", ""),
    ("host", "3.0", "provisional: 4 stored sessions of this host and 1 other host with the engine 1.0 and 2.0"),
    ("new", "2.0", "provisional: 4 stored sessions of 2 other hosts with the engine 1.0 and 2.0"),
    ("other", "2.0", "provisional: 4 stored sessions of this host and 1 other host with the engine 1.0 and 2.0"),
])
def test_comparison_without_session_of_host_and_build_is_provisional(make, three_runs, host, version, text):
    values = three_runs.values("tpot_mean")
    old = [replace(make.session(day, anchor=not day, tpot_mean=values, differs={"engine.version": "1.0"}), host=host)
           for day, host in enumerate(("host", "other"))]
    new = [make.session(day, tpot_mean=values) for day in (2, 3)]
    stored = make.stored(*old, *new, conditions=make.CONDITIONS | {"engine.version": "2.0"})
    now = replace(three_runs, conditions=make.CONDITIONS | {"engine.version": version})
    (result,) = judge_against_baseline(now, stored, replace(terms("tpot_mean"), host=host), 0)
    assert result.verdict is Verdict.PASS
    assert ("provisional: 4" in basis_text(result)) is bool(text)
    assert text in basis_text(result)


@pytest.mark.parametrize(("change", "verdict"), [(5.0, "FAIL"), (1.0, "PASS")])
def test_new_host_and_build_can_pass_and_fail(make, three_runs, change, verdict):
    """Provisional is a word, not an excuse: the interval holds the spread between hosts."""
    stored = of_sessions(make, three_runs, 3, change)
    now = replace(three_runs, conditions=make.CONDITIONS | UPGRADED)
    here = replace(terms("tpot_mean"), host="never stored")
    (result,) = judge_against_baseline(now, stored, here, 0, NoFurtherRuns.OUT_OF_TIME)
    assert result.verdict.value == verdict
    facts = result.numbers
    assert (facts["compared_sessions"], facts["stored_hosts"], facts["host_stored"]) == (3, 1, False)


@pytest.mark.parametrize(("closed_loop", "missing", "primaries"), [
    (False, (), ("itl_p50", "tpot_mean")),
    (True, (), ("itl_p50", "tpot_mean", "output_throughput")),
    (False, ("itl_p50", "tpot_mean"), ("ttft_mean",)),
    (True, ("itl_p50", "tpot_mean"), ("ttft_mean", "output_throughput")),
    (False, ("itl_p50", "tpot_mean", "ttft_mean"), ()),
])
def test_default_primaries_are_decode_step_or_mean_ttft_without_decode(make, closed_loop, missing, primaries):
    values = dict.fromkeys({"itl_p50", "tpot_mean", "ttft_mean", "ttft_p50", "output_throughput"} - set(missing), 9.0)
    measurement = make.fresh(**values, primaries=("ttft_p50",))
    assert default_primaries(measurement, None, closed_loop=closed_loop) == primaries


def test_a_metric_that_vanished_is_judged_and_is_an_error(make, today):
    stored = make.stored(make.session(0, anchor=True, tpot_mean=(20.0, 15.5)), primaries=("tpot_mean",))
    without_metric = replace(today, metrics=tuple(map(without_tpot, today.metrics)))
    assert default_primaries(without_metric, None, closed_loop=False) == ("itl_p50",)
    assert default_primaries(without_metric, stored, closed_loop=False) == ("itl_p50", "tpot_mean")
    (result,) = judge_against_baseline(without_metric, stored, terms("tpot_mean"), 0)
    assert result.verdict.value == "ERROR"
    assert "a run's value is missing" in reason_text(result)


def test_baseline_comparison_with_unverified_token_counts_is_inconclusive(make, today):
    stored = make.stored(make.session(0, anchor=True, tpot_mean=(20.0, 15.5)), primaries=("tpot_mean",))
    unconfirmed = replace(today, metrics=tuple(replace(metric, counted_by=None) for metric in today.metrics))
    (result,) = judge_against_baseline(unconfirmed, stored, terms("tpot_mean"), 0)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert (type(result.cause), result.numbers["metric"]) == (TokensUnverified, "tpot_mean")


def of_sessions(make, today, count, change):
    """So many stored sessions, in which mean TPOT was today's without that change."""
    stored_values = tuple(value / change for value in today.values("tpot_mean"))
    sessions = [make.session(day, anchor=not day, tpot_mean=stored_values) for day in range(count)]
    return make.stored(*sessions, primaries=("tpot_mean",))


@pytest.fixture
def three_runs(today):
    runs = tuple(replace(today.runs[0], seed=seed) for seed in range(3))
    return replace(today, runs=runs, metrics=(today.metrics[0],) * 3)


@pytest.mark.parametrize(("sessions", "others", "change", "verdict"), [
    *((sessions, 0, *decided) for sessions in (1, 2) for decided in (
        (5.0, "FAIL"), (1.2, "INCONCLUSIVE"), (1.0, "PASS"), (0.2, "IMPROVED"))),
    (2, 8, 1.2, "FAIL"), (1, 8, 1.2, "FAIL"), (9, 0, 1.2, "FAIL"),
])
def test_few_runs_against_few_sessions_decide_only_large_changes(make, three_runs, sessions, others, change, verdict):
    """`others`: other metrics of the suite, with two stored sessions each."""
    stored = of_sessions(make, three_runs, sessions, change)
    levels = [(Kind.STEP, prior_for(find("itl_p50"), "h200"), (0.0, 0.005))] * others
    known = replace(terms("tpot_mean"), suite=SuiteSpread.of(levels) if others else None)
    (result,) = judge_against_baseline(three_runs, stored, known, 0, NoFurtherRuns.OUT_OF_TIME)
    assert result.verdict.value == verdict


def test_ten_sessions_of_one_host_leave_spread_to_new_host_unknown(make, three_runs):
    stored = of_sessions(make, three_runs, 10, 1.2)
    verdicts = [judge_against_baseline(three_runs, stored, replace(terms("tpot_mean"), host=host), 0)[0].verdict.value
                for host in ("host", "new host")]
    assert verdicts == ["FAIL", "INCONCLUSIVE"]


def test_noisy_sessions_of_suite_keep_quiet_test_from_failing(make, three_runs):
    """+6 % against four equal sessions: FAIL in a quiet suite, INCONCLUSIVE in a suite whose sessions differ by 2 %."""
    stored = of_sessions(make, three_runs, 4, 1.06)
    prior = prior_for(find("tpot_mean"), "h200")
    verdicts = []
    for step in (0.001, 0.03):
        suite = SuiteSpread.of([(Kind.TPOT, prior, (0.0, step))] * 10)
        (result,) = judge_against_baseline(three_runs, stored, replace(terms("tpot_mean"), suite=suite), 0)
        verdicts.append(result.verdict.value)
    assert verdicts == ["FAIL", "INCONCLUSIVE"]


@pytest.mark.parametrize(("tolerated", "verdict"), [({}, "INCONCLUSIVE"), ({"tpot_mean": 0.2}, "PASS")])
def test_named_margin_replaces_learnt_margin_of_baseline(make, three_runs, tolerated, verdict):
    stored = replace(of_sessions(make, three_runs, 1, 1.04), tolerated=tolerated)
    (result,) = judge_against_baseline(three_runs, stored, terms("tpot_mean"), 0)
    assert result.verdict.value == verdict
    named = replace(terms("tpot_mean"), margins={"tpot_mean": Margins(0.02, 0.05)})
    assert judge_against_baseline(three_runs, stored, named, 0)[0].verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("change", [5.0, 1.06, 0.2])
def test_values_before_and_after_differ_by_change_of_verdict(make, three_runs, change):
    stored = of_sessions(make, three_runs, 2, change)
    (result,) = judge_against_baseline(three_runs, stored, terms("tpot_mean"), 0, NoFurtherRuns.OUT_OF_TIME)
    now = three_runs.values("tpot_mean")[0]
    assert (result.before, result.after) == (pytest.approx(now / change), pytest.approx(now))
    assert result.after / result.before - 1 == pytest.approx(result.estimate)


def test_comparison_with_few_sessions_names_smallest_detectable_change_and_needed_sessions(make, three_runs):
    (result,) = judge_against_baseline(
        three_runs, of_sessions(make, three_runs, 2, 1.06), terms("tpot_mean"), 0, NoFurtherRuns.OUT_OF_TIME
    )
    assert isinstance(result.cause, SpreadTooLarge)
    facts = result.numbers
    assert facts["deciding_sessions"] == 9
    assert 0.1 < facts["smallest_detectable"] < 1
    (result,) = judge_against_baseline(
        three_runs, of_sessions(make, three_runs, 2, 1.0), terms("tpot_mean"), 0, NoFurtherRuns.OUT_OF_TIME
    )
    assert result.numbers["deciding_sessions"] == 9
    assert 0.1 < result.numbers["smallest_detectable"] < 1


def test_gross_regression_in_two_runs_stays_open(make, three_runs):
    two = three_runs.only(lambda run: run.seed < 2)
    (result,) = judge_against_baseline(two, of_sessions(make, two, 2, 5.0), terms("tpot_mean"), 0,
                                       NoFurtherRuns.CACHE_NOT_RESET)
    assert isinstance(result.cause, RunsTooFew)
    assert (result.numbers["deciding_runs"], result.numbers["runs"], result.numbers["no_further_runs"]) == (
        3, 2, "cache_not_reset")


def test_enough_sessions_wait_for_three_runs_only(make, three_runs):
    two = three_runs.only(lambda run: run.seed < 2)
    (result,) = judge_against_baseline(two, of_sessions(make, two, 10, 1.0), terms("tpot_mean"), 0,
                                       NoFurtherRuns.OUT_OF_TIME)
    assert "no regression fails before 3 runs" in basis_text(result)


def test_runs_without_stored_seed_add_no_look(make, three_runs):
    """Else eight runs, two of them in pairs, would spend the error of eight pairs."""
    eight = replace(three_runs, runs=tuple(replace(three_runs.runs[0], seed=seed) for seed in range(8)),
                    metrics=(three_runs.metrics[0],) * 8)
    stored = of_sessions(make, three_runs, 1, 5.0)
    stored = replace(stored, sessions=(replace(stored.sessions[0], runs=((0, 0), (1, 0)), metrics={
        "tpot_mean": tuple(value / 5 for value in three_runs.values("tpot_mean")[:2])}),))
    assert paired_runs(eight, stored) == 2
    (result,) = judge_against_baseline(eight, stored, terms("tpot_mean"), 0)
    assert result.verdict.value == "INCONCLUSIVE"
    again = replace(eight, runs=tuple(replace(run, seed=run.seed % 2) for run in eight.runs))
    (result,) = judge_against_baseline(again, stored, terms("tpot_mean"), 0)
    assert result.verdict.value == "FAIL"


@pytest.fixture
def compared(three_runs):
    """Compare so many runs of today with what is stored, as a session does; gives results, and what was bought."""

    def compared(stored, seeds, rules=DEFAULT_RULES, of=three_runs):
        def so_many(seeds):
            runs = tuple(replace(of.runs[0], seed=seed) for seed in seeds)
            return replace(of, runs=runs, metrics=(of.metrics[0],) * len(runs))

        def extend(runs, *, seeds):
            bought.append(runs)
            had = [run.seed for run in series.finished.runs]
            series.finished = so_many([*had, *((len(had) + i) % seeds for i in range(runs))])

        bought, wanted = [], replace(terms("tpot_mean"), rules=rules)
        session = SimpleNamespace(
            settings=Settings(), clock=SimpleNamespace(now_ns=lambda: 0),
            baselines=SimpleNamespace(
                of=lambda _kind: SimpleNamespace(find=lambda *_: stored, terms=lambda *_: wanted)),
        )
        series = SimpleNamespace(session=session, execution=SimpleNamespace(test="t.py::x"), number=1,
                                 judged_metrics=(), finished=so_many(seeds), extend=extend, repeatable=True)
        return compare_with_baseline(series, {}), bought

    return compared


def test_baseline_comparison_measures_missing_pairs(make, three_runs, compared):
    """Six of nine runs have seeds that nobody stored: they are no third look."""
    stored = make.stored(make.session(0, anchor=True, tpot_mean=tuple(
        value / 1.04 for value in three_runs.values("tpot_mean"))))
    assert compared(stored, range(3))[1] == [2, 3]
    assert compared(stored, range(9))[1] == [2, 3]
    assert compared(stored, [0, 1, 2, 0, 1, 2, 0, 1])[1] == []
    elsewhere = replace(stored.sessions[0], runs=((7, 1), (8, 1), (9, 1)))
    assert compared(replace(stored, sessions=(elsewhere,)), [7])[1] == [2]  # neither has a seed that is stored: it ends


def test_failed_requests_prevent_further_runs(make, three_runs, compared):
    records = tuple(make_record(i, outcome=Outcome.TIMEOUT if i == 3 else Outcome.OK) for i in range(10))
    failing = replace(three_runs, metrics=(Run(seed=0, start_id=1, records=records).metrics,) * 3)
    stored = make.stored(make.session(0, anchor=True, tpot_mean=failing.values("tpot_mean")))
    (result,), bought = compared(stored, range(3), of=failing)
    assert (result.verdict, bought) == (Verdict.INCONCLUSIVE, [])


def test_comparison_uses_only_sessions_with_equal_conditions(make, three_runs, compared):
    here, other = (tuple(value / by for value in three_runs.values("tpot_mean")) for by in (1.0, 2.0))
    stored = make.stored(make.session(0, anchor=True, tpot_mean=here), make.session(1, tpot_mean=here),
                         make.session(2, tpot_mean=here), *(
        make.session(day, tpot_mean=other, differs={"gpu.ecc": "on"}) for day in (3, 4, 5)))
    across = FieldRules(("gpu.ecc",))
    ((alone,), _), ((among,), _) = compared(stored, range(3)), compared(stored, range(3), rules=across)
    assert (alone.verdict, alone.numbers["stored_runs"], alone.numbers["stored_sessions"]) == (Verdict.PASS, 9, 3)
    assert basis_text(among).endswith("of 6 sessions")


def test_sessions_with_different_conditions_count_if_condition_may_differ(make):
    here, earlier_session = make.session(0, anchor=True, tpot_mean=20.0), make.session(1, tpot_mean=20.0)
    other = make.session(2, tpot_mean=20.0, differs={"gpu.ecc": "on"})
    unrecorded = make.session(3, tpot_mean=20.0, differs={"cuda": None, "host_env.NCCL_NVLS_ENABLE": None})
    absent = make.session(4, tpot_mean=20.0, differs={"treatment": None})  # not unknown: caches were treated as usual
    build = make.session(5, tpot_mean=20.0, differs={"driver": "5", "engine.max_num_seqs": None})
    stored = make.stored(here, earlier_session, other, unrecorded, absent, build)
    assert comparable_sessions(stored, DEFAULT_RULES).sessions == (here, earlier_session, unrecorded, build)
    assert comparable_sessions(stored, FieldRules(("gpu.ecc", "treatment"))) == stored
    assert comparable_sessions(stored, FieldRules(same_build=("driver",))).sessions == (
        here,
        earlier_session,
        unrecorded,
    )


def test_session_with_another_value_of_an_asked_flag_does_not_count(make):
    session = make.session(0, anchor=True, tpot_mean=20.0, differs={"engine.max_num_seqs": "256"})
    stored = make.stored(session, conditions=make.CONDITIONS | {"flags": '{"max_num_seqs": 0}'})
    assert comparable_sessions(stored, DEFAULT_RULES).sessions == ()


def test_baseline_without_comparable_session_is_incomparable(make, today):
    session = make.session(0, anchor=True, tpot_mean=20.0, differs={"gpu.ecc": "on"})
    stored = comparable_sessions(make.stored(session), DEFAULT_RULES)
    assert "tpot_mean is not stored under these conditions" in \
        reason_text(incomparable_result(today, stored, terms("tpot_mean")))


def test_smallest_detectable_change_shrinks_if_further_runs_are_possible(make, three_runs):
    def seen(**how):
        (result,) = judge_against_baseline(
            three_runs, of_sessions(make, three_runs, 9, 1.0), terms("tpot_mean"), 0, **how
        )
        return result.numbers["smallest_detectable"]

    assert seen(no_further_runs=NoFurtherRuns.OUT_OF_TIME) > seen()


def test_the_error_is_shared_by_all_that_the_suite_stores(make):
    of_one = make.stored(make.session(0, anchor=True, tpot_mean=20.0))
    both = make.session(0, anchor=True, tpot_mean=20.0, ttft_p50=40.0)
    of_two = make.stored(both, primaries=("tpot_mean", "ttft_p50"))
    stored_baselines = {"a": make.baseline(of_one, test="t.py::a"), "b": make.baseline(of_two, test="t.py::b")}
    store = SimpleNamespace(read_each={"h200": stored_baselines, "l4": {}}.get)
    baselines = Baselines(store, "host", DEFAULT_RULES)
    assert baselines.of("h200").terms(("tpot_mean",), {}).suite_primaries == 3
    assert baselines.of("l4").terms(("tpot_mean",), {}).suite_primaries == 0


def test_baselines_of_one_gpu_kind_are_read_once_per_pytest_session(make, tmp_path):
    stored = sessions_of(make, 0.05, 10)
    store = Store(tmp_path / "baselines")
    with store.update() as write:
        write({baseline_path("t.py::x", "h200"): make.baseline(stored, test="t.py::x")})
    baselines = Baselines(store, "host", DEFAULT_RULES).of("h200")

    assert baselines.find("t.py::x", "") is not None
    shutil.rmtree(store.root)
    assert baselines.find("t.py::x", "") is not None
    assert baselines.run_sd("t.py::x") is not None
    assert baselines.run_sd("t.py::y") is not None
    assert baselines.start_sd("t.py::x", "ttft_p50", "h200") is not None
    assert baselines.terms(("ttft_p50",), {}).suite_primaries == 1


def test_unreadable_baseline_fails_only_comparisons_with_that_file(make, tmp_path):
    store = Store(tmp_path / "baselines")
    with store.update() as write:
        write({baseline_path(test, "h200"): make.baseline(sessions_of(make, 0.05, 10), test=test)
                      for test in ("t.py::x", "t.py::y")})
    (store.root / baseline_path("t.py::y", "h200")).write_text("{")
    baselines = Baselines(store, "host", DEFAULT_RULES).of("h200")
    assert baselines.find("t.py::x", "") is not None
    assert baselines.run_sd("t.py::y") is not None
    with pytest.raises(BaselineError, match=r"y\.json"):
        baselines.find("t.py::y", "")


def sessions_of(make, sd, count, primaries=("ttft_p50",)):
    """So many stored sessions of two seeds, whose median TTFT differs by that sd."""
    centred = [exp(sd * (day - (count - 1) / 2) / stdev(range(count))) for day in range(count)]
    return make.stored(*(make.session(day, anchor=not day, ttft_p50=(40 * value, 50 * value), tpot_mean=(20.0, 15.5))
                         for day, value in enumerate(centred)), primaries=primaries)


def start_sd(sd_of_test, *others):
    stored = {} if sd_of_test is None else {baseline_path("t.py::x", "h200"): sd_of_test}
    stored |= {f"h200/t/other{number}.json": other for number, other in enumerate(others)}
    store = SimpleNamespace(read_each=lambda _: stored, owned=lambda baseline, *_: baseline)
    return Baselines(store, "host", DEFAULT_RULES).of("h200").start_sd("t.py::x", "ttft_p50", "h200")


@pytest.mark.parametrize(("sd", "count", "shown"), [
    (0.05, 10, 0.0657), (0.03, 5, 0.0598), (0.001, 10, 0.027), (0.05, 5, 0.0995), (0.06, 5, 0.10), (0.2, 10, 0.10),
])
def test_between_start_sd_is_limited_by_prior_and_default(make, sd, count, shown):
    """Times 1.31 for ten sessions and 1.99 for five; at least the prior's 2.7 % and at most the default's 10 %."""
    estimated = start_sd(make.baseline(sessions_of(make, sd, count)))
    assert estimated.value == pytest.approx(shown, rel=0.01)
    assert ("stored sessions of this test" in estimated.source) is (shown < 0.1)


def test_claim_without_sessions_takes_the_largest_stored_sd(make):
    calm, noisy = (make.baseline(sessions_of(make, sd, 10)) for sd in (0.03, 0.05))
    unjudged = make.baseline(sessions_of(make, 0.2, 10, primaries=("tpot_mean",)))
    assert start_sd(None, calm, noisy, unjudged).value == pytest.approx(0.0657, rel=0.01)
    assert start_sd(make.baseline(sessions_of(make, 0.03, 2)), calm).source == \
        "from 10 stored sessions of the noisiest test on h200"
    assert start_sd(None, make.baseline(sessions_of(make, 0.03, 2)), unjudged) is None


@pytest.mark.parametrize(("url", "negligible"), [
    ("http://10.0.0.5:8000", 0.03), ("http://localhost:8000", 0.05),
])
def test_endpoint_on_another_machine_is_not_judged_as_a_cpu(make, three_runs, url, negligible):
    """Median TTFT +20 % at 0.5 % of noise, sent from a machine without a GPU."""
    conditions = make.CONDITIONS | {"hardware": "cpu", "url": url}
    stored_values = [value / 1.2 for value in three_runs.values("ttft_p50")]
    stored = make.stored(*(make.session(day, anchor=not day, ttft_p50=tuple(value * by for value in stored_values))
                           for day, by in enumerate((0.995, 1.0, 1.005, 1.0, 0.998, 1.0, 1.005, 0.995, 1.0))),
                         primaries=("ttft_p50",), conditions=conditions)
    wanted = replace(terms("ttft_p50"), kind=server_kind(conditions))
    (result,) = judge_against_baseline(three_runs, stored, wanted, 0, NoFurtherRuns.CACHE_NOT_RESET)
    assert result.numbers["negligible"] == pytest.approx(negligible)


@pytest.mark.parametrize(("kind", "per_run", "verdict"), [
    ("h200", 1.06, "ERROR"), (UNKNOWN_HARDWARE, 1.06, "INCONCLUSIVE"), (UNKNOWN_HARDWARE, 1.2, "ERROR"),
])
def test_drift_limit_is_wider_on_unknown_hardware(make, three_runs, kind, per_run, verdict):
    """Runs that differ by 6 % are noise on a server of which nobody knows how noisy it is."""
    stored_values = tuple(value / per_run**seed for seed, value in enumerate(three_runs.values("tpot_mean")))
    stored = make.stored(make.session(0, anchor=True, tpot_mean=stored_values), primaries=("tpot_mean",))
    (result,) = judge_against_baseline(three_runs, stored, replace(terms("tpot_mean"), kind=kind), 0)
    assert result.verdict.value == verdict


def test_a_step_below_the_margin_is_a_failed_comparison(make, today):
    """Fault 60: nine sessions at one level, then five 4.2 % above: neither an outlier nor a gradual drift."""
    earlier_history = make.history(100.1, 99.8, 100.0, 100.2, 99.9, 100.1, 99.9, 100.0, 100.0)
    margins = {"tpot_mean": 0.05}
    for shifted in (104.4, 104.0, 104.2, 104.3, 104.1):
        session = make.session(9, tpot_mean=shifted)
        assert not outlier_shifts(session, earlier_history.sessions, ["tpot_mean"], margins)
        assert not gradual_drift([*earlier_history.sessions, session], ["tpot_mean"], margins)
        values = [{"tpot_mean": shifted * noise} for noise in (0.998, 1.0, 1.002)]
        metrics = tuple(RunMetrics(RunRecords(), of_run, CountedBy.CHUNKS) for of_run in values)
        moved = replace(today, runs=tuple(Run(seed, 1, ()) for seed in range(3)), metrics=metrics)
        (result,) = judge_against_baseline(moved, earlier_history, terms("tpot_mean"), 0)
        assert result.verdict.value == "FAIL"


def without_tpot(metrics):
    """As if each answer had come as one chunk."""
    return replace(metrics, values={name: value for name, value in metrics.all().items() if "tpot" not in name})


@pytest.mark.parametrize("given", [[0.02, 0.05], (0.01, 0.02, 0.05), "5%", (0.1, 0.05)])
def test_malformed_margins_are_refused_with_example(given):
    with pytest.raises(SloError, match=r"Write 0.05 for 5 %"):
        margins_from({"ttft_p50": given})


def test_dropped_slowest_requests_make_no_improvement():
    """3 % take a second, or run into a timeout: of the survivors ttft_p99 is 93 % better."""
    def measured(outcome):
        records = tuple(make_record(i, intended_ms=100.0 * i, ttft_ms=1000.0 if i % 33 == 0 else 50.0,
                                    outcome=outcome if i % 33 == 0 else Outcome.OK) for i in range(330))
        runs = tuple(Run(seed=seed, start_id=1, records=records) for seed in range(3))
        return Measurement("e", "w", {"hardware": "h200"}, runs, tuple(run.metrics for run in runs))

    earlier_measurement, names = measured(Outcome.OK), ("ttft_p50", "ttft_p99", "ttft_mean")
    sessions = tuple(
        StoredSession(str(i), "d", None, "host", None, i == 0, tuple((run.seed, 1) for run in earlier_measurement.runs),
                      {name: earlier_measurement.values(name) for name in names})
        for i in range(3)
    )
    stored = StoredMeasurement({"hardware": "h200"}, sessions, names, {})
    assert {check.verdict for check in judge_against_baseline(earlier_measurement, stored, terms(*names), 0)} == {
        Verdict.PASS
    }
    median, tail, mean = judge_against_baseline(measured(Outcome.TIMEOUT), stored, terms(*names), 0)
    assert median.verdict is Verdict.PASS
    for result in (tail, mean):
        assert result.verdict is Verdict.INCONCLUSIVE  # not worse than the FAIL of error_rate, where it has a limit
        assert isinstance(result.cause, ValuesInfinite)
        facts = result.numbers
        assert (facts["missing_runs"], facts["of_runs"], facts["failed_requests"]) == (3, 3, 30)
