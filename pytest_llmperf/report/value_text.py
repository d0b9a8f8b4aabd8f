"""A metric's value for people, whichever version wrote it."""

from __future__ import annotations

import re

from pytest_llmperf.metrics import find, is_metric

_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?(?: ?[A-Za-zµ%/]+)?")


def cell_text(text: str) -> str:
    """The cell of a CSV file. A spreadsheet takes a text that begins with = + - @ for a formula, unless it is a number.

    >>> cell_text("=1+1"), cell_text("-1.5"), cell_text("\\t@SUM(A1)")
    ("'=1+1", '-1.5', "'\\t@SUM(A1)")
    """
    formula = text.lstrip()[:1] in tuple("=+-@＝＋－＠") and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula or text[:1] in ("\t", "\r") else text


def value_text(name: str, value: float | None) -> str:
    """With its unit; "–" where it is missing."""
    if value is None:
        return "–"
    return find(name).unit.show(value) if is_metric(name) else f"{value:.4g}"


def value_change_text(name: str, old: float, new: float) -> str:
    """"41 → 46 ms"."""
    old_text = find(name).unit.number(old) if is_metric(name) else f"{old:.4g}"
    return f"{old_text} → {value_text(name, new)}"
