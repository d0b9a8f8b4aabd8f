"""Measurements made of records."""

import pytest

from pytest_llmperf.metrics import measure
from pytest_llmperf.session.measurement import Measurement, Run
from pytest_llmperf.testing.records import make_record

SOUND = {"generation_tokens": 200.0, "requests_finished": 20.0, "prompt_tokens": 160.0, "prompt_tokens_cached": 0.0}


@pytest.fixture
def make_run():
    """A run of 20 requests with counters that agree with them; `records` and counters by name change it."""

    def make(records=None, *, seed=0, counters=None, **fields):
        records = tuple(records or (make_record(index, intended_ms=100 * index) for index in range(20)))
        known = {} if counters is False else SOUND | (counters or {})
        return Run(seed=seed, start_id=fields.pop("start_id", 1), records=records, counters=known, **fields)

    return make


@pytest.fixture
def make_measurement():
    def make(*runs, **fields):
        conditions = fields.pop("conditions", {"engine": "vllm", "model": "m"})
        metrics = tuple(measure(run.records, run.counters) for run in runs)
        return Measurement("vllm('m')", "random_tokens(…)", conditions, runs, metrics, **fields)

    return make
