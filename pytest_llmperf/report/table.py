"""The one table of a verdict: metric, limit, measured, verdict, interval, what it rests on; then the reasons."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.sentences import basis_text, estimate_text, interval_text, limit_text, reason_text

HEAD = ("metric", "limit", "measured", "verdict", "interval", "n")


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
