"""Degrees of freedom of a sum of variances that are known to different degrees (Satterthwaite, 1946)."""

from __future__ import annotations

from collections.abc import Sequence


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Effective degrees of freedom of Σ variance: (Σ v)² / Σ (v² / df).

    Args:
        parts: (coefficient × mean square, its degrees of freedom), not all 0. A coefficient may be negative.
    """
    total = sum(variance for variance, _ in parts)
    return total**2 / sum(variance**2 / df for variance, df in parts)
