"""Searches: the proven rate, the table of rates, and their curves."""

import re

import pytest

from pytest_llmperf.report.html.search import searches
from pytest_llmperf.report.html.words import labels
from pytest_llmperf.results.measurement import Measurement, Run, TestResult

TERMS = "max_rate(ttft_p99 <= 500ms, goodput(ttft <= 1000ms, tpot <= 50ms) >= 4/s, precision=0.04)"


def measured(conditions, metrics, counters=None):
    run = Run.of_values(0, 1, metrics)
    object.__setattr__(run, "counters", counters or {})
    return Measurement("vllm('m')", "w", conditions, (run,))


def search(**counters):
    values = {f"max_rate{name}": value for name, value in counters.items()}
    return measured({"search": TERMS}, values, values)


def tried(rate, ttft_ms):
    return measured({"tried_rate": f"{rate:g}/s"}, {"ttft_p99": ttft_ms, "request_throughput": 0.9 * rate})


def table_of(*measurements):
    (table,) = searches(TestResult("t", True, None, measurements, ()))
    return table


RATES = (tried(8, 100.0), tried(32, 4000.0), tried(16, 240.0), tried(24, 800.0), tried(20, 450.0))


def test_search_result_states_proven_measured_and_refuted_rates(message):
    table = table_of(search(**{"": 20.0, "_beyond": 24.0, "_proven": 16.0, "_refuted": 32.0}), *RATES)
    message(table.terms)
    message(table.result)


def test_search_without_a_proven_rate_says_so(message):
    table = table_of(search(**{"": 20.0, "_beyond": 24.0, "_proven": None, "_refuted": None}), *RATES)
    message(table.result)


def test_rates_are_listed_in_ascending_order_with_state():
    table = table_of(search(**{"": 20.0, "_beyond": 24.0, "_proven": 16.0, "_refuted": 32.0}), *RATES)
    assert [(rate, state) for rate, state, _ in table.rows] == [
        ("8 requests/s", "within the SLO, proven"),
        ("16 requests/s", "within the SLO, proven"),
        ("20 requests/s", "within as measured, not proven"),
        ("24 requests/s", "over as measured, not proven"),
        ("32 requests/s", "over the SLO, proven"),
    ]
    assert table.metrics[:2] == ("ttft_p99", "request_throughput")
    assert table.rows[1][2][:2] == ("240 ms", "14.4 requests/s")


def test_curve_has_each_state_the_limit_and_the_proven_rate():
    text = table_of(search(**{"": 20.0, "_beyond": 24.0, "_proven": 16.0, "_refuted": 32.0}), *RATES).curves
    assert text.count("<figure") == 1  # the limit of the goodput is no latency
    assert re.findall(r'class="at"[^>]*>([^<]*)<', text) == ["limit 500 ms", "proven 16/s"]
    assert re.findall(r'data-name="([^"]*)"', text) == [
        "within the SLO, proven", "within as measured, not proven", "over as measured, not proven",
        "over the SLO, proven"]  # fmt: skip


@pytest.mark.parametrize("measurements", [(), RATES, (search(**{"": 20.0}),)])
def test_search_without_rates_has_no_table(measurements):
    assert searches(TestResult("t", True, None, measurements, ())) == ()


def test_rates_of_another_engine_belong_to_another_search():
    other = tried(99, 1.0)
    object.__setattr__(other, "engine", "sglang('m')")
    assert len(table_of(search(**{"": 20.0}), other, *RATES).rows) == 5


def test_measurements_of_a_search_are_labelled_with_the_rate():
    assert labels([search(**{"": 20.0}), *RATES[:2]]) == ["search 1", "8/s", "32/s"]
