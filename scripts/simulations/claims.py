"""Claims: how often they are wrong, and how often they are decided.

A claim is "B's metric is at least L times A's". A side's runs differ by the sd of its starts and by the sd of its runs;
the machine drifts by a share per run, over both sides. Looks come after A B, A B B A and A B B A A B, three runs each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log1p

import numpy as np
import numpy.typing as npt

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.session.sequential_claim import ALPHA_OF_LOOKS
from pytest_llmperf.stats.noise_estimate import start_sd_factor
from pytest_llmperf.stats.ratio import StartSd, provisional_ratio
from simulations.baselines import standard
from simulations.tables import Table, heading, percent, row, share_of

Array = npt.NDArray[np.float64]
PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
RUNS = 3
#: Starts of A and of B at each look.
STARTS = ((1, 1), (2, 1), (2, 2))
#: Position in time of each look's runs: of A, and of B.
TIMES = (((0, 1, 2), (3, 4, 5)), ((9, 10, 11), (6, 7, 8)), ((12, 13, 14), (15, 16, 17)))
#: A's and B's values at a look, in the order of their seeds, and the distances in time from A's runs to B's.
Pairs = tuple[Sequence[float], Sequence[float], Sequence[int]]


@dataclass(frozen=True)
class Claimed:
    """A claim and its truth.

    Args:
        ratio, limit: true, claimed.
        stated: start-to-start sd that the judge assumes.
        starts, runs: true sd of starts, and of a side's runs.
        drift: of the machine, per run.
        turned: B sends the seeds of each look in reverse order, and the interval allows for the drift that pairs show.
    """

    ratio: float
    limit: float
    stated: float
    starts: float
    runs: float
    drift: float = 0.0
    turned: bool = True

    def verdicts(self, rng: np.random.Generator) -> list[Verdict]:
        """The verdict of one claim after each look."""
        starts = self.starts * rng.standard_normal((2, 2))

        def pairs(look: int) -> Pairs:
            at_a, at_b = TIMES[look][0], TIMES[look][1][::-1 if self.turned else 1]
            noise = self.runs * rng.standard_normal((2, RUNS))
            a, b = ([exp(starts[side, number - 1] + value + log1p(self.drift) * at) for value, at in
                     zip(noise[side], times, strict=True)] for side, (number, times) in
                    enumerate(zip(STARTS[look], (at_a, at_b), strict=True)))
            apart = [after - before for before, after in zip(at_a, at_b, strict=True)]
            return a, [self.ratio * value for value in b], apart if self.turned else ()

        return look_after_look(pairs, self.limit, self.stated)


def look_after_look(pairs: Callable[[int], Pairs], limit: float, stated: float) -> list[Verdict]:
    """The verdict on B ÷ A after each look, as `judge_sequentially` comes to it; a decision ends the claim.

    Args:
        pairs: look → what it measures; called once for each look.
        stated: start-to-start sd that the judge assumes.
    """
    a, b, apart, verdicts = list[float](), list[float](), list[int](), list[Verdict]()
    for look, (alpha, (starts_a, starts_b)) in enumerate(zip(ALPHA_OF_LOOKS, STARTS, strict=True)):
        for pooled, measured in zip((a, b, apart), pairs(look), strict=True):
            pooled.extend(measured)
        ratio = provisional_ratio(b, a, StartSd(stated), numerator_starts=starts_b, denominator_starts=starts_a,
                                  confidence=1 - alpha, apart=apart)
        verdicts.append(ratio.interval.above(limit))
        if verdicts[-1] is not INCONCLUSIVE:
            break
    return verdicts + verdicts[-1:] * (len(STARTS) - len(verdicts))


def learnt_sds(of_sessions: Array, least: float, default: float) -> Array:
    """The start sd that each claim learns from its stored sessions' levels (claims × sessions)."""
    shown = of_sessions.std(1, ddof=1) * start_sd_factor(of_sessions.shape[1] - 1)
    return np.clip(shown, least, default)


#: Metric → default sd of starts, and the prior's sd of runs and of sessions.
KINDS = {"TPOT": (0.03, 0.006, 0.004), "TTFT": (0.10, 0.02, 0.027), "tail": (0.15, 0.05, 0.05)}
#: Claims of the shipped suites on an emulated H200: metric kind, ratio as claimed and as found by
#: `pytest suites --emulate h200`, sd of a side's runs (from the sd of pairs).
SHIPPED = (
    ("prefix caching, median TTFT", "TTFT", 3.0, 5.99, 0.02), ("radix cache, median TTFT", "TTFT", 3.0, 5.28, 0.03),
    ("LMCache, median TTFT", "TTFT", 2.0, 3.11, 0.05), ("TP 4 against TP 1, median TTFT", "TTFT", 1.3, 2.33, 0.005),
    ("KV offload, median TTFT", "TTFT", 1.3, 2.07, 0.01), ("small chunks, p99 ITL", "tail", 2.0, 6.4, 0.01),
    ("large budget, median TTFT", "TTFT", 1.3, 3.49, 0.20), ("TP 2 against TP 1, median ITL", "TPOT", 1.2, 1.36, 0.005),
    ("TP 4 against TP 2, TPOT", "TPOT", 1.05, 1.37, 0.005), ("n-gram drafts, TPOT", "TPOT", 1.2, 2.51, 0.005),
    ("FP8 weights, throughput", "TPOT", 1.15, 1.34, 0.005), ("experts, throughput", "TPOT", 1.05, 1.23, 0.005),
    ("synthetic acceptance, TPOT", "TPOT", 1.12, 1.39, 0.005), ("CUDA graphs, TPOT", "TPOT", 1.2, 4.01, 0.005),
)


def drift_table(claims: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("A claim at its exact limit, starts that differ by the stated sd", "metric", "drift per run",
                       "seeds of B", "false PASS at the first look", "false FAIL at the first look",
                       "false PASS in the end", "false FAIL in the end")
    for name, drift, turned in product(KINDS, (0.0, 0.01, 0.05, -0.05), (False, True)):
        start_sd, run_sd, _ = KINDS[name]
        claim = Claimed(1.2, 1.2, start_sd, start_sd, run_sd, drift, turned)
        verdicts = [claim.verdicts(rng) for _ in range(claims)]
        yield row(name, f"{100 * drift:+g} %", "reversed" if turned else "as A's",
                  *(share_of(each[look] is verdict for each in verdicts)
                    for look, verdict in product((0, -1), (PASS, FAIL))))


def starts_table(claims: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("TTFT at least 1.2 ×, start sd learned from stored sessions (0: the default, 10 %)",
                       "sd of starts", "sessions", "stored sessions", "sd used (median)", "PASS at truth 1.35",
                       "FAIL at truth 1.1", "false PASS at truth 1.2", "false FAIL at truth 1.2")
    default, run_sd, least = KINDS["TTFT"]
    stored_sessions = ((0, None), (3, None), (5, None), (10, None), (10, 3))
    for starts, (sessions, df) in product((0.003, 0.01, 0.027, 0.055, 0.1), stored_sessions):
        levels = starts * standard(df, (claims, sessions), rng)
        stated = learnt_sds(levels, least, default) if sessions else np.full(claims, default)
        claim = Claimed(1.35, 1.2, default, starts, run_sd)
        yield row(percent(starts), f"t({df})" if df else "normal", sessions, percent(float(np.median(stated))),
                  *(share_of(replace(claim, ratio=ratio, stated=sd).verdicts(rng)[-1] is verdict for sd in stated)
                    for ratio, verdict in ((1.35, PASS), (1.1, FAIL), (1.2, PASS), (1.2, FAIL))))


def suites_table(claims: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("Claims of the shipped suites without a drift: PASS at the first look, and in the end", "claim",
                       "claimed", "true", "sd of starts", "first look, seeds as A's", "first look, seeds reversed",
                       "in the end, as A's", "in the end, reversed")
    for name, kind, limit, ratio, run_sd in SHIPPED:
        start_sd = KINDS[kind][0]
        claim = Claimed(ratio, limit, start_sd, start_sd / 2, run_sd)
        orders = [[replace(claim, turned=turned).verdicts(rng) for _ in range(claims)] for turned in (False, True)]
        yield row(name, f"{limit:g} ×", f"{ratio:g} ×", f"{50 * start_sd:g} %, stated {100 * start_sd:g} %",
                  *(percent(float(np.mean([each[look] is PASS for each in verdicts])))
                    for look in (0, -1) for verdicts in orders))


TABLES: dict[str, Table] = {"drift": drift_table, "starts": starts_table, "suites": suites_table}
