"""Searches for the highest rate: how often a rate above the truth is proven, and one below the truth refuted.

    python scripts/simulate_verdicts.py searches --suites 400

The requests of a run are independent. Their TTFT is proportional to the rate, so the SLO holds up to one exact rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

import numpy as np
from scipy.special import ndtri
from simulate_claims import heading, row

from pytest_llmperf.calibration.page import share
from pytest_llmperf.calibration.slow_servers import measured
from pytest_llmperf.calibration.traffic import RATE_PER_S, TTFT_S, TTFT_SPREAD, steady
from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.session.bisection import SearchResult, TriedRate, quick_beginning, search_rate
from pytest_llmperf.session.capacity import SearchTerms, search_terms
from pytest_llmperf.slo.parse import parse_slo

#: Share of the requests that each metric allows over its limit.
ALLOWED = {"ttft_p99": 0.01, "ttft_p95": 0.05}
TRUTH_PER_S = RATE_PER_S


def searched(terms: SearchTerms, metric: str, requests: int, rng: np.random.Generator) -> tuple[SearchResult, int]:
    """One search, and its runs."""
    slo = parse_slo(f"{metric} <= {1e3 * TTFT_S * exp(-TTFT_SPREAD * ndtri(ALLOWED[metric])):.9f}ms")
    start = TRUTH_PER_S * exp(rng.uniform(-1, 1))
    beginning = quick_beginning(start, terms.precision, 0) if terms.quick else (start,)
    runs = 0

    def judge(rate: float) -> TriedRate:
        nonlocal runs
        sample, verdict = [], Verdict.INCONCLUSIVE
        for confidence in terms.confidence_of_looks:
            for _ in range(terms.runs_per_look):
                traffic = steady(rng, requests, 1)
                traffic.ttft_s[:] *= rate / TRUTH_PER_S
                sample.append(measured(traffic, "ttft"))
            runs += terms.runs_per_look
            result = judge_slo(slo, sample, ["start"] * len(sample), confidence=confidence)
            if (verdict := result.verdict) is not Verdict.INCONCLUSIVE:
                break
        pooled = sorted(value for run in sample for value in run.samples("ttft"))
        return TriedRate(rate, verdict, pooled[int(len(pooled) * (1 - ALLOWED[metric]))] <= slo.limit)

    first, *factor = beginning
    result = search_rate(judge, first, terms.precision, **dict(zip(["first_factor"], factor, strict=False)))
    return result, runs


def searches_table(
    trials: int, rng: np.random.Generator, requests: tuple[int, ...] = (300, 1000)
) -> Iterator[str]:
    """Whole searches from a first rate that is up to 2.7 times too low or too high."""
    yield from heading(f"Searches for the highest rate, {trials} each", "metric", "requests a run", "search",
                       "a rate above the truth is proven", "a rate below the truth is refuted", "runs, mean",
                       "proven rate ÷ truth, median", "found rate ÷ truth, median")
    for metric in ALLOWED:
        for count in requests:
            for quick in (False, True):
                terms = search_terms(f"{metric} <= 1s", quick=quick)
                found = [searched(terms, metric, count, rng) for _ in range(trials)]
                results = [result for result, _ in found]
                yield row(metric, count, "quick" if quick else "full",
                          share(sum((result.proven or 0) > TRUTH_PER_S for result in results), trials),
                          share(sum((result.refuted or 1e9) < TRUTH_PER_S for result in results), trials),
                          f"{np.mean([runs for _, runs in found]):.1f}",
                          *(f"{np.median([value or 0 for value in values]) / TRUTH_PER_S:.3f}" for values in (
                              [result.proven for result in results], [result.highest_within for result in results])))


TABLES = {"searches": searches_table}
