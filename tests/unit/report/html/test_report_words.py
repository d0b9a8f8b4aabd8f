"""Checks as sentences."""

import doctest

import pytest

from pytest_llmperf import CheckResult, Verdict
from pytest_llmperf.metrics import all_metrics
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.report.html import figures, words
from pytest_llmperf.slo.model import Comparison


@pytest.mark.parametrize("module", [words, figures])
def test_docstring_examples_match_output(module):
    outcome = doctest.testmod(module)
    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.parametrize(
    ("subject", "sentence"),
    [
        ("ttft_p50(b) / ttft_p50(a) >= 3.0", "Median time to first token of B: at least 3 times that of A"),
        ("tpot_mean(a) / tpot_mean(b) <= 1.05", "Mean time per output token of A: at most 1.05 times that of B"),
        ("prefix_cache_hit_rate(b) == 0", "Prefix cache hit rate of B: exactly 0"),
        ("ttft_p99 <= 500ms", "99th percentile of the time to first token: at most 500ms"),
        ("goodput(ttft <= 500ms) >= 4/s", "Goodput within ttft <= 500ms: at least 4/s"),
        ("valid runs", ""),
    ],
)
def test_requirement_is_shown_as_sentence(subject, sentence):
    assert words.in_words(CheckResult(subject, Verdict.PASS)) == sentence


def test_baseline_comparison_is_shown_as_sentence(message):
    check = CheckResult("baseline ttft_p50", Verdict.PASS, "ttft_p50", Unit.CHANGE, Comparison.AT_MOST, 0.15)
    message(words.in_words(check))
    check = CheckResult("baseline output_throughput", Verdict.PASS, "output_throughput", Unit.CHANGE,
                        Comparison.AT_LEAST, -0.048)
    message(words.in_words(check))


def test_every_metric_has_a_readable_name():
    assert all("_" not in words.metric_in_words(name) for name in all_metrics())
