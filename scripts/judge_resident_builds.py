#!/usr/bin/env python3
"""How often does --reference find a planted kernel, on stored runs of servers that were resident together?

    python scripts/judge_resident_builds.py --planted-us 0,0,0,107,107,53.5 \\
        docs/measured/h200/resident/x-six-servers-*.json

Each file holds one measurement a server; --planted-us names the servers in the order of their ports. All servers ran in
turn on equal seeds. The runs of all files are taken as one series. Each pair of servers, one of them plain as the
reference, is judged by the rule of --reference: 3 pairs of runs, then 5, then 8 where the comparison is still open. The
next comparison begins with the next pair of runs. Endpoints count tokens only by their usage; here the count of each
chunk is taken as verified.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import mean, median

from pytest_llmperf.judging.reference_comparison import (
    PAIRS_OF_START,
    REFERENCE_LOOKS,
    ReferenceTerms,
    judge_against_reference,
)
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.reader import read_test
from pytest_llmperf.stats.binomial import share_interval

SUITE_PRIMARIES = 15


def resident_servers(paths: Sequence[Path]) -> list[Measurement]:
    """One measurement per server: the runs of all files, numbered as one series of turns."""
    tests = [sorted(read_test(path).measurements, key=lambda each: each.engine) for path in paths]
    servers = len(tests[0])
    return [_joined([test[server] for test in tests], server, servers) for server in range(servers)]


def _joined(parts: Sequence[Measurement], server: int, servers: int) -> Measurement:
    """The parts as one series. The order of the servers was reversed in every second turn; `block` states it."""
    turns = [turn for part in parts for turn in range(len(part.runs))]
    runs = [run for part in parts for run in part.runs]
    metrics = [replace(each, counted_by=CountedBy.CHUNKS) for part in parts for each in part.metrics]
    places = [server if turn % 2 == 0 else servers - 1 - server for turn in turns]
    numbered = [replace(run, seed=number, block=1 + number * servers + place)
                for number, (run, place) in enumerate(zip(runs, places, strict=True))]
    return replace(parts[0], runs=tuple(numbered), metrics=tuple(metrics))


def _part(measurement: Measurement, first: int, count: int) -> Measurement:
    window = slice(first, first + count)
    return replace(measurement, runs=measurement.runs[window], metrics=measurement.metrics[window])


def comparisons(candidate: Measurement, reference: Measurement, metric: str) -> Iterator[tuple[CheckResult, int]]:
    """Each result with the number of its pairs. The last comparison may end before its last look."""
    terms = ReferenceTerms((metric,), candidate.conditions["hardware"], SUITE_PRIMARIES, {})
    looks = [look for look in REFERENCE_LOOKS if look <= PAIRS_OF_START]
    first, runs = 0, len(candidate.runs)
    while first + looks[0] <= runs:
        looked_at = 0
        for look in (each for each in looks if first + each <= runs):
            a, b = (_part(side, first, look) for side in (candidate, reference))
            (result,) = judge_against_reference(a, b, terms, looked_at)
            looked_at = look
            if result.verdict is not Verdict.INCONCLUSIVE:
                break
        yield result, looked_at
        first += looked_at


def row(name: str, results: Sequence[tuple[CheckResult, int]]) -> str:
    """A line of the table; the interval of the share of FAIL is Clopper–Pearson's at 95 %."""
    counts = Counter(result.verdict for result, _ in results)
    estimates = [100 * result.estimate for result, _ in results if result.estimate is not None]
    fails = share_interval(counts[Verdict.FAIL], len(results), 0.95)
    detectable = [100 * float(value) for result, _ in results if result.verdict is Verdict.PASS
                  and isinstance(value := result.facts.get("smallest_detectable"), float)]
    return (f"{name:22} {len(results):3} comparisons, "
            + ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
            + f"; FAIL in {100 * fails.low:.0f} … {100 * fails.high:.0f} %; "
            f"pairs {mean(pairs for _, pairs in results):.1f}; "
            f"change {mean(estimates):+.2f} % ({min(estimates):+.2f} … {max(estimates):+.2f})"
            + (f"; smallest detectable change of a PASS {median(detectable):.1f} %" if detectable else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="run files of tests, in the order in which they were made")
    parser.add_argument("--planted-us", required=True, type=lambda text: [float(each) for each in text.split(",")])
    options = parser.parse_args()
    servers = resident_servers(options.files)
    planted_us: list[float] = options.planted_us
    if len(planted_us) != len(servers):
        parser.error(f"--planted-us names {len(planted_us)} servers, the files hold {len(servers)}")
    for metric in ("itl_p50", "tpot_mean"):
        print(metric)
        for planted in sorted(set(planted_us)):
            pairs = [(a, b) for a, b in permutations(range(len(servers)), 2)
                     if planted_us[a] == planted and planted_us[b] == 0]
            results = {(a, b): list(comparisons(servers[a], servers[b], metric)) for a, b in pairs}
            for (a, b), of_pair in results.items():
                print(row(f"server {a + 1} ÷ server {b + 1}", of_pair))
            print(row(f"all of {planted} µs", [each for of_pair in results.values() for each in of_pair]))


if __name__ == "__main__":
    main()
