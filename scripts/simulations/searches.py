"""Searches for the highest rate, and tunings of flags, on servers whose highest rate is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import exp, log, sqrt

import numpy as np
from scipy.special import ndtri

from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.session.bisection import SearchResult, TriedRate, quick_beginning, search_rate
from pytest_llmperf.session.capacity import CLEAR, SearchTerms, search_terms
from pytest_llmperf.slo.parse import parse_slo
from simulations.claims import TIMES, Pairs, look_after_look
from simulations.slos import measured
from simulations.tables import Table, heading, percent, row, share, share_of
from simulations.traffic import RATE_PER_S, TTFT_S, TTFT_SPREAD, steady

#: Share of the requests that each metric allows over its limit.
ALLOWED = {"ttft_p99": 0.01, "ttft_p95": 0.05}
TRUTH_PER_S = RATE_PER_S
PRECISION, STATED_START_SD, CANDIDATES = 0.2, 0.05, 3
QUICK_LOOKS = search_terms("ttft_p99 <= 1s", PRECISION, quick=True).confidence_of_looks


def searched(terms: SearchTerms, metric: str, requests: int, rng: np.random.Generator) -> tuple[SearchResult, int]:
    """One search, and its runs. Requests are independent; their TTFT is proportional to the rate."""
    slo = parse_slo(f"{metric} <= {1e3 * TTFT_S * exp(-TTFT_SPREAD * ndtri(ALLOWED[metric])):.9f}ms")
    start = TRUTH_PER_S * exp(rng.uniform(-1, 1))
    runs = 0

    def judge(rate: float) -> TriedRate:
        nonlocal runs
        sample, verdict = [], Verdict.INCONCLUSIVE
        for confidence in terms.confidence_of_looks:
            for _ in range(terms.runs_per_look):
                traffic = steady(rng, requests, 1)
                traffic.ttft_s[:] *= rate / TRUTH_PER_S
                sample.append(measured(traffic, metric))
            runs += terms.runs_per_look
            verdict = judge_slo(slo, sample, ["start"] * len(sample), confidence=confidence).verdict
            if verdict is not Verdict.INCONCLUSIVE:
                break
        pooled = [value for run in sample for value in run.samples("ttft")]
        return TriedRate(rate, verdict, float(np.quantile(pooled, 1 - ALLOWED[metric])) <= slo.limit)

    first, *factor = quick_beginning(start, terms.precision, 0) if terms.quick else (start,)
    result = search_rate(judge, first, terms.precision, **dict(zip(["first_factor"], factor, strict=False)))
    return result, runs


def searches_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """Whole searches from a first rate that is up to 2.7 times too low or too high."""
    yield from heading(f"Searches for the highest rate, {trials} each", "metric", "requests a run", "search",
                       "a rate above the truth is proven", "a rate below the truth is refuted", "runs, mean",
                       "proven rate ÷ truth, median", "found rate ÷ truth, median")
    for metric, requests, quick in product(ALLOWED, (300, 1000), (False, True)):
        terms = search_terms(f"{metric} <= 1s", quick=quick)
        searches = [searched(terms, metric, requests, rng) for _ in range(trials)]
        results = [result for result, _ in searches]
        medians = [np.median([value or 0 for value in values]) / TRUTH_PER_S for values in (
            [result.proven for result in results], [result.highest_within for result in results])]
        yield row(metric, requests, "quick" if quick else "full",
                  share_of((result.proven or 0) > TRUTH_PER_S for result in results),
                  share_of((result.refuted or 1e9) < TRUTH_PER_S for result in results),
                  f"{np.mean([runs for _, runs in searches]):.1f}", *(f"{median:.3f}" for median in medians))


@dataclass
class Server:
    """A setting's server. A start changes its rate by the sd of starts, and a run shows the rate with the sd of runs.

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
        """Send one run at this rate, or a second run if the first is not clear."""
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
    """Whether the claim proves the winner, after one, two or three looks."""
    def pairs(look: int) -> Pairs:
        seeds = range(3 * look, 3 * look + 3)
        if look:  # the server of the second side starts anew
            (default, winner)[look % 2 == 0].start()
        rates = {server: [servers.search(start, seed) or start for seed in order] for server, servers, order in (
            ("default", default, seeds), ("winner", winner, seeds[::-1]))}
        apart = [of_winner - of_default for of_default, of_winner in zip(TIMES[look][0], TIMES[look][1][::-1],
                                                                         strict=True)]
        return rates["default"], rates["winner"][::-1], apart

    return look_after_look(pairs, 1.0, STATED_START_SD)[-1] is Verdict.PASS


def tuned(ratios: list[float], start_sd: float, run_sd: float, rng: np.random.Generator) -> tuple[int | None, int]:
    """The candidate that a tuning proves, by its number, and the number of runs; None if it proves no candidate."""
    limit = 7.0 * exp(rng.uniform(-0.3, 0.3))
    servers = [Server(rng, limit * ratio, start_sd, run_sd) for ratio in (1.0, *ratios, 1.0)]
    default = servers[0].search(6.0, 0) or 6.0
    rates = [server.search(default, 0, to_beat=default) or 0.0 for server in servers[1:-1]]
    again = servers[-1].search(6.0, 0) or 6.0
    best = int(np.argmax(rates))
    winner = None
    if rates[best] > max(default, again):
        servers.append(Server(rng, limit * ratios[best], start_sd, run_sd))
        middle = sqrt(rates[best] * max(default, again))
        winner = best if is_proven(servers[-1], servers[-2], middle) else None
    return winner, sum(server.runs for server in servers)


def tunings_table(tunings: int, rng: np.random.Generator) -> Iterator[str]:
    """Whole tunings of three candidates."""
    yield from heading(f"Tunings of {CANDIDATES} candidates, precision {PRECISION:.0%}, stated sd of starts "
                       f"{STATED_START_SD:.0%}, {tunings} tunings", "true rates of the candidates", "sd of starts",
                       "sd of runs", "proves the best", "proves another", "runs")
    candidates = ([1.0, 1.0, 1.0], [0.9, 1.0, 0.7], [1.3, 1.0, 0.6], [1.5, 1.0, 0.6], [1.7, 1.2, 0.6])
    for ratios, (start_sd, run_sd) in product(candidates, ((0.02, 0.05), (0.05, 0.1), (0.05, 0.2))):
        results = [tuned(ratios, start_sd, run_sd, rng) for _ in range(tunings)]
        best = ratios.index(max(ratios)) if max(ratios) > 1 else None
        yield row(", ".join(f"{ratio:g}" for ratio in ratios), percent(start_sd), percent(run_sd),
                  "–" if best is None else share_of(winner == best for winner, _ in results),
                  share_of(winner not in (None, best) for winner, _ in results),
                  f"{np.mean([runs for _, runs in results]):.0f}")


def proofs_table(tunings: int, rng: np.random.Generator) -> Iterator[str]:
    """The proof alone between two equal servers."""
    yield from heading(f"The proof between two equal servers, precision {PRECISION:.0%}, {tunings} proofs",
                       "rates of successive searches", "sd of starts", "sd of runs", "false proof")
    noises = ((0.02, 0.01), (0.02, 0.05), (0.05, 0.1), (0.05, 0.2))
    for displaced, (start_sd, run_sd) in product((False, True), noises):
        proofs = sum(is_proven(*(Server(rng, limit, start_sd, run_sd, displaced) for _ in "ab"), 6.0)
                     for limit in 7.0 * np.exp(rng.uniform(-0.3, 0.3, tunings)))
        yield row("displaced" if displaced else "equal", percent(start_sd), percent(run_sd), share(proofs, tunings))


TABLES: dict[str, Table] = {"searches": searches_table, "tunings": tunings_table, "tuning_proofs": proofs_table}
