"""Counters of several replicas are summed, and each restart, appearance and disappearance names its replica."""

import pytest

from pytest_llmperf.telemetry.prometheus import START_TIME
from pytest_llmperf.telemetry.replicas import ALONE, Counters, ReplicaLog, balance, increases, total_increases

A, B, C = "10.0.0.5:8000", "10.0.0.6:8000", "10.0.0.7:8000"


def test_counters_of_replicas_are_summed_by_name():
    counters = Counters({A: {"hits": 3.0, "prompts": 10.0}, B: {"hits": 4.0}})
    assert counters == {"hits": 7.0, "prompts": 10.0}
    assert counters.get("absent") is None
    assert not Counters({A: {}})


def test_increase_of_a_run_is_the_sum_over_the_replicas():
    before = Counters({A: {"hits": 3.0, "lost": 1.0}, B: {"hits": 100.0}, C: {"hits": 9.0}})
    after = Counters({A: {"hits": 5.0}, B: {"hits": 101.0}})
    by_replica = increases(before, after)
    assert by_replica == {A: {"hits": 2.0, "lost": None}, B: {"hits": 1.0}}
    assert total_increases(by_replica) == {"hits": 3.0, "lost": None}


def log_of(*readings, silent=None):
    log = ReplicaLog()
    for reading in readings:
        log.take(reading, silent or {})
    return log


def test_restart_names_the_replica_that_restarted():
    log = log_of({A: {START_TIME: 100.0}, B: {START_TIME: 200.0}}, {A: {START_TIME: 100.0}, B: {START_TIME: 300.0}})
    assert log.restart() == f"replica {B}, its start time changed from 200 to 300"
    assert log.restart() is None
    assert log.scaling() is None


def test_fallen_counter_of_one_replica_is_seen_although_the_sum_grows():
    log = log_of({A: {"hits": 5.0}, B: {"hits": 5.0}}, {A: {"hits": 90.0}, B: {"hits": 1.0}})
    assert log.restart() == f"replica {B}, its counter hits fell from 5 to 1"


def test_second_replica_is_no_restart_of_the_first():
    log = log_of({A: {START_TIME: 100.0}}, {A: {START_TIME: 100.0}, B: {START_TIME: 50.0}})
    assert log.restart() is None
    assert log.scaling() == f"replica {B} appeared"
    assert log.present == {A, B}


@pytest.mark.parametrize(
    ("silent", "reason"), [({A: "ConnectError: refused"}, "ConnectError: refused"),
                           ({}, "nothing lists the replica any more")]
)
def test_replica_that_vanishes_is_named_with_the_reason(silent, reason):
    log = log_of({A: {}, B: {}})
    log.take({B: {}}, silent)
    assert log.scaling() == f"replica {A} vanished ({reason})"
    assert log.scaling() is None


def test_replica_that_vanishes_and_returns_between_two_calls_is_named_twice():
    assert log_of({A: {}, B: {}}, {A: {}}, {A: {}, B: {}}).scaling() == (
        f"replica {B} vanished (nothing lists the replica any more), replica {B} appeared")


def test_server_alone_is_no_replica_that_vanishes():
    log = log_of({ALONE: {"hits": 1.0}}, {}, {ALONE: {"hits": 2.0}})
    assert (log.scaling(), log.restart(), log.present) == (None, None, frozenset())


def test_alternating_pages_of_a_load_balancer_are_several_processes_not_a_restart():
    """A load balancer that hands out the pages of two replicas in turn."""
    log = log_of({ALONE: {START_TIME: 200.0, "hits": 9.0}}, {ALONE: {START_TIME: 100.0, "hits": 2.0}})
    assert log.scaling().startswith("several processes answer for one /metrics (started at 200 and 100)")
    assert log.restart() is None


def test_balance_is_of_computed_tokens_and_of_time_per_token():
    one = {"prompt_tokens": 100.0, "prompt_tokens_cached": 60.0, "generation_tokens": 20.0, "tpot_s_sum": 2.0,
           "tpot_count": 100.0}
    other = {"prompt_tokens": 100.0, "generation_tokens": 20.0, "tpot_s_sum": 3.0, "tpot_count": 100.0}
    assert balance({A: one, B: other}) == {
        "replica_largest_computed_tokens": 120.0, "replica_mean_computed_tokens": 90.0,
        "replica_largest_tpot": 0.03, "replica_mean_tpot": 0.025}
    assert balance({A: one}) == {}
    assert "replica_mean_tpot" not in balance({A: one, B: other | {"tpot_count": 0.0}})
    assert balance({A: one, B: {}}) == {}
