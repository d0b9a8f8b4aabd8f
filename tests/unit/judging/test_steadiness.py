"""A drift over the runs of one server start makes them invalid. Different starts or seeds show no drift."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pytest_llmperf.baseline.paths import baseline_path
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.steadiness import drift_p, stored_run_sd, unsteady_starts
from pytest_llmperf.judging.validity import validity_problems
from pytest_llmperf.results.baseline import Baseline, StoredMeasurement, StoredSession
from pytest_llmperf.results.causes.runs import NotSteady
from pytest_llmperf.results.conditions import DEFAULT_RULES
from pytest_llmperf.results.sentences import problem_text
from pytest_llmperf.session.stored_baselines import Baselines
from pytest_llmperf.stats.priors import Prior
from pytest_llmperf.stats.shift import shift
from pytest_llmperf.testing.records import make_record

WARMING_UP, WARM = (5.67, 5.14, 4.70), (6.46, 6.40, 6.54)
RUNS = ((0, 1), (1, 1), (2, 1))
PRIOR = Prior(0.006, 0.004, 6, "test")


@pytest.fixture
def measured(make_run, make_measurement):
    """Runs with the given times per token, in ms. `starts` gives the server start of each run."""

    def measured(levels, starts=(1, 1, 1), conditions=None, spread=0.02, chunks=10):
        rng = np.random.default_rng(7)
        runs = [
            make_run([make_record(i, intended_ms=100 * i, itl_ms=level * float(np.exp(rng.normal(0, spread))),
                                  chunks=chunks)
                      for i in range(40)], seed=seed, counters=False, start_id=start)
            for seed, (level, start) in enumerate(zip(levels, starts, strict=True))
        ]
        return make_measurement(*runs, conditions=conditions or {"hardware": "h200"})

    return measured


def test_warming_server_is_not_steady(measured):
    (problem,) = unsteady_starts(measured(WARMING_UP))
    facts = problem.facts
    assert (type(problem), facts["metric"], facts["first_run"], facts["last_run"], facts["start_id"]) == (
        NotSteady, "tpot_mean", 1, 3, 1)
    assert (facts["levels"][0], facts["drift"]) == (pytest.approx(5.67, abs=0.1), pytest.approx(-0.166, abs=1e-3))


def test_unsteady_runs_are_a_validity_problem(measured):
    (text,) = map(problem_text, validity_problems(measured(WARMING_UP), {"tpot_mean"}, Settings()))
    assert "not steady" in text


def test_warm_server_is_steady(measured):
    assert list(unsteady_starts(measured(WARM))) == []


def test_stored_run_sd_of_noisy_host_prevents_drift_finding(measured):
    measurement = measured((5.6, 5.4, 5.05), conditions={"hardware": "h200"})
    assert not list(unsteady_starts(measurement))
    assert list(unsteady_starts(replace(measurement, stored_run_sd=0.005)))
    assert not list(unsteady_starts(replace(measurement, stored_run_sd=0.035)))


def test_stored_run_sd_needs_two_sessions():
    def stored(*sessions):
        stored_sessions = tuple(
            StoredSession("s", "2026-01-01", None, "host", None, n == 0, RUNS, {"tpot_mean": values})
            for n, values in enumerate(sessions)
        )
        return StoredMeasurement({"hardware": "h200"}, stored_sessions, ("tpot_mean",), {"tpot_mean": "tpot.1/mean"})

    assert stored_run_sd(stored((6.4, 6.5, 6.6))) is None
    assert stored_run_sd(stored((6.4, 6.5, 6.6), (6.4, 6.5, 6.6))) == pytest.approx(0.006)
    assert stored_run_sd(stored((6.4, 6.5, 6.6), (6.8, 6.2, 6.9), (6.1, 6.9, 6.3))) > 0.02


def test_steadiness_is_not_checked_on_cpu(measured):
    """Nobody has measured how much a shared one swings."""
    assert not list(unsteady_starts(measured(WARMING_UP, conditions={"hardware": "cpu"})))


def test_steadiness_is_checked_separately_for_each_server_start(measured):
    assert list(unsteady_starts(measured((*WARM, 9.0, 9.0, 9.0), starts=(1, 1, 1, 2, 2, 2)))) == []
    (text,) = map(NotSteady.reason, unsteady_starts(measured((*WARM, *WARMING_UP), starts=(1, 1, 1, 2, 2, 2))))
    assert text.startswith("runs 4 to 6 (server start 2)")


def test_steadiness_is_checked_for_each_of_two_starts_that_take_turns(measured):
    turns = [level for pair in zip(WARM, WARMING_UP, strict=True) for level in pair]
    (text,) = map(NotSteady.reason, unsteady_starts(measured(turns, starts=(1, 2) * 3)))
    assert text.startswith("runs 2 to 6 (server start 2)")
    assert "tpot_mean 5.6" in text


def test_two_runs_cannot_show_drift(measured):
    assert list(unsteady_starts(measured((5.67, 4.7), starts=(1, 1)))) == []


@pytest.mark.parametrize(("chunks", "faults"), [(9, 1), (8, 0), (4, 0)])
def test_tpot_drift_is_ignored_for_answers_with_few_gaps(measured, chunks, faults):
    assert len(list(unsteady_starts(measured(WARMING_UP, chunks=chunks)))) == faults


def test_tpot_drift_is_ignored_for_answers_of_one_token(make_run, make_measurement):
    run = make_run([make_record(i, chunks=1) for i in range(40)], counters=False)
    assert list(unsteady_starts(make_measurement(run, run, run))) == []


def drift_against(today, stored, starts=()):
    runs = [list(enumerate(session)) for session in stored]
    return drift_p(shift(list(enumerate(today)), runs, PRIOR), runs, 0.05, starts)


STORED = [(0.0, 0.3, 0.1), (0.002, 0.301, 0.103), (-0.004, 0.298, 0.099)]


def test_against_the_same_seeds_a_smaller_drift_shows():
    assert drift_against((0.0, 0.3, 0.1), STORED) is None
    assert drift_against((0.05, 0.35, 0.15), STORED) is None  # a shift is no drift
    assert drift_against((0.0, 0.36, 0.22), STORED) < 0.001


def test_between_start_differences_are_no_drift():
    stored = [[0.001 * (seed * n % 5) for seed in range(9)] for n in (1, 2, 3)]
    today = [*[-0.05] * 3, *[0.0] * 3, *[0.05] * 3]
    assert drift_against(today, stored) is not None
    assert drift_against(today, stored, starts=(1, 1, 1, 2, 2, 2, 3, 3, 3)) is None
    warming = [0.0] * 6 + [0.0, 0.06, 0.12]
    assert drift_against(warming, stored, starts=(1, 1, 1, 2, 2, 2, 3, 3, 3)) is not None


def test_effect_that_differs_between_seeds_is_no_drift():
    """With the prefix cache switched off, the latency of each seed is multiplied by a different factor."""
    assert drift_against((1.506, 0.3 + 0.935, 0.1 + 0.91), STORED) is None


def test_noisy_stored_sessions_make_drift_limit_wider():
    noisy = [(0.05, 0.25, 0.12), (-0.04, 0.34, 0.06), (0.0, 0.3, 0.17)]
    assert drift_against((0.0, 0.345, 0.19), noisy) is None


def test_drift_in_current_session_does_not_count_as_noise():
    assert drift_against((0.19, 0.39, 0.1), STORED[:2]) is not None
    assert drift_against((0.19, 0.39, 0.1), STORED[:1]) is not None


def test_two_runs_are_no_drift():
    assert drift_against((0.0, 0.5), STORED) is None


def test_without_baseline_uses_run_sd_of_other_tests():
    def baseline(test, spread):
        values = ((6.0 + spread, 6.0, 6.0 - spread), (6.0 - spread, 6.0, 6.0 + spread))
        stored_sessions = tuple(
            StoredSession(str(n), "2026-01-01", None, "host", None, n == 0, RUNS, {"tpot_mean": value})
            for n, value in enumerate(values)
        )
        stored = StoredMeasurement({"hardware": "h200"}, stored_sessions, ("tpot_mean",), {"tpot_mean": "tpot.1/mean"})
        return Baseline(test, {"": stored})

    baseline_by_name = {
        name: baseline(name, spread) for name, spread in (("quiet", 0.01), ("loud", 0.4), ("louder", 0.5))
    }
    stored = {baseline_path(name, "h200"): stored_baseline for name, stored_baseline in baseline_by_name.items()}
    store = SimpleNamespace(read_each=lambda _: stored, owned=lambda stored_baseline, *_: stored_baseline)
    baselines = Baselines(store, "host", DEFAULT_RULES).of("h200")
    assert baselines.run_sd("quiet") < 0.01 < baselines.run_sd("loud")
    assert baselines.run_sd("another") == baselines.run_sd("loud")
