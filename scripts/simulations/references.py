"""A candidate against its reference build: false alarms and power, on noise whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from pytest_llmperf.engines.spec import vllm
from pytest_llmperf.judging.change import MADE_IN_TURN, TOOL, judge_sessions
from pytest_llmperf.judging.reference_comparison import (
    PAIRS_OF_START,
    REFERENCE_LOOKS,
    ReferenceTerms,
    judge_against_reference,
)
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.model.engine import REFERENCE, UNKNOWN_HARDWARE
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.session.gpu_layout import PAIRS_OF_ROUND, GpuLayout
from pytest_llmperf.stats.decision import SUITE_ALPHA
from simulations.tables import Table, heading, percent, row, share_of

#: The decode step in a comparison with a reference build, and how many metrics its suite judges.
STEP, SUITE_METRICS = "itl_p50", 15
NOISES = ((0.0018, 0.003), (0.0036, 0.003), (0.005, 0.005))
#: Of files: whether the sides were measured in turn, sd of runs, sd of sessions (one after the other) or of starts.
FILE_NOISES = ((False, 0.004, 0.006), (False, 0.004, 0.012), (False, 0.02, 0.03), (False, 0.1, 0.15),
               (True, 0.004, 0.0018), (True, 0.02, 0.0018), (True, 0.004, 0.005))
#: Both builds on each of four GPUs, and two GPU sets that the builds exchange; seconds of a round. Servers are measured
#: from 150 s after their start, a server of two GPUs starts in 170 s, a pair in turn takes 22 s, and a stop 10 s.
LAYOUTS = ((GpuLayout((0, 1, 2, 3)), 226.0), (GpuLayout((0, 1), exchanged=True), 426.0))
#: Noise of servers beside each other on one GPU, at once and twice; sd between the GPUs of a host.
GPU_NOISES, GPU_SD = ((0.0018, 0.003), (0.0036, 0.006)), 0.05
CANDIDATE = vllm("llama-3.1-8b")
WANTED = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.IMPROVED)


def reference_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """One metric of a suite of 15, every look of the rule."""
    yield from heading("Candidate against reference", "start sd", "pair sd", "true change", "FAIL", "INCONCLUSIVE",
                       "PASS", "IMPROVED", "mean pairs")
    for (start_sd, pair_sd), change in product(NOISES, (0.0, 0.01, 0.02)):
        ends = [judged_reference(change, start_sd, pair_sd, rng) for _ in range(trials)]
        yield row(percent(start_sd), percent(pair_sd), percent(change),
                  *(share_of(verdict is wanted for verdict, _ in ends) for wanted in WANTED),
                  f"{np.mean([pairs for _, pairs in ends]):.1f}")


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
        candidate, reference = side(5 * np.exp(differences[:look]), 1), side(np.full(look, 5.0), 0)
        (result,) = judge_against_reference(candidate, reference, terms, looked_at)
        if result.verdict is not Verdict.INCONCLUSIVE:
            break
        looked_at = look
    return result.verdict, look


def side(values: Sequence[float], number: int) -> Measurement:
    """Runs of one side in turn with the other: A B, B A, A B."""
    runs = tuple(
        replace(Run.of_values(seed, 2 * (seed // PAIRS_OF_START) + number, {STEP: float(value)}),
                block=2 * seed + (number + seed) % 2)
        for seed, value in enumerate(values)
    )
    return counted(runs)


def files_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """One of three metrics in result files of another load generator, one side measured after the other or in turn."""
    yield from heading("Files of other load generators", "runs a side", "order", "sd of runs",
                       "sd of sessions or starts", "true change", *(verdict.value for verdict in WANTED))
    for runs, (in_turn, run_sd, level_sd), change in product((3, 5), FILE_NOISES, (0.0, 0.05, 0.10)):
        ends = []
        for _ in range(trials):
            sides = [Measurement("simulated", "simulated", {"hardware": UNKNOWN_HARDWARE, TOOL: "simulated",
                                                            **({MADE_IN_TURN: "yes"} if in_turn else {})},
                                 tuple(Run.of_values(0, 0, {STEP: float(value)}) for value in 5 * (1 + slower) * np.exp(
                                     rng.normal(0, level_sd) + rng.normal(0, run_sd, runs))))
                     for slower in (0.0, change)]
            ends.append(judge_sessions(find(STEP), sides[0], sides[1], SUITE_ALPHA / 3).verdict)
        yield row(runs, "in turn" if in_turn else "one after the other", percent(run_sd), percent(level_sd),
                  percent(change), *(share_of(verdict is wanted for verdict in ends) for wanted in WANTED))


def gpus_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """One metric of a suite of 15 on several GPUs of a host, every round of the rule."""
    yield from heading("Slower builds on several GPUs", "GPU sets", "start sd", "pair sd", "true change",
                       *(f"FAIL by round {number}" for number in (1, 2, 3)), "PASS", "mean time")
    for (layout, round_s), noise, change in product(LAYOUTS, GPU_NOISES, (0.01, 0.03)):
        ends = [judged_on_gpus(layout, change, *noise, rng) for _ in range(trials)]
        yield row(sets_text(layout), *map(percent, noise), percent(change),
                  *(share_of(verdict is Verdict.FAIL and rounds <= last for verdict, rounds in ends)
                    for last in (1, 2, 3)),
                  share_of(verdict is Verdict.PASS for verdict, _ in ends),
                  f"{round_s * np.mean([rounds for _, rounds in ends]) / 60:.1f} min")
    yield from heading("Suites of 15 equal metrics on several GPUs", "GPU sets", "start sd", "pair sd",
                       "metrics with FAIL", "metrics with PASS", "suites with FAIL")
    for (layout, _), noise in product(LAYOUTS, GPU_NOISES):
        suites = [[judged_on_gpus(layout, 0.0, *noise, rng)[0] for _ in range(SUITE_METRICS)]
                  for _ in range(trials // 10)]
        yield row(sets_text(layout), *map(percent, noise),
                  *(share_of(verdict is wanted for suite in suites for verdict in suite)
                    for wanted in (Verdict.FAIL, Verdict.PASS)),
                  share_of(Verdict.FAIL in suite for suite in suites))


def sets_text(layout: GpuLayout) -> str:
    return f"{len(layout.sets)}, {'exchanged' if layout.exchanged else 'both builds on each'}"


def judged_on_gpus(
    layout: GpuLayout, change: float, start_sd: float, pair_sd: float, rng: np.random.Generator
) -> tuple[Verdict, int]:
    """The verdict on median ITL, and how many rounds it took.

    Args:
        layout: the GPU sets, whose speeds differ by the sd `GPU_SD`.
        change, start_sd, pair_sd: as in `judged_reference`.
    """
    of_sets = rng.normal(0, GPU_SD, len(layout.sets))
    placements = layout.placements(CANDIDATE, CANDIDATE.with_installation(REFERENCE))
    sides, set_of = (list[Run](), list[Run]()), dict[int, int]()
    terms, looked_at = ReferenceTerms((STEP,), "h200", SUITE_METRICS, {}, layout.looks, set_of), 0
    for look in layout.looks:
        for pair in (pair for placement in placements for pair in placement):
            first_seed = len(sides[0])
            for runs, spec, slower in zip(sides, pair, (np.log1p(change), 0.0), strict=True):
                start_id = len(set_of)
                set_of[start_id] = spec.gpu_set
                level = of_sets[spec.gpu_set] + rng.normal(0, start_sd) + slower
                runs += [Run.of_values(first_seed + number, start_id, {STEP: float(5 * np.exp(level + noise))})
                         for number, noise in enumerate(rng.normal(0, pair_sd / 2**0.5, PAIRS_OF_ROUND))]
        placements.reverse()
        (result,) = judge_against_reference(*map(counted, sides), terms, looked_at)
        if result.verdict is not Verdict.INCONCLUSIVE:
            break
        looked_at = look
    return result.verdict, look // min(layout.looks)


def counted(runs: Sequence[Run]) -> Measurement:
    metrics = tuple(replace(run.metrics, counted_by=CountedBy.CHUNKS) for run in runs)
    return Measurement("simulated", "simulated", {}, tuple(runs), metrics)


TABLES: dict[str, Table] = {"reference": reference_table, "files": files_table, "gpus": gpus_table}
