"""Counters of each replica from answers that name the replica."""

from dataclasses import replace

import pytest

from pytest_llmperf.metrics.by_replica import counters_by_replica
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.testing.records import make_record


def test_counters_are_sums_over_the_answers_of_each_replica():
    records = [replace(make_record(index, ttft_ms=50, itl_ms=10, chunks=11), replica="ab"[index % 2])
               for index in range(5)]
    counters = counters_by_replica(records)
    assert list(counters) == ["a", "b"]
    assert counters["a"] == pytest.approx({
        "answers": 3, "requests_finished": 3, "prompt_tokens": 24, "generation_tokens": 33,
        "ttft_s_sum": 0.15, "ttft_count": 3, "tpot_s_sum": 0.03, "tpot_count": 3})


def test_failed_request_counts_as_answer_alone():
    failed = replace(make_record(1, outcome=Outcome.HTTP_STATUS, detail="HTTP 500"), replica="a")
    counters = counters_by_replica([replace(make_record(0), replica="a"), failed])
    assert (counters["a"]["answers"], counters["a"]["requests_finished"]) == (2, 1)


def test_answers_without_the_header_belong_to_no_replica():
    assert counters_by_replica([make_record(0)]) == {}
