"""Markdown tables of shares with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from pytest_llmperf.stats.interval import share_interval

#: (simulations per row, random generator) → lines.
Table = Callable[[int, np.random.Generator], Iterator[str]]
#: Of each limit of an interval; together 95 %.
CONFIDENCE = 0.975


def heading(title: str, *columns: str) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield row(*columns)
    yield row(*["---"] * len(columns))


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def share(count: int, of: int) -> str:
    """ "3 of 200: 1.5 % (0.31 %–4.32 %)", with Clopper–Pearson limits."""
    if not of:
        return "–"
    limits = share_interval(count, of, CONFIDENCE)
    return f"{count} of {of}: {percent(count / of)} ({percent(limits.low)}–{percent(limits.high)})"


def share_of(outcomes: Iterable[bool]) -> str:
    """The share of the outcomes that hold."""
    held = list(outcomes)
    return share(sum(held), len(held))
