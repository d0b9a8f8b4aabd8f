"""The one table of a verdict: metric, limit, measured, verdict, interval, what it rests on; then the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.model.verdict import CheckResult

HEAD = ("metric", "limit", "measured", "verdict", "interval", "n")


def table(results: Sequence[CheckResult]) -> str:
    """Aligned columns, one line per result, reasons below; plain text for terminals and JUnit."""
    rows = [HEAD, *(_cells(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    reasons = [f"  {result.metric or result.subject}: {result.reason}" for result in results if result.reason]
    return "\n".join(lines + reasons)


def _cells(result: CheckResult) -> tuple[str, ...]:
    name = result.metric or result.subject
    return (name, result.limit, result.measured, result.verdict.value, result.interval, result.n)
