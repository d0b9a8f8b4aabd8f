"""What a request contributes to each latency sample."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.metrics import FAMILIES, measure
from pytest_llmperf.model.record import Outcome, RequestRecord
from pytest_llmperf.testing.records import make_record

gaps_ns = st.lists(st.integers(0, 10**10), max_size=20)


def record_of(intended_ns, ttft_ns, gaps, chunk_tokens=None, **more):
    arrivals = [intended_ns + ttft_ns]
    for gap in gaps:
        arrivals.append(arrivals[-1] + gap)
    return RequestRecord(0, intended_ns, intended_ns, arrivals[-1], Outcome.OK, arrivals_ns=tuple(arrivals),
                         chunk_tokens=chunk_tokens, **more)


def take(name, record):
    return FAMILIES[name].take(record)


@given(st.integers(0, 10**15), st.integers(0, 10**11), gaps_ns)
def test_e2el_is_ttft_and_all_gaps_to_the_nanosecond(intended_ns, ttft_ns, gaps):
    record = record_of(intended_ns, ttft_ns, gaps)
    assert take("e2el", record)[0] - take("ttft", record)[0] == sum(take("itl", record)) == sum(gaps)


@given(gaps_ns)
def test_one_token_per_chunk_makes_both_itls_equal(gaps):
    record = record_of(0, 5, gaps, chunk_tokens=(1,) * (len(gaps) + 1))
    assert take("itl_per_token", record) == take("itl", record)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 8)), min_size=1, max_size=20))
def test_per_token_gaps_sum_to_the_gaps_and_number_the_tokens(chunks):
    record = record_of(0, 5, [gap for gap, _ in chunks], chunk_tokens=(1, *[tokens for _, tokens in chunks]))
    shared = take("itl_per_token", record)
    assert len(shared) == sum(tokens for _, tokens in chunks)
    assert sum(shared) == pytest.approx(sum(gap for gap, _ in chunks))


@given(gaps_ns.filter(bool))
def test_with_one_token_per_chunk_tpot_is_the_mean_gap(gaps):
    record = record_of(7, 5, gaps, output_tokens=len(gaps) + 1)
    assert take("tpot", record)[0] == pytest.approx(sum(gaps) / len(gaps))


def test_latency_counts_from_intended_send_time():
    late = make_record(send_delay_ms=200, ttft_ms=250)
    assert take("ttft", late) == (250_000_000,)
    assert take("send_delay", late) == (200_000_000,)
    assert take("e2el", late) == (340_000_000,)


def test_chunk_without_tokens_adds_gap_to_next_chunk():
    assert take("itl_per_token", record_of(0, 5, [10, 20], chunk_tokens=(1, 0, 2))) == (15, 15)


def test_the_largest_stall_is_the_longest_gap():
    assert take("largest_stall", make_record(itl_ms=[10, 70, 20])) == (70_000_000,)


def test_tpot_divides_by_tokens_not_by_chunks():
    record = make_record(itl_ms=[30, 30], chunk_tokens=(1, 3, 3))
    assert take("tpot", record) == (10_000_000,)


def test_tpot_counts_chunk_tokens_if_usage_is_missing():
    assert take("tpot", replace(make_record(chunks=3, itl_ms=4.0), output_tokens=None)) == (4_000_000,)


@pytest.mark.parametrize("record", [make_record(chunks=1), make_record(chunk_tokens=(5,))])
def test_one_chunk_has_no_gap_no_stall_and_no_tpot(record):
    assert [take(name, record) for name in ("itl", "itl_per_token", "tpot", "largest_stall")] == [()] * 4


def test_unsaid_token_counts_are_unknown_not_zero():
    silent = replace(make_record(), chunk_tokens=None, output_tokens=None)
    assert take("itl_per_token", silent) is None
    assert take("tpot", silent) is None


def test_one_request_without_token_count_makes_latency_per_token_unavailable():
    run = measure([make_record(0), replace(make_record(1, intended_ms=5), chunk_tokens=None, output_tokens=None)])
    assert run.value("tpot_mean") is None
    assert run.value("itl_per_token_p99") is None
    assert run.value("itl_p99") == pytest.approx(10)


def test_a_request_that_was_never_sent_has_no_send_delay():
    assert take("send_delay", replace(make_record(outcome=Outcome.NO_CONNECTION), sent_ns=None)) == ()
