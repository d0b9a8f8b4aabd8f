"""A metric's value for people, whichever version wrote it."""

from __future__ import annotations

from pytest_llmperf.errors import SloError
from pytest_llmperf.metrics import find


def shown(name: str, value: float | None) -> str:
    """With its unit; "–" where it is missing."""
    if value is None:
        return "–"
    try:
        return find(name).unit.show(value)
    except SloError:  # a metric that this version does not have
        return f"{value:.4g}"
