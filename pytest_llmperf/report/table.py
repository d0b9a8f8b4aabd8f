"""The one table of a verdict: metric, limit, measured, verdict, interval, what it rests on; then the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.results.check import CheckResult

HEAD = ("metric", "limit", "measured", "verdict", "interval", "n")


def table(results: Sequence[CheckResult]) -> str:
    """Aligned columns, one line per result, reasons below; plain text for terminals and JUnit."""
    lines = aligned([HEAD, *(_cells(result) for result in results)])
    reasons = [f"  {result.metric or result.subject}: {result.reason}" for result in results if result.reason]
    return "\n".join(lines + reasons)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of equally many cells as lines whose columns line up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(result: CheckResult) -> tuple[str, ...]:
    name = result.metric or result.subject
    return (name, result.limit, result.measured, result.verdict.value, result.interval, result.n)
