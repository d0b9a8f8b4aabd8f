"""Latencies below what a model on its GPUs can have: never of an honest server, always of one that cheats."""

from dataclasses import replace

import pytest

from pytest_llmperf.judging.run_gates import impossible
from pytest_llmperf.model.datasheet import LatencyBound
from pytest_llmperf.results.causes.runs import BelowHardwareBound
from pytest_llmperf.testing.records import make_record

# A step takes 3 ms, and a prompt token 0.1 ms: 8 prompt tokens are computed within a step, 100 in 10 ms.
BOUND = LatencyBound("2 × H200", 3e6, 1e5, 1, "14 GB ÷ 4.8 TB/s", "9 GFLOP ÷ 989 TFLOP/s")


@pytest.fixture
def violations(make_run):
    def violations(bound=BOUND, counters=None, **fields):
        records = [make_record(index, intended_ms=500 * index, **fields) for index in range(20)]
        return list(impossible(make_run(records, counters=counters), bound))

    return violations


def test_latencies_at_the_bound_are_possible(violations):
    assert violations(ttft_ms=3.0, itl_ms=3.0, chunks=100) == []


def test_ttft_below_weight_read_time_is_impossible(violations):
    first, whole = violations(ttft_ms=1.0, itl_ms=3.0, chunks=100)
    assert first == BelowHardwareBound(
        text="TTFT", gpus="2 × H200", answers=20, of_answers=20, share=pytest.approx(0.794, abs=1e-3),
        confidence=0.99, measured_ms=1.0, least_ms=3.0, bound_by="14 GB ÷ 4.8 TB/s")
    assert whole.facts["text"] == "E2E latency"


@pytest.mark.parametrize(("cached", "hits", "possible"), [
    (None, 0.0, False), (0, 5.0, False), (99, 99.0, True), (None, 5.0, True), (None, None, True),
])
def test_ttft_below_prompt_compute_time_is_impossible(violations, cached, hits, possible):
    """Prompt tokens count as computed where usage or counters say so."""
    counters = {"prompt_tokens_cached": hits}
    problems = violations(ttft_ms=5.0, itl_ms=3.1, chunks=100, prompt_tokens=100, cached_tokens=cached,
                          counters=counters)
    facts = [(problem.facts["text"], problem.facts["measured_ms"], problem.facts["least_ms"], problem.facts["bound_by"])
             for problem in problems]
    assert facts == ([] if possible else [("TTFT", 5.0, 10.0, "9 GFLOP ÷ 989 TFLOP/s")])


def test_decoding_faster_than_weight_reads_is_impossible(violations):
    """The whole answer took long enough: a proxy held its beginning back."""
    (problem,) = violations(ttft_ms=400.0, itl_ms=1.0, chunks=100)
    facts = problem.facts
    assert (facts["text"], facts["answers"], facts["bound_by"]) == (
        "decoding after the first chunk", 20, "14 GB ÷ 4.8 TB/s per step")
    assert (facts["measured_ms"], facts["least_ms"]) == (pytest.approx(99), pytest.approx(297))


def test_late_first_chunk_of_a_short_answer_is_no_violation(violations):
    assert violations(ttft_ms=20.0, itl_ms=0.5, chunks=4) == []


def test_one_answer_that_seems_too_fast_is_no_violation(make_run):
    honest = [make_record(index, itl_ms=3.1, chunks=100) for index in range(19)]
    late = make_record(19, ttft_ms=400.0, itl_ms=1.0, chunks=100)
    assert list(impossible(make_run([*honest, late]), BOUND)) == []


def test_speculation_divides_the_steps(violations):
    assert violations(replace(BOUND, tokens_per_step=4), ttft_ms=3.1, itl_ms=0.8, chunks=100) == []
    problems = violations(replace(BOUND, tokens_per_step=2), ttft_ms=3.1, itl_ms=0.8, chunks=100)
    assert problems[0].facts["bound_by"].endswith("per step of at most 2 tokens")


def test_unverified_tokens_are_not_compared_with_the_bound(make_run):
    silent = [replace(make_record(index, itl_ms=0.1, chunks=100), chunk_tokens=None) for index in range(20)]
    assert list(impossible(make_run(silent), BOUND)) == []
