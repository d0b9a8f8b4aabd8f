"""Sorts tests by engine, so that tests with the same engine share one server start."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_llmperf.plugin.identity import spec_unless_it_raises


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move every item with a spec right behind the first item with the same spec; nothing else moves.

    A test that requests a fresh server start comes last in its group, so the rest of the group shares one server start.
    """
    items[:] = [item for group in groups_of_one_server(items) for item in sorted(group, key=_wants_fresh)]


def groups_of_one_server(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """The items, grouped by the spec of their engine marker; an item without a spec is a group of its own."""
    groups: dict[object, list[pytest.Item]] = {}
    for position, item in enumerate(items):
        spec = spec_unless_it_raises(item)
        groups.setdefault(position if spec is None else spec, []).append(item)
    return list(groups.values())


def _wants_fresh(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("engine")
    return bool(marker and marker.kwargs.get("fresh"))
