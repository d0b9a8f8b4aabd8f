"""A measurement of two runs made of records."""

import pytest

from pytest_llmperf.metrics import measure
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.session.measurement import Measurement, Run
from pytest_llmperf.testing.records import make_record


@pytest.fixture
def make_measurement():
    def make(*lists_of_records, counters=None, **fields):
        runs = tuple(
            Run(seed, 1, tuple(records), counters or {}, started_at="2026-01-02T03:04:05+00:00")
            for seed, records in enumerate(lists_of_records)
        )
        metrics = tuple(measure(run.records, run.counters) for run in runs)
        return Measurement("vllm('m')", "random_tokens(…)", {"engine": "vllm", "model": "m"}, runs, metrics, **fields)

    return make


@pytest.fixture
def measurement(make_measurement):
    return make_measurement(
        [make_record(0, ttft_ms=40, itl_ms=[10, 20, 30]), make_record(1, intended_ms=100, ttft_ms=60, itl_ms=5)],
        [make_record(0, intended_ms=1000), make_record(1, intended_ms=1100, outcome=Outcome.RESET)],
    )
