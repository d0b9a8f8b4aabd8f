"""Texts of SLOs and claims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.errors import SloError
from pytest_llmperf.metrics import Direction, Source, Unit, all_metrics
from pytest_llmperf.metrics.goodput import GOODPUT_FAMILIES
from pytest_llmperf.slo.model import Claim, Comparison, LatencyLimit, Mechanism, Slo
from pytest_llmperf.slo.parse import parse_claim, parse_slo

LE, GE, EQ = Comparison.AT_MOST, Comparison.AT_LEAST, Comparison.EQUAL


@pytest.mark.parametrize(("text", "expected"), [
    ("ttft_p99 <= 500ms", Slo("ttft_p99", LE, 500)),
    ("tpot_mean<=60 ms", Slo("tpot_mean", LE, 60)),
    ("ttft_median ≤ 0.07 s", Slo("ttft_p50", LE, 70)),
    ("itl_p95 <= 1500us", Slo("itl_p95", LE, 1.5)),
    ("duration_s <= 60s", Slo("duration_s", LE, 60)),
    ("error_rate == 0", Slo("error_rate", EQ, 0)),
    ("error_rate <= 7%", Slo("error_rate", LE, 0.07)),
    ("prefix_cache_hit_rate >= 60%", Slo("prefix_cache_hit_rate", GE, 0.6)),
    ("prefix_cache_hit_rate <= 0.05", Slo("prefix_cache_hit_rate", LE, 0.05)),
    ("request_throughput >= 3.5/s", Slo("request_throughput", GE, 3.5)),
    ("output_throughput >= 1200 tok/s", Slo("output_throughput", GE, 1200)),
    ("preemptions == 0", Slo("preemptions", EQ, 0)),
    ("prefill_tokens(decode) == 0", Slo("prefill_tokens.decode", EQ, 0)),
    ("energy_j(prefill) <= 5 kJ", Slo("energy_j.prefill", LE, 5000)),
    ("transferred_bytes >= 0.95 * expected", Slo("transferred_ratio", GE, 0.95)),
    ("joules_per_token <= 0.5 J", Slo("joules_per_token", LE, 0.5)),
    ("joules_per_token <= 500 mJ/token", Slo("joules_per_token", LE, 0.5)),
    ("energy_j <= 5 kJ", Slo("energy_j", LE, 5000)),
    ("cost_per_million_tokens <= 0.50 USD", Slo("cost_per_million_tokens", LE, 0.5, currency="USD")),
    ("spec_acceptance_length >= 2.3", Slo("spec_acceptance_length", GE, 2.3)),
    ("spec_acceptance_rate_pos2 >= 35.5%", Slo("spec_acceptance_rate_pos2", GE, 0.355)),
    ("goodput(ttft <= 500ms, tpot <= 60ms) >= 4/s",
     Slo("goodput", GE, 4, (LatencyLimit("ttft", 500), LatencyLimit("tpot", 60)))),
    ("slo_attainment(ttft <= 0.5s) >= 99%", Slo("slo_attainment", GE, 0.99, (LatencyLimit("ttft", 500),))),
])
def test_slos_are_read(text, expected):
    slo = parse_slo(text)
    assert slo == expected
    assert slo.text == text
    assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(("text", "expected"), [
    ("ttft_p50(b) / ttft_p50(a) >= 3", Claim("ttft_p50", "b", GE, 3)),
    ("tpot_mean(a)/tpot_mean(b) <= 0.9", Claim("tpot_mean", "a", LE, 0.9)),
    ("prefix_cache_hit_rate(a) >= 0.6", Mechanism("prefix_cache_hit_rate", "a", GE, 0.6)),
    ("prefill_tokens(a.decode) == 0", Mechanism("prefill_tokens.decode", "a", EQ, 0)),
    ("transferred_bytes(a) >= 0.95 * expected", Mechanism("transferred_ratio", "a", GE, 0.95)),
    ("transferred_bytes(b.decode) >= 0.95 * expected", Mechanism("transferred_ratio.decode", "b", GE, 0.95)),
    ("preemptions(b) == 0", Mechanism("preemptions", "b", EQ, 0)),
    ("ttft_p50(b) >= 100ms", Mechanism("ttft_p50", "b", GE, 100)),
    ("joules_per_token(b) / joules_per_token(a) >= 4", Claim("joules_per_token", "b", GE, 4)),
    ("cost_per_million_tokens(a) <= 2 EUR", Mechanism("cost_per_million_tokens", "a", LE, 2, currency="EUR")),
])
def test_claims_are_read(text, expected):
    claim = parse_claim(text)
    assert claim == expected
    assert parse_claim(str(claim)) == claim


numbers = st.floats(1e-6, 1e9) | st.just(0.0)
metrics = st.sampled_from([metric for metric in all_metrics().values() if not metric.limited])


def limit_of(metric, number):
    """One that can be missed."""
    return min(max(number / 1e9, 1e-9), 1 - 1e-9) if metric.unit is Unit.SHARE else number


def currency_of(metric):
    return "USD" if metric.unit is Unit.COST else ""


@given(metrics, numbers)
def test_slo_equals_slo_parsed_from_canonical_text(metric, number):
    comparison = GE if metric.direction is Direction.HIGHER else LE
    slo = Slo(metric.name, comparison, limit_of(metric, number), currency=currency_of(metric))
    assert parse_slo(str(slo)) == slo


@given(st.dictionaries(st.sampled_from(GOODPUT_FAMILIES), numbers, min_size=1), numbers)
def test_goodput_slo_equals_slo_parsed_from_canonical_text(limits, number):
    slo = Slo("goodput", GE, number, tuple(LatencyLimit(*limit) for limit in limits.items()))
    assert parse_slo(str(slo)) == slo


@given(metrics, numbers, st.sampled_from("ab"), st.sampled_from([LE, GE]))
def test_mechanism_equals_mechanism_parsed_from_canonical_text(metric, number, side, comparison):
    mechanism = Mechanism(metric.name, side, comparison, limit_of(metric, number), currency=currency_of(metric))
    assert parse_claim(str(mechanism)) == mechanism


@given(numbers.filter(bool), st.sampled_from("ab"), st.sampled_from([LE, GE]))
def test_claim_equals_claim_parsed_from_canonical_text(ratio, side, comparison):
    claim = Claim("ttft_p50", side, comparison, ratio)
    assert parse_claim(str(claim)) == claim


@pytest.mark.parametrize(("text", "at", "said"), [
    ("tftt_p99 <= 500ms", "tftt_p99", "did you mean ttft_p99"),
    ("itl <= 5ms", "itl", "itl_mean, itl_p50"),
    ("ttft <= 5ms", "ttft", "ttft_p99"),
    ("ttft_p99 <= 500", "500", "there is none; write it like 500ms"),
    ("ttft_p99 <= 5 MB", "MB", "'MB' is not one"),
    ("ttft_p99 <= 5 msec", "msec", "takes 's', 'ms', 'us', 'μs', and 'msec' is not one"),
    ("ttft_p99 <= 5/s", "/", "'/s' is not one"),
    ("joules_per_token <= 5 W", "W", "write it like 0.5 J"),
    ("joules_per_token >= 5 J", ">=", "better when lower; did you mean '<='"),
    ("cost_per_million_tokens <= 0.5", "0.5", "a currency of three capital letters; write it like 0.50 USD"),
    ("cost_per_million_tokens <= 0.5 dollars", "dollars", "a currency of three capital letters"),
    ("ttft_p99 < 500ms", "<", "did you mean '<='"),
    ("ttft_p99 = 500ms", "=", "did you mean '=='"),
    ("ttft_p99 >= 500ms", ">=", "better when lower; did you mean '<='"),
    ("request_throughput <= 3/s", "<=", "better when higher; did you mean '>='"),
    ("ttft_p99 == 500ms", "==", "for counts and shares"),
    ("error_rate <= 60", "60", "did you mean 60%"),
    ("error_rate <= 101%", "101", "at most 100 %"),
    ("error_rate <= 1", "1", "always holds; did you mean 1%"),
    ("error_rate <= 100%", "100", "always holds"),
    ("slo_attainment(ttft <= 1s) >= 0", "0", "always holds"),
    ("error_rate <= 5ms", "ms", "'ms' is not one"),
    ("request_throughput >= 3 tok/s", "tok", "'tok/s' is not one"),
    ("request_throughput >= 3", "3", "write it like 3.5/s"),
    ("goodput >= 4/s", ">=", "goodput(ttft <= 500ms, tpot <= 60ms)"),
    ("goodput(itl <= 5ms) >= 4/s", "itl", "largest_stall"),
    ("goodput(ttft >= 5ms) >= 4/s", ">=", "did you mean '<='"),
    ("goodput(ttft <= 5ms, ttft <= 6ms) >= 4/s", "ttft", "limited twice"),
    ("goodput(ttft <= 5ms >= 4/s", ">=", "expected ')'"),
    ("ttft_p99(a) <= 5ms", "(", "belong in a claim"),
    ("ttft_p99 <= 5ms or so", "or", "found 'or'"),
    ("ttft_p99 <= -5ms", "-", "without a sign"),
    ("ttft_p99 <= 1e999ms", "1e999", "too large"),
    ("ttft_p99 <= 1e305ms", "1e305", "too large"),
    ("ttft_mean <= 1e306s", "1e306", "too large"),
    ("goodput(ttft <= 1e305ms) >= 4/s", "1e305", "too large"),
    ("ttft_p99 <=", "", "expected a number, found the end"),
    ("", "", "expected a metric, found the end"),
    ("99 <= ttft", "99", "expected a metric"),
])
def test_unreadable_slo_is_refused_with_pointer_to_position(text, at, said):
    with pytest.raises(SloError) as caught:
        parse_slo(text)
    message, written, pointer = str(caught.value).split("\n")
    assert message.startswith("this SLO cannot be read: ")
    assert said in message
    assert written == f"  {text}"
    assert text[pointer.index("^") - 2:][:len(at)] == at
    assert pointer.count("^") == max(1, len(at))


@pytest.mark.parametrize(("text", "said"), [
    ("ttft_p50(b) / tpot_p50(a) >= 3", "did you mean ttft_p50"),
    ("ttft_p50(a) / ttft_p50(a) >= 3", "both sides are 'a'"),
    ("preemptions(b) / preemptions(a) >= 3", "has no ratio"),
    ("ttft_p50(c) / ttft_p50(a) >= 3", "a side is 'a' or 'b'"),
    ("ttft_p50 >= 3", "as in ttft_p50(b) / ttft_p50(a) >= 3; mechanism= limits one side"),
    ("ttft_p50(b / ttft_p50(a) >= 3", "expected ')'"),
    ("ttft_p50(b) / ttft_p50(a) == 3", "never exactly equal"),
    ("ttft_p50(b) / ttft_p50(a) >= 0", "above 0"),
    ("ttft_p50(b) / ttft_p50(a) >= 3ms", "which has no unit"),
    ("ttft_p50(b) == 3ms", "for counts and shares"),
    ("goodput(a) >= 3/s", "not compared between sides"),
    ("prefill_tokens(a.decoder) == 0", "the pools are prefill and decode, found 'decoder'"),
    ("ttft_p50(a.decode) <= 5ms", "ttft_p50 is of whole deployments, found 'decode'"),
    ("queue_time_mean(b) / queue_time_mean(a.decode) >= 3", "a ratio is of whole deployments"),
    ("transferred_bytes(a) >= 0.95 * hoped", "expected 'expected' as in transferred_bytes(a) >= 0.95 * expected"),
])
def test_unreadable_claim_is_refused_with_reason(text, said):
    with pytest.raises(SloError, match="this claim cannot be read") as caught:
        parse_claim(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("parse", [parse_slo, parse_claim])
def test_list_instead_of_text_is_refused(parse):
    with pytest.raises(SloError, match="must be a text, got a value of type list"):
        parse(["ttft_p50 <= 30ms", "error_rate == 0"])


@given(st.text(max_size=40))
def test_any_text_raises_only_slo_error(text):
    for parse in (parse_slo, parse_claim):
        try:
            parsed = parse(text)
        except SloError as error:
            parsed = str(error)
        assert parsed


def test_server_share_slo_may_have_either_direction():
    for metric in all_metrics().values():
        if metric.source is Source.SERVER and metric.unit is Unit.SHARE:
            assert parse_slo(f"{metric.name} <= 5%")
            assert parse_slo(f"{metric.name} >= 5%")
