"""A metric's value for people, whichever version wrote it."""

from __future__ import annotations

from pytest_llmperf.metrics import find, is_metric


def shown(name: str, value: float | None) -> str:
    """With its unit; "–" where it is missing."""
    if value is None:
        return "–"
    return find(name).unit.show(value) if is_metric(name) else f"{value:.4g}"


def moved(name: str, old: float, new: float) -> str:
    """"41 → 46 ms"."""
    before = find(name).unit.number(old) if is_metric(name) else f"{old:.4g}"
    return f"{before} → {shown(name, new)}"
