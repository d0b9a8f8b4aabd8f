"""Maps pytest items to tests and engines. Items that only repeat a test belong to the same test; they pool runs and
share a baseline."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from types import FunctionType, MethodType

import pytest

from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.session.unchecked import syntax_of
from pytest_llmperf.slo.parse import parse_check

CHECK = "perf.check"
STEP = "__pytest_repeat_step_number"  # pytest-repeat's own parameter


def test_id(item: pytest.Item) -> str:
    """The item's id, without pytest-repeat's "2-3" (the second of three), and without the group that xdist appends.

    pytest-rerunfailures and its like execute the same item again, which changes no id.
    """
    nodeid = _without_group(item)
    step = params_of(item).get(STEP)
    if not isinstance(step, int):
        return nodeid
    head, _, parameters = nodeid.partition("[")
    # `.*` is greedy, so the last match is the copy: the id of an earlier parameter may contain "2-3", too.
    copy = re.fullmatch(rf"(?:(.*)-)?{step + 1}-\d+(?:-(.*))?", parameters.removesuffix("]"), re.DOTALL)
    if copy is None:
        return nodeid
    left = [each for each in copy.groups() if each is not None]
    return f"{head}[{'-'.join(left)}]" if left else head


def params_of(item: pytest.Item) -> Mapping[str, object]:
    """Values of the parameters of an item, by name."""
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


def spec_of(item: pytest.Item) -> EngineSpec | None:
    """The spec that the `engine` fixture of an item will start; None if the item has no valid engine marker.

    Raises whatever a function in the engine marker raises.
    """
    chosen = spec_of_marker(item)
    return chosen if isinstance(chosen, EngineSpec) else None


def spec_unless_it_raises(item: pytest.Item) -> EngineSpec | None:
    """As `spec_of`, but None if the function in the engine marker raises. The fixture `engine` calls the function again
    and reports the error."""
    if item.get_closest_marker("engine") is None:
        return None
    try:
        return spec_of(item)
    except (Exception, pytest.skip.Exception, pytest.fail.Exception):
        return None


def spec_of_marker(item: pytest.Item) -> object:
    """The argument of the engine marker for this item: an engine spec if the marker is valid, None without a marker."""
    params = params_of(item)
    marker = item.get_closest_marker("engine")
    chosen = params.get("engine", marker.args[0] if marker and marker.args else None)
    return chosen(params.get("case")) if callable(chosen) else chosen


@cache
def check_written_slos(test: object) -> None:
    """Read each SLO that a test writes as text in a call of `perf.check`, so that a mistyped metric costs no start.

    The fixtures `engine` and `perf` both call this, because a test may use either first; the source is read once.

    Raises:
        SloError: a text cannot be read, or there is no such metric.
    """
    function = test.__func__ if isinstance(test, MethodType) else test
    if not isinstance(function, FunctionType):
        return
    for node in syntax_of(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == CHECK:
            for argument in node.args[1:]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    parse_check(argument.value)


def _without_group(item: pytest.Item) -> str:
    """Under --dist loadgroup xdist (before pytest 9) makes "test_x[a]@group" of it."""
    head, at, group = item.nodeid.rpartition("@")
    grouped = at and item.get_closest_marker("xdist_group") and not {"]", ":", "/"}.intersection(group)
    return head if grouped else item.nodeid
