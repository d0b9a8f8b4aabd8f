"""How far replays are from what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from emulator_fit.replayed import Means, replayed
from emulator_fit.rows import Row
from emulator_fit.splits import ROUNDS, Split


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run, and the result of its replay with coefficients that were fitted without this run."""

    row: Row
    means: Means

    @property
    def tpot(self) -> float:
        """Relative error."""
        return self.means.tpot_ms / self.row.tpot_ms - 1

    @property
    def ttft(self) -> float:
        """Relative error."""
        return self.means.ttft_ms / self.row.ttft_ms - 1


@dataclass(frozen=True, slots=True)
class Errors:
    """Of several runs, in percent. TTFT of those below saturation only; None where there is none."""

    runs: int
    tpot_mean: float
    tpot_median: float
    tpot_bias: float
    ttft_runs: int
    ttft_median: float | None
    ttft_bias: float | None


def outcomes(split: Split, rows: Iterable[Row]) -> list[Outcome]:
    """Replays of a split's held-out rows that are among `rows`."""
    wanted = {row.id for row in rows}
    return [Outcome(row, replayed(row, split.coefficients(row), ROUNDS)) for row in split.rows if row.id in wanted]


def errors_of(outcomes: Sequence[Outcome]) -> Errors:
    tpot = [outcome.tpot * 100 for outcome in outcomes]
    ttft = [outcome.ttft * 100 for outcome in outcomes if not outcome.row.saturated]
    return Errors(
        runs=len(outcomes),
        tpot_mean=fmean(map(abs, tpot)),
        tpot_median=median(map(abs, tpot)),
        tpot_bias=fmean(tpot),
        ttft_runs=len(ttft),
        ttft_median=median(map(abs, ttft)) if ttft else None,
        ttft_bias=median(ttft) if ttft else None,
    )
