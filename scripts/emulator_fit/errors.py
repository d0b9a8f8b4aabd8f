"""How far replays are from what was measured, and the file that holds the replays."""

from __future__ import annotations

import csv
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from emulator_fit.replayed import row_replayed
from emulator_fit.rows import Row
from emulator_fit.splits import ROUNDS, Split, read_splits
from pytest_llmperf.calibration.host_fit import Means

REPLAYS = Path("scripts/data/replays.csv")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run, and the result of its replay with the coefficients of a split, which were fitted without this run."""

    split: str
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


def outcome(split: Split, row: Row) -> Outcome:
    """Replay of one held-out run."""
    return Outcome(split.name, row, row_replayed(row, split.coefficients(row), ROUNDS))


def write_outcomes(root: Path) -> None:
    """Replays each held-out run of each split, on all cores, and stores what came out."""
    tasks = [(split, row) for split in read_splits(root) for row in split.rows]
    with ProcessPoolExecutor() as pool:
        outcomes = list(pool.map(outcome, *zip(*tasks, strict=True)))
    with (root / REPLAYS).open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("split", "run", "tpot_ms", "ttft_ms"))
        lines.writerows((o.split, o.row.id, f"{o.means.tpot_ms:.4f}", f"{o.means.ttft_ms:.3f}") for o in outcomes)


def read_outcomes(root: Path) -> list[Outcome]:
    """What `write_outcomes` stored."""
    rows = {row.id: row for split in read_splits(root) for row in split.rows}
    with (root / REPLAYS).open(encoding="utf-8", newline="") as file:
        return [Outcome(line["split"], rows[line["run"]], Means(float(line["ttft_ms"]), float(line["tpot_ms"])))
                for line in csv.DictReader(file)]
