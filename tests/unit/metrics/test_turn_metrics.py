"""Metrics of some turns of conversations."""

from dataclasses import replace

import pytest

from pytest_llmperf.errors import SloError
from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.metrics import Unit, find, measure
from pytest_llmperf.metrics.registry import all_metrics
from pytest_llmperf.model.record import Outcome
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.slo.parse import parse_slo
from pytest_llmperf.testing.records import make_record


def turn(index, number, *, after=None, ttft_ms=10.0, prompt=100, cached=0, ok=True):
    made = make_record(index=index, intended_ms=1000.0 * index, ttft_ms=ttft_ms)
    outcome = Outcome.OK if ok else Outcome.TIMEOUT
    return replace(made, turn=number, after=after, prompt_tokens=prompt, cached_tokens=cached, outcome=outcome,
                   arrivals_ns=made.arrivals_ns if ok else ())


TALKS = [
    turn(0, 1, ttft_ms=50), turn(1, 2, after=0, prompt=200, cached=100), turn(2, 3, after=1, prompt=300, cached=240),
    turn(3, 1, ttft_ms=70), turn(4, 2, after=3, prompt=200, cached=140, ttft_ms=20), turn(5, 3, after=4, ok=False),
]


def test_hit_rate_of_turns_counts_tokens_of_served_requests():
    run = measure(TALKS)
    assert run.value("hit_rate_turn1") == 0
    assert run.value("hit_rate_turn2") == pytest.approx(240 / 400)
    assert run.value("hit_rate_turn3") == pytest.approx(240 / 300)
    assert run.value("hit_rate_turn2plus") == pytest.approx(480 / 700)
    assert run.value("hit_rate_turn4") is None


def test_ttft_of_turns_leaves_out_other_turns():
    run = measure(TALKS)
    assert run.samples("ttft_turn1") == (50, 70)
    assert run.value("ttft_turn2_mean") == 15
    assert run.value("ttft_turn2plus_max") == 20
    assert run.by_request("ttft_turn3")[:2] == ((), ())
    assert run.by_request("ttft_turn3")[5] is None


def test_conversation_counts_when_every_turn_was_served():
    run = measure(TALKS)
    assert run.value("conversation_throughput") == pytest.approx(1 / run.value("duration_s"))


def test_run_without_conversations_has_no_metric_of_turns():
    run = measure([make_record(index=index) for index in range(3)])
    assert run.value("conversation_throughput") is None
    assert not [name for name in run.values if "_turn" in name]


@pytest.mark.parametrize(("cached", "counters", "value"), [
    ((None, None), {}, None), ((None, None), {"prompt_tokens_cached": 0}, 0),
    ((None, None), {"prompt_tokens_cached": 8}, None), ((None, 50), {}, 0.5),
])
def test_missing_cached_tokens_are_zero_only_where_others_are_reported(cached, counters, value):
    talk = [turn(0, 1, cached=cached[0]), turn(1, 2, after=0, cached=cached[1])]
    assert measure(talk, counters).value("hit_rate_turn2plus") == value


def test_hit_rate_is_unknown_where_served_request_has_no_prompt_count():
    talk = [turn(0, 1), turn(1, 2, after=0, prompt=None, cached=50), turn(2, 3, after=1, prompt=200, cached=100)]
    assert measure(talk).value("hit_rate_turn2plus") is None
    assert measure(talk).value("hit_rate_turn3") == 0.5


@pytest.mark.parametrize(("name", "unit", "formula_id"), [
    ("hit_rate_turn2plus", Unit.SHARE, "hit_rate_turn2plus.1"), ("hit_rate_turn12", Unit.SHARE, "hit_rate_turn12.1"),
    ("ttft_turn2plus_p99", Unit.MS, "ttft_turn2plus.1/p99"), ("ttft_turn1_median", Unit.MS, "ttft_turn1.1/p50"),
    ("conversation_throughput", Unit.CONVERSATIONS_PER_S, "conversation_throughput.1"),
    ("max_conversation_rate", Unit.CONVERSATIONS_PER_S, "max_conversation_rate.1"),
])
def test_metric_of_turns_has_unit_and_formula_id(name, unit, formula_id):
    assert (find(name).unit, find(name).formula_id) == (unit, formula_id)


@pytest.mark.parametrize(
    "name", ["hit_rate_turn0", "ttft_turnplus_p50", "tpot_turn2_p50", "hit_rate", "ttft_turn2_p50x"])
def test_other_names_of_turns_are_refused(name):
    with pytest.raises(SloError):
        find(name)


def test_ttft_of_turns_without_statistic_lists_the_statistics():
    with pytest.raises(SloError, match="ttft_turn2_mean, ttft_turn2_p50"):
        find("ttft_turn2")


def test_hit_rate_of_turns_is_near_a_misspelt_name():
    with pytest.raises(SloError, match="hit_rate_turn2plus"):
        find("hit_rate_turns2plus")
    assert "hit_rate_turn2plus" in all_metrics()


def talks(count, cached):
    first = [turn(2 * number, 1, ttft_ms=500.0 + number) for number in range(count)]
    return [made for begin in first for made in (
        begin, turn(begin.index + 1, 2, after=begin.index, prompt=1000, cached=cached, ttft_ms=10 + begin.index / 2))]


@pytest.mark.parametrize(("text", "cached", "verdict"), [
    ("hit_rate_turn2plus >= 80%", 930, Verdict.PASS), ("hit_rate_turn2plus >= 80%", 640, Verdict.FAIL),
    ("ttft_turn2plus_p50 <= 100ms", 930, Verdict.PASS), ("ttft_turn1_p50 <= 100ms", 930, Verdict.FAIL),
    ("ttft_turn2plus_p90 <= 400ms", 930, Verdict.PASS),
])
def test_limit_on_turns_is_judged_without_other_turns(text, cached, verdict):
    runs = [measure(talks(120, cached + seed)) for seed in range(3)]
    assert judge_slo(parse_slo(text), runs, ["a"] * 3, [0, 1, 2]).verdict is verdict


@pytest.mark.parametrize(("cached", "verdict"), [(930, Verdict.PASS), (200, Verdict.FAIL)])
def test_single_run_weighs_hit_rate_by_prompts_of_limited_turns(cached, verdict):
    result = judge_slo(parse_slo("hit_rate_turn2plus >= 80%"), [measure(talks(200, cached))], ["a"], [0])
    assert result.verdict is verdict
