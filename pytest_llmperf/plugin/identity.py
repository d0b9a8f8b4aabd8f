"""Which test an item is: copies that only repeat it are one test, whose runs pool and which has one baseline."""

from __future__ import annotations

import re

import pytest

STEP = "__pytest_repeat_step_number"  # pytest-repeat's own parameter


def test_id(item: pytest.Item) -> str:
    """The item's id, without pytest-repeat's "2-3" (the second of three).

    pytest-rerunfailures and its like execute the same item again, which changes no id.
    """
    callspec = getattr(item, "callspec", None)
    step = None if callspec is None else callspec.params.get(STEP)
    if not isinstance(step, int):
        return item.nodeid
    head, _, parameters = item.nodeid.partition("[")
    found = list(re.finditer(rf"(?:^|-){step + 1}-\d+(?=-|$)", parameters.removesuffix("]")))
    if not found:
        return item.nodeid
    at = found[-1]
    left = (parameters[:at.start()] + parameters.removesuffix("]")[at.end():]).strip("-")
    return f"{head}[{left}]" if left else head
