"""Baselines and results of a session, made of the few numbers that a test is about."""

from dataclasses import replace

import pytest

from pytest_llmperf.baseline.merging import UpdateTerms
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import Baseline, Provenance, StoredMeasurement, StoredSession
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import fingerprint_of, formulas_of
from pytest_llmperf.results.measurement import Measurement, Run, StoredTelemetry, TestResult
from pytest_llmperf.stats.priors import Margins

TEST = "suites/test_serving.py::test_it"
CONDITIONS = {"hardware": "h200", "engine.version": "1.0", "model": "m", "formulas": "digest"}


def session(number, *, anchor=False, runs=None, accepted=None, differs=None, **metrics):
    """Session number i of metrics, each a value or one per run (seeds 0, 1, 2)."""
    columns = {name: given if isinstance(given, tuple) else (given,) * 3 for name, given in metrics.items()}
    length = len(next(iter(columns.values()))) if columns else 3
    runs = runs or tuple((seed, 1) for seed in range(length))
    return StoredSession(
        f"2026010{number}T000000Z-00000{number}" if number < 10 else f"202601{number}T000000Z-0000{number}",
        "2026-01-01", "abc", "host", accepted, anchor, runs, columns, differs or {},
    )  # fmt: skip


def stored(*sessions, primaries=("tpot_mean",), conditions=CONDITIONS, **formulas):
    names = {name for session in sessions for name in session.metrics}
    return StoredMeasurement(fingerprint_of(conditions), sessions, primaries, formulas_of(names) | formulas)


def history(*values, metric="tpot_mean", **options):
    """A measurement of sessions with these values, the first the anchor."""
    sessions = (session(i, anchor=i == 0, **{metric: value}) for i, value in enumerate(values))
    return stored(*sessions, primaries=(metric,), **options)


def baseline(measurement, test=TEST, name=""):
    return Baseline(test, {name: measurement})


def fresh(
    *, name="", primaries=None, conditions=CONDITIONS, complete=True, contended=None, start=1, margins=None, **metrics
):
    columns = {metric: given if isinstance(given, tuple) else (given,) * 3 for metric, given in metrics.items()}
    runs = tuple(
        replace(
            Run.of_values(seed, start, {metric: column[seed] for metric, column in columns.items()}),
            stored_telemetry=StoredTelemetry(contended=contended),
        )
        for seed in range(len(next(iter(columns.values()))))
    )
    known_margins = {metric: Margins(0.4 * tolerated, tolerated) for metric, tolerated in (margins or {}).items()}
    return Measurement(
        "vllm('m')", "w", conditions, runs, complete=complete, baseline=name, primaries=primaries or tuple(metrics),
        margins=known_margins,
    )  # fmt: skip


def result(*measurements, test=f"{TEST}[h200]", verdicts=(), complete=True, error=None, subject="check", failed=()):
    checks = tuple(CheckResult(f"{subject} {metric}", Verdict[verdict], metric) for verdict, metric in verdicts)
    return TestResult(test, complete, error, measurements, checks, earlier_ends=failed)


def terms(session_id="20260201T000000Z-today1", *, dirty=False, git_error=None, **options):
    return UpdateTerms(Provenance(session_id, "2026-02-01", "def", dirty, "host", git_error), **options)


class Make:
    """The builders, for tests to ask for."""

    TEST = TEST
    CONDITIONS = CONDITIONS
    session = staticmethod(session)
    stored = staticmethod(stored)
    history = staticmethod(history)
    baseline = staticmethod(baseline)
    fresh = staticmethod(fresh)
    result = staticmethod(result)
    terms = staticmethod(terms)


@pytest.fixture(scope="session")
def make():
    return Make


@pytest.fixture
def fake_measurement():
    """As a session makes it, of two runs."""
    from pytest_llmperf.metrics import measure
    from pytest_llmperf.results.measurement import Measurement, Run
    from pytest_llmperf.testing.records import make_record

    records = [[make_record(0, ttft_ms=40, itl_ms=[10, 20, 30])], [make_record(0, ttft_ms=50, itl_ms=[11, 20])]]
    runs = tuple(Run(seed, 1, tuple(of_run)) for seed, of_run in enumerate(records))
    metrics = tuple(measure(run.records) for run in runs)
    return Measurement("e", "w", {"hardware": "h200"}, runs, metrics, baseline="", primaries=("tpot_mean", "ttft_p50"))
