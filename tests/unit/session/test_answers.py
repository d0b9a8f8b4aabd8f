"""Answers of two servers side by side: the first differing token, and its margin of log-probability."""

import pytest

from pytest_llmperf.results.causes.limits import AnswersDiffer
from pytest_llmperf.session.answers import Answer, _first_difference, _margins

VLLM = {"choices": [{"token_ids": [5, 7], "logprobs": {"top_logprobs": [
    {"token_id:5": -0.25, "token_id:9": -1.75}, {"token_id:7": -0.5, "token_id:1": -0.75}]}}]}
SGLANG = {"output_ids": [5, 7], "meta_info": {"output_top_logprobs": [
    [[-0.25, 5, None], [-1.75, 9, None]], [[-0.5, 7, None], [-0.75, 1, None]]]}}


@pytest.mark.parametrize("answer", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_margin_is_the_largest_minus_the_second_log_probability_of_each_token(answer):
    assert _margins(answer) == (1.5, 0.25)


@pytest.mark.parametrize("answer", [
    {"choices": [{"text": "x", "logprobs": None}]}, {"choices": []}, {"meta_info": {"output_top_logprobs": None}},
    {"choices": [{"logprobs": {"top_logprobs": [{"token_id:5": -0.25}]}}]}])
def test_answer_without_two_log_probabilities_has_no_margin(answer):
    assert _margins(answer) == ()


def test_first_difference_has_the_median_margin_of_all_tokens_at_which_answers_part():
    right = [Answer((1, 2, 3), (9.0, 8.0, 7.0)), Answer((1, 2, 3), (3.0, 2.0, 1.0)), Answer((1, 2), (0.5, 0.25)),
             Answer((4, 4), (0.0, 0.0))]
    cold = [Answer((1, 2, 3)), Answer((1, 2, 9)), Answer((1, 2)), Answer((4, 4))]
    warm = [Answer((1, 2, 3)), Answer((7, 2, 3)), Answer((9, 2)), Answer((4, 5))]
    assert _first_difference(right, cold, warm) == AnswersDiffer(2, 3, 0.5)
    assert _first_difference(right, right) is None
    assert _first_difference([Answer("ab")], [Answer("ax")]) == AnswersDiffer(1, 2)
