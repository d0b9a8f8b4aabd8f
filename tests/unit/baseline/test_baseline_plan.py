"""The plan of a baseline update: created, changed and refused baselines."""

import json
from dataclasses import replace

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.baseline.plan import plan
from pytest_llmperf.baseline.text import decode, encode, rounded
from pytest_llmperf.baseline.update_plan import Action, line
from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.results.baseline import Baseline
from pytest_llmperf.results.conditions import FieldRules, fingerprint_of
from pytest_llmperf.results.reader import read_test

PATH = "h200/serving/test_it.json"


@pytest.fixture
def decide(make):
    """One test against one stored measurement; gives (entry, measurement to be written or None)."""

    def decide(result, stored=None, mode="all", **options):
        existing = {} if stored is None else {PATH: make.baseline(stored)}
        update_plan = plan([result], existing, make.terms(**options), mode)
        (entry,) = update_plan.entries
        assert entry.path == PATH
        assert set(update_plan.files) <= {PATH}
        written = update_plan.files[PATH].measurements[""] if update_plan.files else None
        assert (written is not None) == (entry.action in (Action.CREATED, Action.CHANGED))
        if written is not None:
            assert decode(encode(update_plan.files[PATH]), "f") == update_plan.files[PATH]
            assert sum(session.anchor for session in written.sessions) == 1
        return entry, written

    return decide


def test_a_first_session_creates_and_is_the_anchor(make, decide):
    fresh = make.fresh(tpot_mean=(6.46, 6.4, 6.5400004), ttft_p50=43.0, primaries=("tpot_mean",))
    entry, written = decide(make.result(fresh, verdicts=[("NO_BASELINE", "tpot_mean")]))
    assert (entry.action, entry.sessions, entry.primaries) == (Action.CREATED, 1, ("tpot_mean",))
    (session,) = written.sessions
    assert (session.id, session.date, session.commit) == ("20260201T000000Z-today1", "2026-02-01", "def")
    assert (session.anchor, session.accepted) == (True, None)
    assert session.values("tpot_mean") == (6.46, 6.4, 6.54)
    assert session.runs == ((0, 1), (1, 1), (2, 1))
    assert written.primaries == ("tpot_mean",)
    assert written.formulas == {"tpot_mean": "tpot.1/mean", "ttft_p50": "ttft.1/p50"}
    assert written.fingerprint == {"hardware": "h200", "engine.version": "1.0", "model": "m"}
    assert written.workload == "w"


def test_metrics_that_no_run_has_are_not_stored(make, decide):
    metrics = {"tpot_mean": 1.0, "kv_usage_peak": None, "spec_acceptance_rate": (None, 0.5, None)}
    _, written = decide(make.result(make.fresh(**metrics, primaries=("tpot_mean",))))
    assert written.metrics == ("spec_acceptance_rate", "tpot_mean")
    assert written.sessions[0].values("spec_acceptance_rate") == (None, 0.5, None)


def test_missing_baseline_measurement_needs_no_update(make):
    update_plan = plan([make.result()], {}, make.terms(), "all")
    assert (update_plan.entries, dict(update_plan.files)) == ((), {})


def test_update_adds_session_to_baseline(make, decide):
    entry, written = decide(make.result(make.fresh(tpot_mean=101.0)), make.history(100.0, 100.0))
    assert (entry.action, entry.sessions) == (Action.CHANGED, 3)
    assert [session.anchor for session in written.sessions] == [True, False, False]
    assert written.workload == "w"  # the baseline is of a version that stored the digest alone
    (move,) = entry.moves
    assert (move.metric, move.old) == ("tpot_mean", 100.0)
    assert move.percent == pytest.approx(1 / 3)


def test_eleventh_session_replaces_oldest_session_but_keeps_anchor(make, decide):
    entry, written = decide(make.result(make.fresh(tpot_mean=100.0)), make.history(*[100.0] * 10))
    assert len(written.sessions) == 10
    assert written.sessions[0].anchor
    assert entry.reasons == ("drops out: 20260101T000000Z-000001",)


def test_update_of_missing_baselines_keeps_existing_sessions(make, decide):
    entry, _ = decide(make.result(make.fresh(tpot_mean=101.0)), make.history(100.0), mode="new")
    assert entry.action is Action.KEPT
    entry, _ = decide(make.result(make.fresh(tpot_mean=101.0)), mode="new")
    assert entry.action is Action.CREATED
    failed = make.result(make.fresh(tpot_mean=101.0), verdicts=[("FAIL", "tpot_mean")])
    assert decide(failed, make.history(100.0), mode="new", accept="why")[0].action is Action.KEPT


@pytest.mark.parametrize("verdict", ["FAIL", "ERROR", "INCONCLUSIVE"])
@pytest.mark.parametrize("there", [True, False])
def test_a_bad_verdict_is_refused_and_can_be_accepted(make, decide, verdict, there):
    """Fault 59."""
    result = make.result(make.fresh(tpot_mean=101.0), verdicts=[("PASS", "itl_mean"), (verdict, "tpot_mean")])
    stored = make.history(100.0) if there else None
    entry, _ = decide(result, stored)
    assert (entry.action, entry.acceptable) == (Action.REFUSED, True)
    assert entry.reasons == (f"{verdict}: check tpot_mean",)
    entry, written = decide(result, stored, accept="a new driver")
    assert entry.action is (Action.CHANGED if there else Action.CREATED)
    assert entry.reasons == (f"accepted (a new driver): {verdict}: check tpot_mean",)
    assert written.sessions[-1].accepted == "a new driver"
    # Accepting doubtful runs is not accepting another level.
    assert written.sessions[-1].anchor is (verdict == "FAIL" or not there)


@pytest.mark.parametrize("verdict", ["PASS", "IMPROVED", "NO_BASELINE", "INCOMPARABLE"])
def test_passing_verdicts_are_no_obstacle_to_update(make, decide, verdict):
    result = make.result(make.fresh(tpot_mean=101.0), verdicts=[(verdict, "tpot_mean")])
    assert decide(result, make.history(100.0))[0].action is Action.CHANGED


def test_unneeded_accept_reason_is_not_stored(make, decide):
    _, written = decide(make.result(make.fresh(tpot_mean=101.0)), make.history(100.0), accept="why")
    assert [(session.accepted, session.anchor) for session in written.sessions] == [(None, True), (None, False)]


@pytest.mark.parametrize("reason", ["", "  "])
def test_empty_accept_reason_is_refused(make, decide, reason):
    with pytest.raises(UsageError, match="say why"):
        decide(make.result(make.fresh(tpot_mean=1.0)), accept=reason)


def test_contended_and_dirty_runs_are_refused(make, decide, message):
    entry, _ = decide(make.result(make.fresh(tpot_mean=1.0, contended="pid 7 of bob")))
    assert (entry.action, entry.acceptable) == (Action.REFUSED, True)
    assert entry.reasons == ("contended in 3 of 3 runs: pid 7 of bob",)
    entry, _ = decide(make.result(make.fresh(tpot_mean=1.0)), dirty=True)
    assert entry.action is Action.REFUSED
    message(*entry.reasons)
    _, written = decide(make.result(make.fresh(tpot_mean=1.0)), dirty=True, accept="why")
    assert written.sessions[0].commit == "def-dirty"
    entry, _ = decide(make.result(make.fresh(tpot_mean=1.0)), dirty=True, git_error="git is not on the PATH")
    assert entry.reasons == ("its commit is unknown: git is not on the PATH",)


@pytest.mark.parametrize(
    ("fresh", "result", "reason"),
    [
        ({"complete": False}, {}, "the measurement is incomplete, with 3 runs"),
        ({"tpot_mean": ()}, {}, "the measurement is incomplete, with 0 runs"),
        ({"tpot_mean": (1.0, None, 1.0)}, {}, "tpot_mean is missing in 1 of 3 runs"),
        ({"primaries": ("ttft_p50",)}, {}, "ttft_p50 is missing in 3 of 3 runs"),
        ({}, {"complete": False}, "the test did not reach its end"),
        ({}, {"error": "The server died.\nlog…"}, "the test ended with an error: The server died."),
    ],
)
def test_incomplete_measurement_is_refused_despite_accept(make, decide, fresh, result, reason):
    result = make.result(make.fresh(**{"tpot_mean": 1.0} | fresh), **result)
    for options in ({}, {"accept": "why"}):
        entry, _ = decide(result, **options)
        assert (entry.action, entry.acceptable, entry.reasons) == (Action.REFUSED, False, (reason,))


def test_planted_fault_is_refused_despite_accept(make, decide, message):
    conditions = make.CONDITIONS | {"planted": "vllm:enforce_eager=true"}
    for stored in ([], [make.history(100.0)]):
        entry, _ = decide(make.result(make.fresh(tpot_mean=100.0, conditions=conditions)), *stored, accept="why")
        assert (entry.action, entry.acceptable) == (Action.REFUSED, False)
        message(*entry.reasons)


def test_a_measurement_without_primaries_is_refused(make, decide):
    entry, _ = decide(make.result(replace(make.fresh(tpot_mean=1.0), primaries=())))
    assert entry.reasons == ("it names no primary metric",)


def test_other_conditions_begin_anew_where_accepted(make, decide, message):
    result = make.result(make.fresh(tpot_mean=150.0, conditions=make.CONDITIONS | {"weights": "fp8"}))
    entry, _ = decide(result, make.history(100.0, 100.0))
    assert (entry.action, entry.acceptable) == (Action.REFUSED, True)
    message(*entry.reasons)
    entry, written = decide(result, make.history(100.0, 100.0), accept="FP8 weights")
    assert entry.action is Action.CHANGED
    assert [(session.anchor, session.accepted) for session in written.sessions] == [(True, "FP8 weights")]
    assert written.fingerprint["weights"] == "fp8"
    assert entry.moves[0].percent == pytest.approx(50)
    message(*entry.reasons)


def test_each_stored_session_keeps_only_conditions_that_differ_from_newest_session(make, decide):
    newer = make.CONDITIONS | {"engine.version": "2.0", "gpu.ecc": "on"}
    rules = FieldRules(compare_across=("gpu.ecc",))
    result = make.result(make.fresh(tpot_mean=101.0, conditions=newer))
    entry, written = decide(result, make.history(100.0), rules=rules)
    assert entry.action is Action.CHANGED
    assert [session.differs for session in written.sessions] == [{"engine.version": "1.0", "gpu.ecc": None}, {}]
    assert written.fingerprint["engine.version"] == "2.0"
    # And back again: now the other one differs.
    older = make.result(make.fresh(tpot_mean=101.0))
    _, written = decide(older, written, rules=rules, session_id="20260301T000000Z-later1")
    assert [session.differs for session in written.sessions] == [{}, {"engine.version": "2.0", "gpu.ecc": "on"}, {}]


def test_session_of_another_build_joins_baseline(make, decide, message):
    """At the stored level without a reason; at another level with one, and the fingerprint follows the newest."""
    upgraded = make.CONDITIONS | {"engine.version": "2.0", "engine.max_num_seqs": "512"}
    history = make.history(100.0, 100.0)
    entry, written = decide(make.result(make.fresh(tpot_mean=101.0, conditions=upgraded)), history)
    assert (entry.action, len(written.sessions)) == (Action.CHANGED, 3)
    message(*entry.reasons)
    assert written.sessions[0].differs == {"engine.version": "1.0", "engine.max_num_seqs": None}
    assert written.fingerprint == fingerprint_of(upgraded)
    slower = make.result(make.fresh(tpot_mean=150.0, conditions=upgraded))
    entry, _ = decide(slower, history)
    assert (entry.action, entry.acceptable) == (Action.REFUSED, True)
    assert "outlier" in entry.reasons[0]
    entry, written = decide(slower, history, accept="vLLM 2")
    assert [(session.anchor, session.accepted) for session in written.sessions] == [(True, "vLLM 2")]


def test_same_build_refuses_session_of_another_version(make, decide, message):
    result = make.result(make.fresh(tpot_mean=100.0, conditions=make.CONDITIONS | {"engine.version": "2.0"}))
    entry, _ = decide(result, make.history(100.0), rules=FieldRules(same_build=("engine.version",)))
    assert entry.action is Action.REFUSED
    message(*entry.reasons)


def test_condition_unrecorded_in_older_sessions_is_stored_as_unknown(make, decide):
    result = make.result(make.fresh(tpot_mean=101.0, conditions=make.CONDITIONS | {"cuda": "13.0"}))
    entry, written = decide(result, make.history(100.0))
    assert entry.action is Action.CHANGED
    assert [session.differs for session in written.sessions] == [{"cuda": None}, {}]
    assert written.fingerprint["cuda"] == "13.0"


def test_another_formula_of_a_primary_is_another_condition(make, decide, message):
    entry, _ = decide(make.result(make.fresh(tpot_mean=1.0)), make.history(1.0, tpot_mean="tpot.0/mean"))
    message(*entry.reasons)


def test_changed_formula_of_secondary_metric_drops_old_values(make, decide):
    old = make.session(0, anchor=True, tpot_mean=1.0, itl_mean=9.0, e2el_mean=7.0)
    stored = make.stored(old, itl_mean="itl.0/mean")
    fresh = make.fresh(tpot_mean=1.0, itl_mean=2.0, primaries=("tpot_mean",))
    entry, written = decide(make.result(fresh), stored)
    assert entry.action is Action.CHANGED
    assert [session.values("itl_mean") for session in written.sessions] == [(None,) * 3, (2.0,) * 3]
    assert [session.values("e2el_mean") for session in written.sessions] == [(7.0,) * 3, (None,) * 3]
    assert written.formulas == {"e2el_mean": "e2el.1/mean", "itl_mean": "itl.1/mean", "tpot_mean": "tpot.1/mean"}


def test_gradual_drift_is_refused_until_a_person_accepts_the_level(make, decide):
    """Fault 61."""
    stored = make.history(*(rounded(100 * 1.02**step) for step in range(5)))
    crept = make.result(make.fresh(tpot_mean=100 * 1.02**5))
    entry, _ = decide(crept, stored)
    assert (entry.action, entry.acceptable) == (Action.REFUSED, True)
    assert entry.reasons[0].startswith("tpot_mean would creep: +5.1 %")
    _, written = decide(crept, stored, accept="slower sampling, on purpose")
    # Its level is the anchor now; what lies further from it than is tolerated has gone.
    assert [session.anchor for session in written.sessions] == [False, False, True]
    assert written.sessions[-1].accepted == "slower sampling, on purpose"
    _, written = decide(crept, written, session_id="20260301T000000Z-later1")
    assert [session.anchor for session in written.sessions] == [False, False, True, False]


@pytest.mark.parametrize(("sessions", "action"), [(1, Action.CHANGED), (4, Action.CHANGED), (5, Action.REFUSED)])
def test_inconclusive_comparison_is_no_obstacle_below_five_sessions(make, decide, sessions, action):
    stored = make.history(*[100.0] * sessions)
    open_ = {"verdicts": [("INCONCLUSIVE", "tpot_mean")], "subject": "baseline"}
    entry, _ = decide(make.result(make.fresh(tpot_mean=100.5), **open_), stored)
    assert entry.action is action
    said = "its INCONCLUSIVE comparison is no obstacle: fewer than 5 sessions were stored"
    assert entry.reasons == ((said,) if action is Action.CHANGED else ("INCONCLUSIVE: baseline tpot_mean",))


@pytest.mark.parametrize(
    ("value", "verdict", "subject"),
    [
        (100.5, "INCONCLUSIVE", "ttft_p99 <= 1s"),  # an SLO or a claim
        (100.5, "FAIL", "baseline"),
        (100.5, "ERROR", "baseline"),
        (107.0, "INCONCLUSIVE", "baseline"),  # an outlier
    ],
)
def test_other_obstacles_refuse_session_of_young_baseline(make, decide, value, verdict, subject):
    checked = make.result(make.fresh(tpot_mean=value), verdicts=[(verdict, "tpot_mean")], subject=subject)
    entry, _ = decide(checked, make.history(100.0, 100.1))
    assert (entry.action, entry.acceptable) == (Action.REFUSED, True)


def test_a_new_host_makes_a_baseline_young_again(make, decide):
    """Sessions of a different host give no information about this host, so its baseline has few sessions again."""
    stored = make.history(*[100.0] * 9)
    elsewhere = replace(stored, sessions=tuple(replace(session, host="other") for session in stored.sessions))
    open_ = make.result(make.fresh(tpot_mean=100.5), verdicts=[("INCONCLUSIVE", "tpot_mean")], subject="baseline")
    assert decide(open_, stored)[0].action is Action.REFUSED
    assert decide(open_, elsewhere)[0].action is Action.CHANGED


def test_a_pass_after_a_fail_is_refused_until_accepted(make, decide, message):
    passed = make.result(make.fresh(tpot_mean=1.0), verdicts=[("PASS", "tpot_mean")], failed=("FAIL",))
    entry, _ = decide(passed, make.history(1.0))
    assert entry.action is Action.REFUSED
    message(*entry.reasons)
    assert decide(passed, make.history(1.0), accept="why")[0].action is Action.CHANGED


def test_an_outlier_is_refused_until_accepted(make, decide):
    """Fault 60."""
    stored = make.history(100, 100.3, 99.8, 100.1)
    entry, _ = decide(make.result(make.fresh(tpot_mean=107.0)), stored)
    assert len(entry.reasons) == 1
    assert "outlier: +6.9 % from the 4" in entry.reasons[0]
    _, written = decide(make.result(make.fresh(tpot_mean=107.0)), stored, accept="why")
    assert [session.values("tpot_mean")[0] for session in written.sessions] == [107.0]
    wide = decide(make.result(make.fresh(tpot_mean=107.0, margins={"tpot_mean": 0.1})), stored)
    assert wide[0].action is Action.CHANGED


def test_an_accepted_outlier_from_a_new_host_joins_the_others(make, decide):
    """What a host is like is no new level: both are what the metric can be."""
    stored = make.history(100, 100.3)
    elsewhere = replace(stored, sessions=tuple(replace(session, host="another") for session in stored.sessions))
    fresh = make.result(make.fresh(tpot_mean=107.0))
    assert "outlier" in decide(fresh, elsewhere)[0].reasons[0]
    _, written = decide(fresh, elsewhere, accept="slower CPU")
    assert [session.values("tpot_mean")[0] for session in written.sessions] == [100, 100.3, 107.0]
    assert [session.anchor for session in written.sessions] == [True, False, False]


@pytest.mark.parametrize(
    ("metric", "value", "verdict", "action"),
    [
        ("tpot_mean", 90.0, "IMPROVED", Action.CHANGED),
        ("tpot_mean", 90.0, "PASS", Action.REFUSED),
        ("tpot_mean", 110.0, "IMPROVED", Action.REFUSED),
        ("output_throughput", 110.0, "IMPROVED", Action.CHANGED),
        ("output_throughput", 90.0, "IMPROVED", Action.REFUSED),
        ("kv_usage_peak", 90.0, "IMPROVED", Action.REFUSED),
    ],
)
def test_proven_improvement_is_stored_without_accept(make, decide, metric, value, verdict, action):
    stored = make.history(100.0, 100.0, metric=metric)
    entry, written = decide(make.result(make.fresh(**{metric: value}), verdicts=[(verdict, metric)]), stored)
    assert entry.action is action
    if written is not None:
        assert [(session.anchor, session.accepted) for session in written.sessions] == [(True, None)]


def test_rerun_adds_its_new_runs_to_stored_session(make, decide):
    terms = {"session_id": "20260301T000000Z-rerun1"}
    _, once = decide(make.result(make.fresh(tpot_mean=(1.0, 1.01, 1.02))), make.history(1.0), **terms)
    entry, twice = decide(make.result(make.fresh(tpot_mean=(1.0, 1.03, 1.02))), once, **terms)
    assert entry.action is Action.CHANGED
    assert len(twice.sessions) == 2
    assert twice.sessions[1].values("tpot_mean") == (1.0, 1.01, 1.02, 1.03)
    entry, _ = decide(make.result(make.fresh(tpot_mean=(1.0, 1.03, 1.02))), twice, **terms)
    assert (entry.action, entry.reasons) == (Action.KEPT, ("this session is stored already",))


def test_rerun_is_merged_into_session_of_same_id(make, decide):
    stored = make.history(1.0, 1.0, 1.0)
    second = stored.sessions[1].id
    _, written = decide(make.result(make.fresh(tpot_mean=1.01)), stored, session_id=second)
    assert [session.id for session in written.sessions] == [session.id for session in stored.sessions]
    assert len(written.sessions[1].runs) == 6


class TestOlderSessions:
    """Run folders of days gone by, taken in after newer ones."""

    OLD = "20251231T120000Z-0000ff"
    BETWEEN = "20260101T120000Z-0000ff"

    @pytest.fixture
    def take(self, make):
        """Updates with a session per given day of November, in order. Returns the actions and the final baselines."""

        def take(days, existing=None):
            existing, actions = dict(existing or {}), []
            for day in days:
                session_id = f"202611{day:02d}T090000Z-{(day * 7919) % 4096:06x}"
                result = make.result(make.fresh(tpot_mean=100 + day / 10))
                update_plan = plan([result], existing, make.terms(session_id), "all")
                actions += [(entry.action, entry.reasons) for entry in update_plan.entries]
                existing |= update_plan.files
            return actions, existing

        return take

    def test_older_session_is_stored_in_order_of_time(self, make, decide):
        entry, written = decide(make.result(make.fresh(tpot_mean=101.0)), make.history(100.0, 100.0, 100.0),
                                session_id=self.BETWEEN)
        assert entry.action is Action.CHANGED
        assert [session.id[:8] for session in written.sessions] == ["20260100", "20260101", "20260101", "20260102"]
        assert written.sessions[2].id == self.BETWEEN
        assert [session.anchor for session in written.sessions] == [True, False, False, False]

    def test_session_older_than_ten_stored_sessions_is_not_stored(self, take):
        _, full = take(range(3, 13))
        actions, after = take((1, 2), full)
        assert actions == [(Action.KEPT, ("older than the stored sessions",))] * 2
        assert after == full

    def test_repeated_update_with_same_sessions_changes_no_baseline(self, take):
        _, stored = take([*range(3, 13), 1, 2])
        actions, again = take(range(1, 13), stored)
        assert {action for action, _ in actions} == {Action.KEPT}
        assert again == stored
        _, stored = take(range(1, 13))
        actions, again = take(range(1, 13), stored)
        assert {action for action, _ in actions} == {Action.KEPT}
        assert again == stored

    def test_changed_formula_of_secondary_metric_does_not_double_runs(self, make, decide):
        first, second = (make.session(i, anchor=i == 1, tpot_mean=(100.0, 101.0, 102.0), itl_mean=9.0) for i in (1, 2))
        stored = make.stored(first, second, itl_mean="itl.0/mean")
        again = make.fresh(primaries=("tpot_mean",), tpot_mean=(100.0, 101.0, 102.0), itl_mean=9.0)
        _, written = decide(make.result(again), stored, session_id=first.id)
        assert [len(session.runs) for session in written.sessions] == [3, 3]

    def test_accepted_session_is_not_stored_twice(self, make, decide):
        failed = make.result(make.fresh(tpot_mean=107.0), verdicts=[("FAIL", "tpot_mean")])
        _, written = decide(failed, make.history(100.0, 100.0), accept="a new driver")
        entry, _ = decide(failed, written)
        assert (entry.action, entry.reasons) == (Action.KEPT, ("this session is stored already",))

    def test_newest_session_determines_conditions_and_primary_metrics(self, make, decide):
        newer = make.CONDITIONS | {"engine.version": "2.0"}
        stored = make.stored(make.session(5, anchor=True, tpot_mean=100.0, itl_mean=9.0), conditions=newer)
        fresh = make.fresh(tpot_mean=100.0, itl_mean=9.0)
        _, written = decide(make.result(fresh), stored, session_id=self.OLD)
        assert written.fingerprint["engine.version"] == "2.0"
        assert [session.differs for session in written.sessions] == [{"engine.version": "1.0"}, {}]
        assert written.primaries == ("tpot_mean",)
        strict = FieldRules(same_build=("engine.version",))
        entry, _ = decide(make.result(fresh), written, session_id=self.OLD, rules=strict)
        assert entry.reasons == ("this session is stored already",)

    def test_newest_session_determines_formulas(self, make, decide):
        stored = make.stored(make.session(5, anchor=True, tpot_mean=1.0, itl_mean=9.0), itl_mean="itl.9/mean")
        fresh = make.fresh(tpot_mean=1.0, itl_mean=2.0, primaries=("tpot_mean",))
        _, written = decide(make.result(fresh), stored, session_id=self.OLD)
        assert written.formulas == {"itl_mean": "itl.9/mean", "tpot_mean": "tpot.1/mean"}
        assert [session.values("itl_mean") for session in written.sessions] == [(None,) * 3, (9.0,) * 3]

    def test_condition_recorded_in_one_session_makes_no_difference(self, make, decide):
        with_cuda = make.CONDITIONS | {"cuda": "13.0"}
        newest = make.session(5, anchor=True, tpot_mean=100.0)
        for older, newer, differing in ((make.CONDITIONS, with_cuda, [{"cuda": None}, {}]),
                                        (with_cuda, make.CONDITIONS, [{}, {"cuda": None}])):
            result = make.result(make.fresh(tpot_mean=100.0, conditions=older))
            _, written = decide(result, make.stored(newest, conditions=newer), session_id=self.OLD)
            assert written.fingerprint["cuda"] == "13.0"
            assert [session.differs for session in written.sessions] == differing

    def test_older_session_under_different_conditions_is_refused(self, make, decide, message):
        result = make.result(make.fresh(tpot_mean=100.0, conditions=make.CONDITIONS | {"model": "n"}))
        entry, _ = decide(result, make.history(100.0), session_id=self.OLD, accept="why")
        assert (entry.action, entry.acceptable) == (Action.REFUSED, False)
        message(*entry.reasons)

    @pytest.mark.parametrize("host", ["host", "elsewhere"])
    def test_older_session_at_different_level_is_refused(self, make, decide, host):
        stored = make.history(100.0, 100.3)
        stored = replace(stored, sessions=tuple(replace(session, host=host) for session in stored.sessions))
        entry, _ = decide(make.result(make.fresh(tpot_mean=107.0)), stored, session_id=self.OLD, accept="why")
        assert (entry.action, entry.acceptable) == (Action.REFUSED, False)
        reason = "older than the stored sessions, at a different level: tpot_mean is an outlier"
        assert entry.reasons[0].startswith(reason)

    def test_accepted_older_session_does_not_become_anchor(self, make, decide):
        failed = make.result(make.fresh(tpot_mean=101.0), verdicts=[("FAIL", "tpot_mean")])
        _, written = decide(failed, make.history(*[100.0] * 3), session_id=self.BETWEEN, accept="why")
        assert [session.anchor for session in written.sessions] == [True, False, False, False]
        assert [session.accepted for session in written.sessions] == [None, None, "why", None]

    def test_session_at_replaced_level_is_refused(self, make, decide):
        """Four sd of what is stored would let it in."""
        stored = make.stored(*(make.session(i, anchor=i == 3, tpot_mean=value)
                               for i, value in enumerate((103.0, 108.0, 104.0, 106.0), start=2)))
        entry, _ = decide(make.result(make.fresh(tpot_mean=99.0)), stored, session_id=self.OLD, accept="why")
        assert entry.action is Action.REFUSED


def test_two_results_of_one_test_are_stored_as_one_session(make):
    results = [make.result(make.fresh(tpot_mean=1.0, start=start)) for start in (1, 2)]
    update_plan = plan(results, {}, make.terms(), "all")
    assert [entry.action for entry in update_plan.entries] == [Action.CREATED]
    (session,) = update_plan.files[PATH].measurements[""].sessions
    assert session.runs == ((0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2))


class TestMetricsOfAnotherVersion:
    """A run file, or a stored baseline, of a version that has more metrics than this one."""

    UNKNOWN = "left out, as this version has no such metric: ttft_p42"

    def test_metric_of_other_version_is_omitted_and_named(self, make, decide):
        result = make.result(make.fresh(tpot_mean=1.0, ttft_p42=9.0, primaries=("tpot_mean",)))
        entry, written = decide(result)
        assert (entry.action, entry.reasons) == (Action.CREATED, (self.UNKNOWN,))
        assert written.metrics == ("tpot_mean",)
        entry, _ = decide(result, written)
        assert (entry.action, entry.reasons) == (Action.KEPT, ("this session is stored already",))

    def test_unknown_primary_metric_is_refused(self, make, decide):
        entry, _ = decide(make.result(make.fresh(tpot_mean=1.0, ttft_p42=9.0)), accept="why")
        assert (entry.action, entry.acceptable) == (Action.REFUSED, False)
        assert entry.reasons == ("this version has no metric 'ttft_p42'",)

    @pytest.mark.parametrize("session_id", ["20251231T120000Z-0000ff", "20260201T000000Z-today1"])
    def test_stored_values_of_other_version_are_kept(self, make, decide, session_id):
        primaries = ("tpot_mean", "ttft_p42")
        stored = make.stored(make.session(5, anchor=True, tpot_mean=1.0), primaries=primaries, ttft_p42="ttft.1/p42")
        newest = replace(stored.sessions[0], metrics={"tpot_mean": (1.0,) * 3, "ttft_p42": (9.0,) * 3})
        stored = replace(stored, sessions=(newest,))
        entry, written = decide(make.result(make.fresh(tpot_mean=1.0)), stored, session_id=session_id)
        assert (entry.action, entry.primaries) == (Action.CHANGED, ("tpot_mean",))
        assert [session.values("ttft_p42")[0] for session in written.sessions if session.id == newest.id] == [9.0]
        assert written.formulas["ttft_p42"] == "ttft.1/p42"
        assert line(entry).startswith("changed ")

    def test_runs_that_a_newer_version_stored_do_not_count_twice(self, make, decide):
        stored = make.stored(make.session(5, anchor=True, tpot_mean=1.0), ttft_p42="ttft.1/p42")
        stored_session = replace(stored.sessions[0], metrics={"tpot_mean": (1.0,) * 3, "ttft_p42": (9.0,) * 3})
        stored = replace(stored, sessions=(stored_session,))
        _, written = decide(make.result(make.fresh(tpot_mean=1.0)), stored, session_id=stored_session.id)
        assert written.sessions[0].metrics == stored_session.metrics


class TestCopies:
    """Copies of one test on several workers (`--count`). Each copy has a run file of its own."""

    def copies(self, make, *verdicts, **second):
        """Two, 100.0 and 100.2."""
        fresh = [make.fresh(tpot_mean=100.0), make.fresh(**{"tpot_mean": 100.2} | second)]
        each = zip(fresh, verdicts, strict=True)
        return [make.result(name, verdicts=[(verdict, "tpot_mean")]) for name, verdict in each]

    @pytest.mark.parametrize("verdicts", [("PASS", "FAIL"), ("FAIL", "PASS")])
    @pytest.mark.parametrize("mode", ["all", "new"])
    def test_failure_of_one_copy_refuses_all_copies(self, make, verdicts, mode):
        copies = self.copies(make, *verdicts)
        update_plan = plan(copies, {}, make.terms(), mode)
        assert not update_plan.files
        assert [(entry.action, entry.reasons) for entry in update_plan.entries] == [
            (Action.REFUSED, ("FAIL: check tpot_mean",))]  # fmt: skip
        accepted = plan(copies, {}, make.terms(accept="why"), mode)
        (session,) = accepted.files[PATH].measurements[""].sessions
        assert (session.accepted, len(session.runs)) == ("why", 6)

    def test_missing_baseline_is_created_from_runs_of_all_copies(self, make):
        update_plan = plan(self.copies(make, "PASS", "PASS"), {}, make.terms(), "new")
        assert [(entry.action, entry.sessions) for entry in update_plan.entries] == [(Action.CREATED, 1)]
        assert len(update_plan.files[PATH].measurements[""].sessions[0].runs) == 6

    def test_a_run_file_that_is_named_twice_counts_once(self, make):
        copy, _ = self.copies(make, "PASS", "PASS")
        update_plan = plan([copy, copy], {}, make.terms(), "all")
        assert len(update_plan.files[PATH].measurements[""].sessions[0].runs) == 3

    def test_copy_with_error_is_refused_and_other_copy_is_stored(self, make, message):
        good, bad = self.copies(make, "PASS", "PASS")
        update_plan = plan([good, replace(bad, error="The server died.")], {}, make.terms(), "all")
        assert [entry.action for entry in update_plan.entries] == [Action.REFUSED, Action.CREATED]
        message(*(reason for entry in update_plan.entries for reason in entry.reasons))
        assert len(update_plan.files[PATH].measurements[""].sessions[0].runs) == 3

    def test_improvement_must_be_proven_by_all_copies(self, make):
        stored = {PATH: make.baseline(make.history(111.0))}
        for verdict, action in (("IMPROVED", Action.CHANGED), ("PASS", Action.REFUSED)):
            update_plan = plan(self.copies(make, "IMPROVED", verdict), stored, make.terms(), "all")
            assert [entry.action for entry in update_plan.entries] == [action]

    @pytest.mark.parametrize(("across", "action"), [((), Action.REFUSED), (("model",), Action.CREATED)])
    def test_copies_with_different_conditions_are_refused(self, make, across, action, message):
        copies = self.copies(make, "PASS", "PASS", conditions=make.CONDITIONS | {"model": "n"})
        (entry,) = plan(copies, {}, make.terms(accept="why", rules=FieldRules(across)), "all").entries
        assert (entry.action, entry.acceptable) == (action, False)
        if not across:
            message(*entry.reasons)


def test_one_session_under_two_conditions_is_refused(make, decide, message):
    terms = {"session_id": "20260301T000000Z-rerun1", "accept": "why"}
    _, once = decide(make.result(make.fresh(tpot_mean=1.0)), **terms)
    other = make.result(make.fresh(tpot_mean=1.0, conditions=make.CONDITIONS | {"model": "n"}))
    entry, _ = decide(other, once, **terms)
    assert (entry.action, entry.acceptable) == (Action.REFUSED, False)
    message(entry.reasons[0])


def test_named_measurements_of_test_share_one_baseline_file(make):
    fresh = [make.fresh(name=name, tpot_mean=1.0) for name in ("cold", "cached")]
    update_plan = plan([make.result(*fresh)], {}, make.terms(), "all")
    assert [(entry.measurement, entry.action) for entry in update_plan.entries] == [
        ("cached", Action.CREATED), ("cold", Action.CREATED)
    ]  # fmt: skip
    assert set(update_plan.files[PATH].measurements) == {"cold", "cached"}


def test_unmeasured_name_keeps_stored_measurement(make):
    stored = Baseline(make.TEST, {"cold": make.history(1.0), "gone": make.history(2.0)})
    update_plan = plan([make.result(make.fresh(name="cold", tpot_mean=1.0))], {PATH: stored}, make.terms(), "all")
    assert [entry.action for entry in update_plan.entries] == [Action.CHANGED, Action.KEPT]
    assert update_plan.files[PATH].measurements["gone"] == stored.measurements["gone"]


def test_two_measurements_of_one_name_are_refused(make, message):
    twice = [make.fresh(tpot_mean=1.0), make.fresh(tpot_mean=2.0)]
    update_plan = plan([make.result(*twice)], {}, make.terms(accept="why"), "all")
    assert {entry.action for entry in update_plan.entries} == {Action.REFUSED}
    message(update_plan.entries[0].reasons[0])
    assert not update_plan.files


def test_one_refused_measurement_does_not_hold_up_another(make):
    good, bad = make.fresh(name="a", tpot_mean=1.0), make.fresh(name="b", tpot_mean=1.0, complete=False)
    update_plan = plan([make.result(good, bad)], {}, make.terms(), "all")
    assert [entry.action for entry in update_plan.entries] == [Action.CREATED, Action.REFUSED]
    assert set(update_plan.files[PATH].measurements) == {"a"}


@pytest.mark.parametrize("accept", [None, "why"])
def test_a_file_of_another_test_is_not_touched(make, accept, message):
    elsewhere = make.result(make.fresh(tpot_mean=1.0), test="old/test_serving.py::test_it")
    update_plan = plan([elsewhere], {PATH: make.baseline(make.history(1.0))}, make.terms(accept=accept), "all")
    (entry,) = update_plan.entries
    assert (entry.action, entry.acceptable) == (Action.REFUSED, False)
    message(entry.reasons[0])
    assert not update_plan.files


def test_new_tests_that_differ_only_in_case_are_refused(make, message):
    tests = [make.result(make.fresh(tpot_mean=6.5), test=f"suites/test_serving.py::test_it[h200-{name}]")
             for name in ("FP8", "fp8", "int8")]  # fmt: skip
    update_plan = plan(tests, {}, make.terms(), "all")
    assert [(entry.action, entry.path) for entry in update_plan.entries] == [
        (Action.REFUSED, "h200/serving/test_it-FP8.json"),
        (Action.REFUSED, "h200/serving/test_it-fp8.json"),
        (Action.CREATED, "h200/serving/test_it-int8.json"),
    ]
    message(update_plan.entries[1].reasons[0])
    assert list(update_plan.files) == ["h200/serving/test_it-int8.json"]


def test_new_test_that_differs_only_in_case_from_stored_test_is_refused(make):
    tests = [make.result(make.fresh(tpot_mean=6.5), test=f"suites/test_serving.py::test_it[h200-{name}]")
             for name in ("FP8", "fp8")]  # fmt: skip
    stored = make.baseline(make.history(6.5), test="suites/test_serving.py::test_it[FP8]")
    existing = {"h200/serving/test_it-FP8.json": stored}
    update_plan = plan(tests, existing, make.terms(), "all")
    assert [entry.action for entry in update_plan.entries] == [Action.CHANGED, Action.REFUSED]
    assert list(update_plan.files) == ["h200/serving/test_it-FP8.json"]
    renamed = plan(tests[1:], existing, make.terms(), "all", collected=[tests[1].test])
    assert [entry.action for entry in renamed.entries] == [Action.ORPHANED, Action.REFUSED]
    assert "delete the older file first" in renamed.entries[1].reasons[0]


def test_stored_tests_that_differ_only_in_case_are_still_updated(make):
    names = ("FP8", "fp8")
    tests = [make.result(make.fresh(tpot_mean=6.5), test=f"suites/test_serving.py::test_it[h200-{name}]")
             for name in names]  # fmt: skip
    existing = {f"h200/serving/test_it-{name}.json":
                make.baseline(make.history(6.5), test=f"suites/test_serving.py::test_it[{name}]") for name in names}
    assert set(plan(tests, existing, make.terms(), "all").files) == set(existing)


@pytest.mark.parametrize(
    "tests",
    [("a/test_x.py::t", "b/test_x.py::t"), ("test_x.py::t[h200-a-b]", "test_x.py::t[a-h200-b]")],
)
def test_two_tests_with_one_file_are_both_refused(make, tests):
    results = [make.result(make.fresh(tpot_mean=1.0), test=test) for test in tests]
    update_plan = plan(results, {}, make.terms(), "all")
    assert [entry.action for entry in update_plan.entries] == [Action.REFUSED]
    assert not update_plan.files


def test_each_hardware_kind_has_a_separate_baseline_file(make):
    conditions = [make.CONDITIONS | {"hardware": hardware} for hardware in ("h200", "emulated h200", "cpu")]
    results = [make.result(make.fresh(tpot_mean=1.0, conditions=condition)) for condition in conditions]
    results[2] = replace(results[2], test=f"{make.TEST}[cpu]")
    update_plan = plan(results, {}, make.terms(), "all")
    kinds = {path.partition("/")[0] for path in update_plan.files}
    assert kinds == {"h200", "emulated-h200", "cpu"}
    assert {baseline.test for baseline in update_plan.files.values()} == {make.TEST}


class TestOrphans:
    """Baselines whose test is no longer there."""

    OLD = "h200/serving/test_old.json"
    OTHER = "suites/test_serving.py::test_other"

    @pytest.fixture
    def existing(self, make):
        return {
            PATH: make.baseline(make.history(1.0)),
            self.OLD: make.baseline(make.history(1.0), test="suites/test_serving.py::test_old"),
            "h200/serving/test_other.json": make.baseline(make.history(1.0), test=self.OTHER),
        }

    def plan(self, make, existing, mode, collected):
        return plan([make.result(make.fresh(tpot_mean=1.0))], existing, make.terms(), mode, collected)

    def test_orphaned_baseline_is_removed_after_complete_collection(self, make, existing):
        update_plan = self.plan(make, existing, "all", [f"{make.TEST}[h200]", f"{self.OTHER}[h200]"])
        assert [entry.path for entry in update_plan.entries if entry.action is Action.ORPHANED] == [self.OLD]
        assert update_plan.files[self.OLD] is None
        assert set(update_plan.files) == {PATH, self.OLD}
        assert update_plan.untouched == 1

    def test_a_filtered_run_never_deletes(self, make, existing):
        update_plan = self.plan(make, existing, "all", None)
        assert update_plan.count(Action.ORPHANED) == 0
        assert set(update_plan.files) == {PATH}
        assert update_plan.untouched == 2

    def test_orphaned_baseline_is_kept_in_new_mode(self, make, existing):
        update_plan = self.plan(make, existing, "new", [make.TEST, self.OTHER])
        assert update_plan.count(Action.ORPHANED) == 1
        assert not update_plan.files

    def test_the_row_of_another_kind_keeps_no_file(self, make, existing):
        update_plan = self.plan(make, existing, "all", [make.TEST, f"{self.OTHER}[l4]", f"{self.OTHER}[cpu]"])
        assert update_plan.count(Action.ORPHANED) == 2


def run_file(**changes):
    """As `results.writer` writes it."""
    run = {"seed": 0, "start_id": 1, "cache_reset": True, "metrics": {"tpot_mean": 6.5, "kv_usage_peak": None}}
    measurement = {
        "engine": "vllm('m')", "workload": "w", "complete": True, "baseline": "", "primaries": ["tpot_mean"],
        "conditions": {"hardware": "h200"}, "runs": [run, run | {"contended": "pid 7"}],
    }  # fmt: skip
    unused = measurement | {"baseline": None, "primaries": []}
    check = {"subject": "ttft_p99 <= 1s", "metric": "ttft_p99", "verdict": "FAIL", "reason": "slow"}
    content = {"schema": 1, "test": "t.py::x", "complete": True, "error": None}
    return content | {"measurements": [measurement, unused], "checks": [check]} | changes


@pytest.fixture
def read_run_file(tmp_path):
    """The result in a run file of this content."""

    def read(content):
        path = tmp_path / "tests" / "file.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        return read_test(path)

    return read


def test_a_run_file_is_read(read_run_file):
    test = read_run_file(run_file(earlier=[{"ended": "FAIL"}, {"ended": "ERROR"}, {"ended": None}]))
    assert test.failed_executions == 1
    (measurement,) = test.compared
    assert (measurement.baseline, measurement.primaries, measurement.complete) == ("", ("tpot_mean",), True)
    assert [run.contended for run in measurement.runs] == [None, "pid 7"]
    assert measurement.metrics[0].all() == {"tpot_mean": 6.5, "kv_usage_peak": None}
    assert [check.verdict.value for check in test.checks] == ["FAIL"]


@pytest.mark.parametrize("changes", [{"test": 1}, {"measurements": [{}]}, {"checks": [{"subject": "", "metric": "",
                                                                                      "verdict": "GOOD"}]}])
def test_malformed_run_file_is_refused(changes, read_run_file):
    with pytest.raises(BaselineError, match="run the test again"):
        read_run_file(run_file(**changes))


def test_written_run_file_is_accepted_by_plan(tmp_path, make, fake_measurement):
    from pytest_llmperf.results.writer import write_test

    path = write_test(tmp_path, make.TEST, [fake_measurement], [CheckResult("x", Verdict.NO_BASELINE, "tpot_mean")])
    update_plan = plan([read_test(path)], {}, make.terms(), "all")
    assert [entry.action for entry in update_plan.entries] == [Action.CREATED]
    assert len(update_plan.files[PATH].measurements[""].metrics) > 30


@pytest.mark.parametrize("across", [(), ("gpu.ecc",)])
def test_sessions_across_conditions_count_if_condition_may_differ(make, decide, across):
    """An update sees the sessions that a comparison sees: one here, unless ECC may differ."""
    conditions = make.CONDITIONS | {"gpu.ecc": "off"}
    older = [make.session(i, anchor=i == 0, tpot_mean=24.0, differs={"gpu.ecc": "on"}) for i in range(5)]
    stored = make.stored(*older, make.session(5, tpot_mean=20.0), conditions=conditions)
    fresh = make.fresh(tpot_mean=20.0, conditions=conditions)
    entry, written = decide(make.result(fresh, verdicts=[("INCONCLUSIVE", "tpot_mean")], subject="baseline"), stored,
                            rules=FieldRules(across))
    if across:
        assert entry.action is Action.REFUSED
        assert any("INCONCLUSIVE" in reason for reason in entry.reasons)
        assert any("outlier" in reason or "creep" in reason for reason in entry.reasons)
    else:
        assert (entry.action, len(written.sessions)) == (Action.CHANGED, 7)
