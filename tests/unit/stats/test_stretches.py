"""Which parts of runs are compared with each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.stats.stretches import batches, places, stretches


@given(st.lists(st.integers(), max_size=50), st.integers(1, 12))
def test_batches_are_consecutive_even_and_complete(items, count):
    parts = batches(items, count)
    assert [item for part in parts for item in part] == items
    sizes = [len(part) for part in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1 <= min(sizes)


@pytest.mark.parametrize(("runs", "seeds", "overlap", "sizes"), [
    ((100, 100), (1, 2), 1.0, [[10] * 10] * 2),       # one after the other
    ((100, 100), (1, 2), 1.4, [[10] * 10] * 2),
    ((100, 60), (1, 2), 11.0, [[33, 33, 34], [20] * 3]),  # as many of each as the shortest run has
    ((100, 100), (1, 2), 80.0, [[100], [100]]),       # all at once: a run is one observation
    ((100, 100), (1, 1), 80.0, [[50, 50]] * 2),       # of a single draw two at least
    ((100,), (1,), 80.0, [[50, 50]]),
    ((7, 0), (1, 2), 1.0, [[1] * 7, []]),             # a run without any says nothing of the others
])
def test_stretches_are_longer_than_what_requests_share(runs, seeds, overlap, sizes):
    found = stretches([range(requests) for requests in runs], seeds, overlap)
    assert [[len(part) for part in run] for run in found] == sizes


def test_runs_are_compared_where_they_are_in_the_same_place():
    first, second, first_again = [["a"], ["b"]], [["c"], ["d"]], [["A"], ["B"]]
    assert places([first, second], [1, 2]) == [[["a"], ["c"]], [["b"], ["d"]]]
    assert places([first, second, first_again], [1, 2, 1]) == [[["a", "A"], ["c"]], [["b", "B"], ["d"]]]


def test_a_single_draw_is_compared_with_itself():
    assert places([[["a"], ["b"]], [["A"], ["B"]]], [1, 1]) == [[["a", "A"], ["b", "B"]]]


def test_a_run_that_has_nothing_to_say():
    assert places([[["a"], ["b"]], []], [1, 2]) == [[["a"]], [["b"]]]
