"""Which runs are fitted on, which are held out, and the files that say so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from emulator_fit.fitting import correction, fit_dense, fit_experts, of_row
from emulator_fit.parameters import ENGINES, Numbers, start
from emulator_fit.rows import Row, read_rows, sha256_of
from pytest_llmperf.emulator.cost.coefficients import Coefficients

CROWD = 256  # seven runs of a mixture had 512 clients, and a limit of running sequences that the file does not give
FOLDS = 5
ROUNDS = 10
COEFFICIENTS = Path("pytest_llmperf/emulator/cost/coefficients.json")
HELD_OUT = Path("scripts/data/held_out.json")
OWN = "docs/measured/h200.md"


@dataclass(frozen=True, slots=True)
class Split:
    """Held-out rows, and the coefficients that were fitted to the remaining rows."""

    name: str
    rows: tuple[Row, ...]
    numbers: Numbers

    def coefficients(self, row: Row) -> Coefficients:
        return of_row(self.numbers, row)


def targets(rows: Sequence[Row]) -> list[Row]:
    """What the emulator is for: vLLM and SGLang, at a stated concurrency that their servers admitted."""
    return [row for row in rows if row.backend in ENGINES and row.stated and (row.dense or row.concurrency <= CROWD)]


def read_splits(root: Path) -> list[Split]:
    """The stored splits: five folds of configurations, five of single runs of mixtures, and H100 → H200."""
    stored = json.loads((root / HELD_OUT).read_text(encoding="utf-8"))
    rows = {row.id: row for row in targets(read_rows())}
    return [Split(s["name"], tuple(rows[i] for i in s["held_out"]), s["engines"]) for s in stored["splits"]]


def write(root: Path) -> None:
    """Fits everything and writes both files."""
    rows = targets(read_rows())
    corrections = {row.id: correction(row, start(), ROUNDS) for row in rows}
    dense = [row for row in rows if row.dense]
    mixtures = sorted((row for row in rows if not row.dense), key=lambda row: sha256(row.id.encode()).digest())

    def split(name: str, held: Sequence[Row], numbers: Numbers | None = None, anchors: bool = True) -> dict[str, Any]:
        """`numbers` are of the dense models, where no dense run is held out."""
        ids = {row.id for row in held}
        if numbers is None:
            numbers = _rounded(fit_dense([row for row in dense if row.id not in ids], corrections, anchors))
        numbers = _rounded(fit_experts([row for row in mixtures if row.id not in ids], corrections, numbers))
        return {"name": name, "held_out": sorted(ids), "engines": numbers}

    of_dense = _rounded(fit_dense(dense, corrections, with_anchors=True))
    shipped = split("shipped", (), of_dense)["engines"]
    engines = {engine: shipped.pop(engine) for engine in ENGINES}
    _dump(root / COEFFICIENTS, {"provenance": _provenance(rows), "engines": engines, "families": shipped})
    splits = [split(f"fold {fold}", _held(rows, fold)) for fold in range(FOLDS)]
    splits += [split(f"runs {fold}", mixtures[fold::FOLDS], of_dense) for fold in range(FOLDS)]
    splits.append(split("H100 → H200", [row for row in dense if row.gpu == "h200"], anchors=False))
    _dump(root / HELD_OUT, {"sha256": sha256_of(), "splits": splits})


def _held(rows: Sequence[Row], fold: int) -> list[Row]:
    """Rows of one configuration are held out together; configurations are dealt to the folds in their sorted order."""
    configurations = sorted({row.configuration for row in rows})[fold::FOLDS]
    return [row for row in rows if row.configuration in configurations]


def _rounded(numbers: Numbers) -> Numbers:
    return {owner: {name: float(f"{value:.4g}") for name, value in own.items()} for owner, own in numbers.items()}


def _provenance(rows: Sequence[Row]) -> dict[str, Any]:
    dense = sum(row.dense for row in rows)
    return {
        "summary": f"fitted on {dense} runs of dense models and {len(rows) - dense} of mixtures of experts on H100 and "
        "H200, and on steps measured on H200",
        "data": "scripts/data/served_h100_h200.csv",
        "sha256": sha256_of(),
        "own": OWN,
        "script": "scripts/fit_emulator.py",
        "own_runs": ["eager_layer_s"],
    }


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
