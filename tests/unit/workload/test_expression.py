"""Workloads that are read from the text of their call."""

import pytest

from pytest_llmperf.errors import SpecError
from pytest_llmperf.workload import closed, exponential, mixed, multi_turn, poisson, random_tokens, shared_prefix
from pytest_llmperf.workload.expression import builders_of, read_workload

TALK = multi_turn(conversations=6, turns=5, arrivals=poisson(0.6), starters=2, starter=(35, 40), input=(8, 24),
                  output=(5, 9), think_s=exponential(2), reply="server")


@pytest.mark.parametrize("workload", [
    TALK,
    random_tokens(input=(4, 8), output=3, arrivals=poisson(50).at_most(250), requests=9, seed=1000),
    shared_prefix(prefix=64, suffix=8, groups=2, output=4, arrivals=closed(2), requests=8),
    mixed(stream={"input": 4, "output": 9, "arrivals": closed(1), "requests": 3},
          prefill={"input": 90, "output": 2, "arrivals": poisson(3), "requests": 3}),
])
def test_text_of_workload_is_read_as_equal_workload(workload):
    assert read_workload(str(workload)) == workload


def test_mapping_in_text_is_read_as_arguments_of_a_class():
    text = ('mixed(stream={"input": 4, "output": 9, "arrivals": closed(1), "requests": 3}, '
            'prefill={"input": 90, "output": 2, "arrivals": poisson(3), "requests": 3})')
    assert str(read_workload(text)).startswith("mixed(stream=random_tokens(")


def test_builders_of_a_text_are_the_names_to_import():
    assert builders_of(str(TALK)) == ["exponential", "multi_turn", "poisson"]


@pytest.mark.parametrize(("text", "words"), [
    ("multiturn(turns=5)", "multiturn is no builder, did you mean multi_turn"),
    ("random_tokens(input=4", "cannot be read"),
    ("random_tokens(input=4)", "output, arrivals and requests must be given"),
    ("poisson(8)", "this is no workload"),
    ("8", "this is no workload"),
    ("__import__('os').system('true')", "is no builder"),
    ("random_tokens(input=os.sep, output=1, arrivals=poisson(1), requests=1)", "cannot be read"),
    ("random_tokens(input=0, output=1, arrivals=poisson(1), requests=1)", "input must be at least 1"),
])
def test_text_that_makes_no_workload_is_refused(text, words):
    with pytest.raises(SpecError, match=words):
        read_workload(text)
