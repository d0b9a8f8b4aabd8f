"""Requests whose tokens come from the same server steps, so a slow step delays all requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_llmperf.metrics import RunMetrics, measure
from pytest_llmperf.testing.records import make_record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def in_step(streams: int, waves: Sequence[Sequence[float]]) -> RunMetrics:
    """A closed loop whose streams get each token at the same time; of each wave its steps in milliseconds."""
    begins = accumulate((50.0 + sum(steps_ms) for steps_ms in waves), initial=0.0)
    timed = [(begin, steps_ms) for begin, steps_ms in zip(begins, waves, strict=False) for _ in range(streams)]
    return measure([make_record(i, intended_ms=begin, itl_ms=steps_ms) for i, (begin, steps_ms) in enumerate(timed)])


def arriving(rng: np.random.Generator, steps_ms: npt.NDArray[np.float64], rate: float, requests: int,
             tokens: int) -> RunMetrics:
    """Requests that come at a rate, each with its first token at the end of the next step and one at each after it.

    Args:
        rng: of the arrivals.
        steps_ms: more than last until the last request is answered.
        rate: requests/s.
        requests: how many.
        tokens: of an answer, after its first.
    """
    ends_ms = steps_ms.cumsum()
    records = []
    for index, intended_ms in enumerate((rng.exponential(1000 / rate, requests)).cumsum().tolist()):
        first = int(ends_ms.searchsorted(intended_ms)) + 1
        records.append(make_record(index, intended_ms=intended_ms, ttft_ms=float(ends_ms[first]) - intended_ms,
                                   itl_ms=steps_ms[first + 1:first + 1 + tokens].tolist()))
    return measure(records)
