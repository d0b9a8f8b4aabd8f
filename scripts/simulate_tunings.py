"""How often a tuning proves a false winner and finds the true winner. `simulate_verdicts.py tunings` prints the table.

The searches are the package's own, on servers whose highest rate is known. A server start changes the rate of a server
by the sd of starts. A run shows the rate with the sd of runs. A rate is tried once if the run is clear, else twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
from scipy.special import ndtri
from simulate_claims import TIMES, heading, limits, row

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.session.bisection import TriedRate, quick_beginning, search_rate
from pytest_llmperf.session.capacity import CLEAR, search_terms
from pytest_llmperf.session.sequential_claim import ALPHA_OF_LOOKS
from pytest_llmperf.stats.ratio import StartSd, provisional_ratio

PRECISION, STATED = 0.2, StartSd(0.05)
CANDIDATES = 3
QUICK_LOOKS = search_terms("ttft_p99 <= 1s", PRECISION, quick=True).confidence_of_looks


@dataclass
class Server:
    """One start of a server whose highest rate is known.

    Args:
        rng: of the starts and runs.
        limit: highest rate of the setting in requests/s.
        start_sd, run_sd: sd of starts, and of the rate that a run shows, on a log scale.
        displaced: whether the rates of its searches are displaced against each other.
        runs: number of runs so far.
    """

    rng: np.random.Generator
    limit: float
    start_sd: float
    run_sd: float
    displaced: bool = True
    runs: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new server start."""
        self.present_limit = self.limit * exp(self.start_sd * self.rng.standard_normal())

    def judge(self, rate: float) -> TriedRate:
        """Send one run or two at this rate."""
        distances: list[float] = []
        for _ in QUICK_LOOKS:
            distances.append(log(self.present_limit / rate) + self.run_sd * self.rng.standard_normal())
            self.runs += 1
            z = abs(float(np.mean(distances))) * sqrt(len(distances)) / self.run_sd
            if z > ndtri(CLEAR):
                break
        within = float(np.mean(distances)) >= 0
        proven = z > ndtri(QUICK_LOOKS[0])
        verdict = (Verdict.PASS if within else Verdict.FAIL) if proven else Verdict.INCONCLUSIVE
        return TriedRate(rate, verdict, within)

    def search(self, start: float, seed: int, to_beat: float | None = None) -> float | None:
        """The highest rate that a search finds; None for a server that does not serve the rate to beat."""
        factor = 2.0
        if to_beat is None:
            start, factor = quick_beginning(start, PRECISION, seed if self.displaced else 0)
        return search_rate(self.judge, start, PRECISION, first_factor=factor, to_beat=to_beat).highest_within


def is_proven(winner: Server, default: Server, start: float) -> bool:
    """Whether the claim proves the winner, after one, two or three looks as in `judge_sequentially`."""
    rates: dict[str, dict[int, float]] = {"a": {}, "b": {}}
    times: dict[str, dict[int, int]] = {"a": {}, "b": {}}
    servers, starts = {"a": winner, "b": default}, {"a": 1, "b": 1}
    for look, (alpha, order) in enumerate(zip(ALPHA_OF_LOOKS, ("ba", "ab", "ba"), strict=True)):
        for turn, side in enumerate(order):
            if look and turn:  # the server of the second side starts anew
                servers[side].start()
                starts[side] += 1
            seeds = range(3 * look, 3 * look + 3)
            for time, seed in zip(TIMES[look][turn], seeds if side == "a" else reversed(seeds), strict=True):
                rates[side][seed] = servers[side].search(start, seed) or start
                times[side][seed] = time
        pairs = sorted(rates["a"])
        ratio = provisional_ratio(
            [rates["a"][seed] for seed in pairs], [rates["b"][seed] for seed in pairs], STATED,
            numerator_starts=starts["a"], denominator_starts=starts["b"], confidence=1 - alpha,
            apart=[times["a"][seed] - times["b"][seed] for seed in pairs],
        )
        if (verdict := ratio.interval.above(1.0)) is not Verdict.INCONCLUSIVE:
            return verdict is Verdict.PASS
    return False


def tuned(ratios: list[float], start_sd: float, run_sd: float, rng: np.random.Generator) -> tuple[int | None, int]:
    """The candidate that a tuning proves, by its number, and the number of runs; None if it proves no candidate."""
    limit = 7.0 * exp(rng.uniform(-0.3, 0.3))
    servers = [Server(rng, limit * ratio, start_sd, run_sd) for ratio in (1.0, *ratios, 1.0)]
    default = servers[0].search(6.0, 0) or 6.0
    found = [server.search(default, 0, to_beat=default) or 0.0 for server in servers[1:-1]]
    again = servers[-1].search(6.0, 0) or 6.0
    best = int(np.argmax(found))
    winner = None
    if found[best] > max(default, again):
        servers += [Server(rng, limit * ratios[best], start_sd, run_sd), servers.pop()]
        middle = sqrt(found[best] * max(default, again))
        winner = best if is_proven(servers[-2], servers[-1], middle) else None
    return winner, sum(server.runs for server in servers)


def tunings_table(tunings: int, rng: np.random.Generator) -> Iterator[str]:
    """Whole tunings of three candidates."""
    yield from heading(f"Tunings of {CANDIDATES} candidates, precision {PRECISION:.0%}, stated sd of starts "
                       f"{STATED.value:.0%}, {tunings} tunings", "true rates of the candidates", "sd of starts",
                       "sd of runs", "proves the best", "proves another", "runs")
    for ratios in ([1.0, 1.0, 1.0], [0.9, 1.0, 0.7], [1.3, 1.0, 0.6], [1.5, 1.0, 0.6], [1.7, 1.2, 0.6]):
        for start_sd, run_sd in ((0.02, 0.05), (0.05, 0.1), (0.05, 0.2)):
            results = [tuned(ratios, start_sd, run_sd, rng) for _ in range(tunings)]
            best = ratios.index(max(ratios)) if max(ratios) > 1 else None
            right = sum(winner == best for winner, _ in results if winner is not None)
            wrong = sum(winner != best for winner, _ in results if winner is not None)
            yield row(", ".join(f"{ratio:g}" for ratio in ratios), f"{start_sd:.0%}", f"{run_sd:.0%}",
                      "–" if best is None else limits(right, tunings), limits(wrong, tunings),
                      f"{np.mean([runs for _, runs in results]):.0f}")


def proofs_table(tunings: int, rng: np.random.Generator) -> Iterator[str]:
    """The proof alone between two equal servers."""
    yield from heading(f"The proof between two equal servers, precision {PRECISION:.0%}, {tunings} proofs",
                       "rates of successive searches", "sd of starts", "sd of runs", "false proof")
    for displaced in (False, True):
        for start_sd, run_sd in ((0.02, 0.01), (0.02, 0.05), (0.05, 0.1), (0.05, 0.2)):
            proofs = 0
            for limit in 7.0 * np.exp(rng.uniform(-0.3, 0.3, tunings)):
                proofs += is_proven(*(Server(rng, limit, start_sd, run_sd, displaced) for _ in "ab"), 6.0)
            yield row("displaced" if displaced else "equal", f"{start_sd:.0%}", f"{run_sd:.0%}",
                      limits(proofs, tunings))


TABLES = {"tunings": tunings_table, "tuning_proofs": proofs_table}
