"""How often verdicts are wrong, on noise whose truth is known. Prints Markdown tables and the time of each.

    python scripts/simulate_verdicts.py young h200 --suites 10000

    python scripts/simulate_verdicts.py --quick

Without a name it prints every table: what a release repeats. `--quick` prints few suite runs of each fast table, in
seconds. Each question has a module of its own, whose `TABLES` maps a name to a function of the number of suite runs and
a random generator.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter

import numpy as np
import simulate_accuracy
import simulate_baselines
import simulate_claims
import simulate_means
import simulate_references
import simulate_searches
import simulate_slos
import simulate_steadiness
import simulate_tunings

MODULES = (
    simulate_baselines, simulate_references, simulate_slos, simulate_means, simulate_steadiness, simulate_searches,
    simulate_accuracy, simulate_claims, simulate_tunings,
)  # fmt: skip
TABLES = {name: table for module in MODULES for name, table in module.TABLES.items()}
#: Minutes even with few suite runs; tests/unit/calibration/test_slow_servers.py has a small form.
SLOW = ("slow", "means", "one_run", "searches")
QUICK_SUITES = 20


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"one of: {', '.join(TABLES)}")
    parser.add_argument("--suites", type=int, default=1000, help="suite runs per row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SUITES} suite runs per row")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.tables if name not in TABLES]:
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    suites = QUICK_SUITES if options.quick else options.suites
    quick = [name for name in TABLES if name not in SLOW]
    for name in options.tables or (quick if options.quick else TABLES):
        began_s = perf_counter()
        for line in TABLES[name](suites, np.random.default_rng(options.seed)):
            print(line, flush=True)
        print(f"\n{name}: {perf_counter() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
