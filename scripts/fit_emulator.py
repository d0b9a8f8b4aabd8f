"""Fit the emulator's step times to measured serving runs, and show how well they hold on runs that were not fitted on.

    python scripts/fit_emulator.py            # everything
    python scripts/fit_emulator.py --table    # replays and table only, from the coefficients that are there

Writes pytest_llmperf/emulator/cost/coefficients.json (all runs), scripts/data/held_out.json (the coefficients of each
split, fitted without the runs that it is tested on), scripts/data/replays.csv (the replay of each of these runs) and
docs/emulator_accuracy.md. Deterministic.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from emulator_fit import errors, splits, table  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only replay the held-out runs and write the table")
    if not parser.parse_args().table:
        splits.write(ROOT)
    errors.write_outcomes(ROOT)
    (ROOT / "docs" / "emulator_accuracy.md").write_text(table.text(ROOT), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
