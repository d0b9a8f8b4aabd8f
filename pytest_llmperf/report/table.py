"""Cells and tables as text: values of metrics for people, and the table of a verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_llmperf.metrics import find, is_metric
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.sentences import basis_text, estimate_text, interval_text, limit_text, reason_text

_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?(?: ?[A-Za-zµ%/]+)?")
HEAD = ("metric", "limit", "measured", "verdict", "interval", "n")


def cell_text(text: str) -> str:
    """The cell of a CSV file. A spreadsheet takes a text that begins with = + - @ for a formula, unless it is a number.

    >>> cell_text("=1+1"), cell_text("-1.5"), cell_text("\\t@SUM(A1)")
    ("'=1+1", '-1.5', "'\\t@SUM(A1)")
    """
    formula = text.lstrip()[:1] in tuple("=+-@＝＋－＠") and not _NUMBER.fullmatch(text)
    return f"'{text}" if formula or text[:1] in ("\t", "\r") else text


def value_text(name: str, value: float | None) -> str:
    """The value with its unit; "–" if it is missing."""
    if value is None:
        return "–"
    return find(name).unit.show(value) if is_metric(name) else f"{value:.4g}"


def value_change_text(name: str, old: float, new: float) -> str:
    """"41 → 46 ms"."""
    old_text = find(name).unit.number(old) if is_metric(name) else f"{old:.4g}"
    return f"{old_text} → {value_text(name, new)}"


def table(results: Sequence[CheckResult]) -> str:
    """Aligned columns, one line per result, reasons below; plain text for terminals and JUnit."""
    lines = aligned([HEAD, *(_cells(result) for result in results)])
    reasons = [f"  {_named_reason(result)}" for result in results if result.cause]
    return "\n".join(lines + reasons)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of equally many cells as lines whose columns line up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _named_reason(result: CheckResult) -> str:
    name, reason = result.metric or result.subject, reason_text(result)
    return reason if reason.startswith(name) else f"{name}: {reason}"


def _cells(result: CheckResult) -> tuple[str, ...]:
    name = result.metric or result.subject
    return (name, limit_text(result), estimate_text(result), result.verdict.value, interval_text(result),
            basis_text(result))
