"""Conversations whose next turn contains the server's answer: their parts, lengths, starters and think times."""

from itertools import pairwise

import pytest

from pytest_llmperf import closed, constant, exponential, multi_turn
from pytest_llmperf.errors import SpecError

TALK = {"conversations": 6, "turns": 5, "input": (8, 24), "output": (555, 1008), "arrivals": constant(1)}
PLAN = TALK | {"starters": 3, "starter": (3500, 4000), "reply": "server"}


def test_later_turn_holds_message_only_and_counts_whole_prompt():
    requests = multi_turn(**PLAN).requests()
    for before, turn in pairwise(requests):
        if turn.after is None:
            continue
        assert (turn.continues, turn.turn, turn.after) == (True, before.turn + 1, before.index)
        assert 8 <= len(turn.prompt) <= 24
        assert turn.prompt_tokens == before.prompt_tokens + before.output_tokens + len(turn.prompt)
    assert [request.answer_used for request in requests[:5]] == [True, True, True, True, False]


def test_lengths_of_capacity_plan_grow_to_seven_thousand_tokens():
    requests = multi_turn(**PLAN | {"conversations": 200, "starters": 10}).requests()
    means = [sum(r.prompt_tokens for r in requests if r.turn == turn) / 200 for turn in range(1, 6)]
    assert 3500 < means[0] < 4050
    assert 6600 < means[4] < 7400


def test_conversations_share_starters_in_turn():
    first = [request.prompt for request in multi_turn(**PLAN).requests() if request.turn == 1]
    beginnings = [prompt[:3500] for prompt in first]
    assert beginnings[:3] == beginnings[3:]
    assert len(set(beginnings)) == 3
    assert len(set(first)) == 6


def test_other_seed_has_other_starters():
    one, other = (multi_turn(**PLAN, seed=seed).requests()[0].prompt for seed in (0, 1))
    assert one[0:4] != other[0:4]


def test_expected_hit_rate_counts_answers_that_are_sent_again():
    talk = {"conversations": 2, "turns": 3, "input": 32, "output": 16, "arrivals": closed(1)}
    seeded, live = multi_turn(**talk), multi_turn(**talk, reply="server")
    assert seeded.expected_hit_rate(16) == pytest.approx(2 * (32 + 80) / (2 * (32 + 80 + 128)))
    assert live.expected_hit_rate(16) == pytest.approx(2 * (48 + 96) / (2 * (32 + 80 + 128)))


def test_text_of_later_turn_begins_with_a_space():
    first, second, *_ = multi_turn(**TALK | {"input": 3, "output": 2}, reply="server", text=True).requests()
    assert not first.prompt.startswith(" ")
    assert second.prompt.startswith(" ")
    assert len(second.prompt.split()) == 3
    assert second.prompt_tokens is None


@pytest.mark.parametrize(("think_s", "low", "high", "mean"), [
    (3, 3, 3, 3), ((2, 8), 2, 8, 5), (exponential(5), 0, 100, 5),
], ids=["fixed", "uniform", "exponential"])
def test_think_times_follow_distribution_and_seed(think_s, low, high, mean):
    def thinks(seed):
        made = multi_turn(**TALK | {"conversations": 500}, think_s=think_s, seed=seed).requests()
        return [request.think_ns / 1e9 for request in made if request.turn > 1]

    drawn = thinks(0)
    assert all(low <= value <= high for value in drawn)
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.05)
    assert drawn == thinks(0)
    assert (drawn == thinks(1)) == (low == high)


def test_default_call_is_written_as_before_live_conversations():
    assert str(multi_turn(**TALK, think_s=1)) == (
        "multi_turn(conversations=6, turns=5, input=(8, 24), output=(555, 1008), arrivals=constant(1), think_s=1)")


@pytest.mark.parametrize(("more", "part"), [
    ({"reply": "live"}, 'reply must be "seeded" or "server", got \'live\''),
    ({"starters": 3}, "starters and starter belong together"),
    ({"starter": 3}, "starters and starter belong together"),
    ({"starters": -1, "starter": 3}, "starters must be at least 0"),
    ({"think_s": (-1, 2)}, "think_s must be at least 0"),
    ({"think_s": (5, 2)}, r"think_s must have low <= high, got \(5, 2\)"),
    ({"think_s": (1, 2, 3)}, "think_s must be a number or"),
    ({"think_s": ("a", 2)}, "think_s must be two numbers"),
    ({"think_s": "soon"}, "think_s must be a finite number"),
])
def test_impossible_conversation_is_refused_in_one_sentence(more, part):
    with pytest.raises(SpecError, match=part):
        multi_turn(**TALK | more)


def test_exponential_think_time_needs_a_positive_mean():
    with pytest.raises(SpecError, match="mean_s must be greater than 0"):
        exponential(0)
