"""How often verdicts are wrong, on noise whose truth is known. Prints Markdown tables and the time of each.

    python scripts/simulate_verdicts.py young h200 --suites 10000

    python scripts/simulate_verdicts.py --quick

Without a name it prints every table but those of emulated sessions: what a release repeats. `--quick` prints few suite
runs of each fast table, in minutes. `scripts/simulations/` has a module for each kind of verdict.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
from simulations import (
    accuracy,
    baseline_tables,
    bisections,
    change_points,
    claims,
    emulated,
    growth,
    references,
    searches,
    services,
    slos,
    steadiness,
)

SIMULATED = (baseline_tables, change_points, references, bisections, slos, steadiness, searches, accuracy, claims,
             services, growth)
TABLES = {name: table for module in SIMULATED for name, table in module.TABLES.items()}
#: Minutes even with few suite runs.
SLOW = ("slow", "means", "one_run", "searches")
QUICK_SUITES = 5


def main(arguments: Sequence[str] | None = None) -> None:
    known = TABLES | emulated.TABLES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"one of: {', '.join(known)}")
    parser.add_argument("--suites", type=int, default=1000, help="suite runs per row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SUITES} suite runs per row")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a page of the tables, beside what is printed")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.tables if name not in known]:
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(known)}")
    suites = QUICK_SUITES if options.quick else options.suites
    quick = [name for name in TABLES if name not in SLOW]
    names = options.tables or [*quick, *(() if options.quick else SLOW)]
    page = ["# How often verdicts are wrong", "",
            f"Written by `python scripts/simulate_verdicts.py {' '.join(names)} --suites {suites}`. Intervals are "
            "Clopper–Pearson, 95 %."]
    for name in names:
        began_s = perf_counter()
        for line in known[name](suites, np.random.default_rng(options.seed)):
            print(line, flush=True)
            page.append(line)
        print(f"\n{name}: {perf_counter() - began_s:.0f} s", flush=True)
    if options.out is not None:
        options.out.write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
