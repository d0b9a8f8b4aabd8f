"""A metric's value for people, whichever version wrote it."""

from __future__ import annotations

from pytest_llmperf.metrics import find, is_metric


def value_text(name: str, value: float | None) -> str:
    """With its unit; "–" where it is missing."""
    if value is None:
        return "–"
    return find(name).unit.show(value) if is_metric(name) else f"{value:.4g}"


def value_change_text(name: str, old: float, new: float) -> str:
    """"41 → 46 ms"."""
    old_text = find(name).unit.number(old) if is_metric(name) else f"{old:.4g}"
    return f"{old_text} → {value_text(name, new)}"
