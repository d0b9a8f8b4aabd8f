"""Several tests of one family, which together must not raise a false alarm (Holm, 1979)."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which null hypotheses fall when at most `alpha` of all families may contain a false rejection; none at 0.

    The smallest p is held against α/m, the next against α/(m − 1), …; the first that stands saves the rest.
    """
    falls = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if alpha <= 0 or p_values[index] > alpha / (len(p_values) - rank):
            break
        falls[index] = True
    return falls
