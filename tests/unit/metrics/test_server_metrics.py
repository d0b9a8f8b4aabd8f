"""Metrics from the server's counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.server import NOTHING_COUNTED, SERVER, nothing_counted, server_values


def test_hit_rate_prefers_token_counts_which_retries_do_not_inflate():
    counters = {"prompt_tokens": 1000, "prompt_tokens_cached": 600, "prefix_cache_queries": 2000,
                "prefix_cache_hits": 500}
    assert server_values(counters)["prefix_cache_hit_rate"] == 0.6
    assert server_values(counters | {"prompt_tokens_cached": None})["prefix_cache_hit_rate"] == 0.25


def test_hit_rate_without_queries_is_unknown_and_without_hits_is_zero():
    assert server_values({"prefix_cache_queries": 0, "prefix_cache_hits": 0})["prefix_cache_hit_rate"] is None
    assert server_values({"prompt_tokens": 9, "prompt_tokens_cached": 0})["prefix_cache_hit_rate"] == 0


def test_speculation_metrics_are_computed_from_counters():
    values = server_values({"spec_drafts": 100, "spec_draft_tokens": 300, "spec_accepted_tokens": 160,
                            "spec_accepted_pos_0": 73, "spec_accepted_pos_1": 52, "spec_accepted_pos_10": 1})
    assert values["spec_acceptance_rate"] == pytest.approx(160 / 300)
    assert values["spec_acceptance_length"] == 2.6
    assert [values[f"spec_acceptance_rate_pos{i}"] for i in (0, 1, 10)] == [0.73, 0.52, 0.01]


def test_ratio_over_nothing_names_what_did_not_happen():
    run = measure([], {"spec_draft_tokens": 0, "spec_accepted_tokens": 0, "spec_drafts": 0, "spec_accepted_pos_0": 0,
                       "queue_time_count": 3, "queue_time_s_sum": 0})
    drafted = "nothing was drafted (spec_draft_tokens did not grow)"
    assert (run.value("spec_acceptance_rate"), run.nothing_counted("spec_acceptance_rate")) == (0, drafted)
    assert run.nothing_counted("spec_acceptance_length") == run.nothing_counted("spec_acceptance_rate_pos0")
    assert run.nothing_counted("queue_time_mean") is None  # three requests waited for 0 s
    assert run.nothing_counted("external_cache_hit_rate") is None  # the server has no such counter


def test_every_ratio_states_that_its_divisor_did_not_grow():
    for name, formula in SERVER.items():
        stated = nothing_counted(name, dict.fromkeys(NOTHING_COUNTED, 0.0))
        assert bool(stated) is bool(formula.divisor)
    assert {formula.divisor for formula in SERVER.values()} == {"", *NOTHING_COUNTED}


def test_queue_cache_and_preemption_metrics_are_computed_from_counters():
    values = server_values({"queue_time_s_sum": 3.0, "queue_time_count": 100, "preemptions": 2.0, "kv_usage_peak": 0.9,
                            "external_cache_queries": 10, "external_cache_hits": 4, "prompt_tokens_cached": 7,
                            "running_peak": 16, "waiting_peak": 3})
    assert values["queue_time_mean"] == 30
    assert values["preemptions"] == 2
    assert values["kv_usage_peak"] == 0.9
    assert values["external_cache_hit_rate"] == 0.4
    assert values["cached_tokens"] == 7
    assert (values["running_peak"], values["waiting_peak"]) == (16, 3)


@given(st.dictionaries(st.sampled_from(["prompt_tokens", "preemptions", "spec_drafts", "queue_time_s_sum"]),
                       st.sampled_from([None, -1.0, float("nan")])))
def test_absent_unknown_and_backward_counters_are_missing_not_zero(counters):
    """Faults 45 and 46."""
    assert server_values(counters) == dict.fromkeys(SERVER)


def test_run_returns_server_metrics_by_name():
    run = measure([], {"preemptions": 4.0, "spec_drafts": 10, "spec_accepted_pos_1": 5})
    assert run.value("preemptions") == 4
    assert run.value("spec_acceptance_rate_pos1") == 0.5
    assert run.value("spec_acceptance_rate_pos2") is None
