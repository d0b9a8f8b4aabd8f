"""One plan in several parts."""

import pytest

from pytest_llmperf.load.sharding import shards
from pytest_llmperf.model.plan import LoadPlan, PlannedRequest


def plan_of(count, *, concurrency=None, after=None):
    requests = (PlannedRequest(i, "/", b"", at_ns=i, after=(after or {}).get(i)) for i in range(count))
    return LoadPlan("127.0.0.1", 1, tuple(requests), concurrency=concurrency)


@pytest.mark.parametrize(("requests", "processes", "concurrency", "parts"), [
    (10, 3, None, 3), (2, 3, None, 2), (10, 4, 2, 2), (10, 1, None, 1), (0, 2, None, 1),
])
def test_every_request_is_in_exactly_one_part(requests, processes, concurrency, parts):
    plan = plan_of(requests, concurrency=concurrency)
    pieces = shards(plan, processes)
    assert len(pieces) == parts
    assert sorted(r.index for part in pieces for r in part.requests) == list(range(requests))
    assert max(len(part.requests) for part in pieces) - min(len(part.requests) for part in pieces) <= 1


def test_slots_are_shared_out():
    assert [part.concurrency for part in shards(plan_of(20, concurrency=8), 3)] == [3, 3, 2]


@pytest.mark.parametrize(("concurrency", "processes", "shares"), [
    (3, 2, [20, 10]), (5, 3, [12, 12, 6]), (4, 2, [15, 15]), (60, 4, [8, 8, 7, 7]), (None, 4, [8, 8, 7, 7]),
])
def test_a_part_with_more_slots_has_more_requests(concurrency, processes, shares):
    """Or its slots would be empty while the others work the rest off."""
    parts = shards(plan_of(30, concurrency=concurrency), processes)
    assert [len(part.requests) for part in parts] == shares


def test_conversations_stay_together_and_in_order():
    pieces = shards(plan_of(6, after={2: 0, 3: 1, 5: 2}), 2)
    assert [[r.index for r in part.requests] for part in pieces] == [[0, 2, 4, 5], [1, 3]]
