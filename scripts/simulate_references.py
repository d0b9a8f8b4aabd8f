"""A candidate against its reference build: false alarms and power, on noise whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from simulate_baselines import percent
from simulate_claims import heading, row

from pytest_llmperf.calibration.page import share
from pytest_llmperf.judging.reference_comparison import (
    PAIRS_OF_START,
    REFERENCE_LOOKS,
    ReferenceTerms,
    judge_against_reference,
)
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.measurement import Measurement, Run

#: The decode step in a comparison with a reference build, and how many metrics its suite judges.
STEP, SUITE_METRICS = "itl_p50", 15


def reference_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """A candidate against its reference build: one metric of a suite of 15, every look of the rule."""
    yield from heading("Candidate against reference", "start sd", "pair sd", "true change", "FAIL", "INCONCLUSIVE",
                       "PASS", "IMPROVED", "mean pairs")
    for start_sd, pair_sd in ((0.0018, 0.003), (0.0025, 0.005), (0.005, 0.005)):
        for change in (0.0, 0.01, 0.02):
            verdicts_ = [judged_reference(change, start_sd, pair_sd, rng) for _ in range(trials)]
            shares = [share(sum(verdict is wanted for verdict, _ in verdicts_), trials)
                      for wanted in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.IMPROVED)]
            mean_pairs = np.mean([pairs for _, pairs in verdicts_])
            yield row(percent(start_sd), percent(pair_sd), percent(change), *shares, f"{mean_pairs:.1f}")


def judged_reference(
    change: float, start_sd: float, pair_sd: float, rng: np.random.Generator
) -> tuple[Verdict, int]:
    """The verdict on median ITL, and how many pairs it took.

    Args:
        change: true change of the candidate, as a share.
        start_sd: of one server start, on the logarithm.
        pair_sd: of one pair's difference.
    """
    pairs = max(REFERENCE_LOOKS)
    starts = rng.normal(0, start_sd * 2**0.5, -(-pairs // PAIRS_OF_START))
    differences = np.log1p(change) + np.repeat(starts, PAIRS_OF_START)[:pairs] + rng.normal(0, pair_sd, pairs)
    terms, looked_at = ReferenceTerms((STEP,), "h200", SUITE_METRICS, {}), 0
    for look in REFERENCE_LOOKS:
        candidate, reference = (
            simulated_side([5.0 * float(np.exp(factor * difference)) for difference in differences[:look]], side)
            for side, factor in enumerate((1, 0))
        )
        (result,) = judge_against_reference(candidate, reference, terms, looked_at)
        if result.verdict is not Verdict.INCONCLUSIVE:
            break
        looked_at = look
    return result.verdict, look


def simulated_side(values: list[float], side: int) -> Measurement:
    """Runs of one side in turn with the other: A B, B A, A B."""
    runs = tuple(
        replace(Run.of_values(seed, 2 * (seed // PAIRS_OF_START) + side, {STEP: value}),
                block=2 * seed + (side + seed) % 2)
        for seed, value in enumerate(values)
    )
    metrics = tuple(replace(run.metrics, counted_by=CountedBy.CHUNKS) for run in runs)
    return Measurement("simulated", "simulated", {}, runs, metrics)


TABLES = {"reference": reference_table}
