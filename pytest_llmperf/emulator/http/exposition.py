"""Prometheus' text format: histograms that observe many values at once, and a page of samples."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
_MOST_LATER = 1024


class Histogram:
    """Counts of values at most each bound, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._later: list[npt.NDArray[np.float64]] = []

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def observe_all(self, values: npt.NDArray[np.float64]) -> None:
        """Observes many values. The result equals single observations, except for the rounding of the sum. The values
        are sorted into bins when the histogram is read."""
        self._later.append(values)
        if len(self._later) == _MOST_LATER:
            self._sort_in()

    @property
    def count(self) -> int:
        self._sort_in()
        return sum(self._counts)

    @property
    def total(self) -> float:
        self._sort_in()
        return self._sum

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound as text, how many values were at most that), the last one +Inf."""
        self._sort_in()
        return list(zip(_shown_bounds(self._bounds), accumulate(self._counts), strict=True))

    def _sort_in(self) -> None:
        if not self._later:
            return
        values = np.concatenate(self._later)
        self._later.clear()
        bin_counts = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
        self._counts = [count + more for count, more in zip(self._counts, bin_counts.tolist(), strict=True)]
        self._sum += float(values.sum())


class Page:
    """Collects families and writes them in order."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float | Histogram]]) -> None:
        """Write a family. The name of a counter ends with `_total` here as in its samples."""
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for labels, value in samples:
            if isinstance(value, Histogram):
                self._histogram(name, labels, value)
            else:
                self._lines.append(f"{name}{_shown(labels)} {float(value)!r}")

    def _histogram(self, name: str, labels: Labels, histogram: Histogram) -> None:
        label_text = _shown(labels)[1:-1]
        begin = f"{name}_bucket{{{label_text}{',' if label_text else ''}le=\""
        self._lines += [f'{begin}{bound}"}} {float(count)!r}' for bound, count in histogram.cumulative()]
        for ending, value in (("count", histogram.count), ("sum", histogram.total)):
            self._lines.append(f"{name}_{ending}{_shown(labels)} {float(value)!r}")

    def body(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


@lru_cache(maxsize=256)
def _shown_bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*(repr(float(bound)) for bound in bounds), "+Inf")


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
