"""How often claims are wrong, and how often they are decided, on noise whose truth is known. Prints Markdown tables.

    python scripts/simulate_verdicts.py drift starts suites --suites 10000

A claim is "B's metric is at least L times A's". A side's runs differ by the sd of its starts and by the sd of its runs;
the machine drifts by a share per run, over both sides. Looks come after A B, A B B A and A B B A A B, three runs each.
The interval is the package's own, written once more for arrays: tests/unit/stats/test_simulated_claims.py holds it
against `provisional_ratio`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit
from scipy.stats import beta

from pytest_llmperf.stats.noise_estimate import start_sd_factor

Array = npt.NDArray[np.float64]
OPEN, PASS, FAIL = range(3)
#: Per look: α of each side, and which start of A and of B its three runs are of.
LOOKS = ((0.005, 0, 0), (0.0025, 1, 0), (0.0025, 1, 1))
RUNS = 3
#: Position in time of each look's runs: of A, and of B.
TIMES = (((0, 1, 2), (3, 4, 5)), ((9, 10, 11), (6, 7, 8)), ((12, 13, 14), (15, 16, 17)))


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


def judged(claim: Claimed, claims: int, rng: np.random.Generator, stated: Array | None = None) -> Array:
    """Of so many claims the verdict after each look; `stated` overrides the assumed sd claim by claim."""
    of_starts = {side: levels(claim.starts, (claims, 2), rng, None) for side in "ab"}
    assumed = np.full(claims, claim.stated) if stated is None else stated
    logs, apart, verdicts = np.empty((claims, 0)), np.empty(0), [np.full(claims, OPEN)]
    for (alpha, start_a, start_b), (of_a, of_b) in zip(LOOKS, TIMES, strict=True):
        at_a, at_b = np.array(of_a, dtype=float), np.array(of_b[::-1] if claim.turned else of_b, dtype=float)
        noise = claim.runs * rng.standard_normal((2, claims, RUNS))
        starts = of_starts["b"][:, [start_b]] - of_starts["a"][:, [start_a]]
        estimates = np.log(claim.ratio) + starts + noise[0] - noise[1] + np.log1p(claim.drift) * (at_b - at_a)
        logs, apart = np.concatenate([logs, estimates], axis=1), np.concatenate([apart, at_b - at_a])
        low, high = interval(logs, apart if claim.turned else None, assumed, 1 - alpha, (start_a + 1, start_b + 1))
        new = np.where(low >= np.log(claim.limit), PASS, np.where(high < np.log(claim.limit), FAIL, OPEN))
        verdicts.append(np.where(verdicts[-1] == OPEN, new, verdicts[-1]))
    return np.stack(verdicts[1:])


def interval(
    logs: Array, apart: Array | None, start_sd: Array, confidence: float, starts: tuple[int, int]
) -> tuple[Array, Array]:
    """`provisional_ratio` for arrays: the limits of the log ratio."""
    pairs, centre = logs.shape[1], logs.mean(1)
    from_starts = start_sd**2 * (1 / starts[0] + 1 / starts[1])
    from_pairs = logs.var(1, ddof=1) / pairs
    df = (from_starts + from_pairs) ** 2 * (pairs - 1) / from_pairs**2
    margin = np.where(df > 1e6, ndtri(confidence), stdtrit(np.minimum(df, 1e6), confidence))
    margin = margin * np.sqrt(from_starts + from_pairs)
    steady = centre
    if apart is not None:
        off = apart - apart.mean()
        steady = centre - apart.mean() * (logs @ off) / (off @ off)
    return np.minimum(centre, steady) - margin, np.maximum(centre, steady) + margin


def levels(sd: float, shape: tuple[int, int], rng: np.random.Generator, df: int | None) -> Array:
    """Normal values, or Student's t of so many degrees of freedom, with that sd."""
    if df is None:
        return sd * rng.standard_normal(shape)
    return sd * rng.standard_t(df, shape) * ((df - 2) / df) ** 0.5


def learned_sds(of_sessions: Array, least: float, default: float) -> Array:
    """The start sd that each claim learns from its stored sessions' levels (claims × sessions)."""
    shown = of_sessions.std(1, ddof=1) * start_sd_factor(of_sessions.shape[1] - 1)
    return np.clip(shown, least, default)


def limits(count: int, of: int) -> str:
    """A share with its Clopper–Pearson interval, 95 %."""
    low = beta.ppf(0.025, count, of - count + 1) if count else 0.0
    high = beta.ppf(0.975, count + 1, of - count) if count < of else 1.0
    return f"{100 * count / of:.2f} % ({100 * low:.2f}–{100 * high:.2f})"


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def heading(title: str, *columns: str) -> Iterator[str]:
    yield f"\n{title}\n"
    yield row(*columns)
    yield row(*["---"] * len(columns))


#: Metric → default sd of starts, and the prior's sd of runs and of sessions.
KINDS = {"TPOT": (0.03, 0.006, 0.004), "TTFT": (0.10, 0.02, 0.027), "tail": (0.15, 0.05, 0.05)}


def drift_table(claims: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("A claim at its exact limit, starts that differ by the stated sd", "metric", "drift per run",
                       "seeds of B", "false PASS at the first look", "false FAIL at the first look",
                       "false PASS in the end", "false FAIL in the end")
    for name, (start_sd, run_sd, _) in KINDS.items():
        for drift in (0.0, 0.01, 0.05, -0.05):
            for turned in (False, True):
                verdicts_ = judged(Claimed(1.2, 1.2, start_sd, start_sd, run_sd, drift, turned), claims, rng)
                counts = [int((verdicts_[look] == verdict).sum()) for look in (0, -1) for verdict in (PASS, FAIL)]
                yield row(name, f"{100 * drift:+g} %", "reversed" if turned else "as A's",
                          *(limits(count, claims) for count in counts))


def starts_table(claims: int, rng: np.random.Generator) -> Iterator[str]:
    """A claim of 1.2 about TTFT: decided with truth 1.35, and wrong with truth 1.2."""
    yield from heading("TTFT at least 1.2 ×, start sd learned from stored sessions (0: the default, 10 %)",
                       "sd of starts", "sessions", "stored sessions", "sd used (median)", "PASS at truth 1.35",
                       "FAIL at truth 1.1", "false PASS at truth 1.2", "false FAIL at truth 1.2")
    default, run_sd, least = KINDS["TTFT"]
    for starts in (0.003, 0.01, 0.027, 0.055, 0.1):
        for sessions, df in ((0, None), (3, None), (5, None), (10, None), (10, 3)):
            claim = Claimed(1.35, 1.2, default, starts, run_sd)
            stored = levels(starts, (claims, sessions), rng, df) if sessions else None
            used = None if stored is None else learned_sds(stored, least, default)
            ends = [judged(replace(claim, ratio=ratio), claims, rng, used)[-1] for ratio in (1.35, 1.1, 1.2, 1.2)]
            counts = [int((end == verdict).sum())
                      for end, verdict in zip(ends, (PASS, FAIL, PASS, FAIL), strict=True)]
            yield row(f"{100 * starts:g} %", f"t({df})" if df else "normal", sessions,
                      f"{100 * (default if used is None else float(np.median(used))):.1f} %",
                      *(limits(count, claims) for count in counts))


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


def suites_table(claims: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("Claims of the shipped suites without a drift: PASS at the first look, and in the end", "claim",
                       "claimed", "true", "sd of starts", "first look, seeds as A's", "first look, seeds reversed",
                       "in the end, as A's", "in the end, reversed")
    for name, kind, limit, ratio, run_sd in SHIPPED:
        start_sd = KINDS[kind][0]
        passes = [judged(Claimed(ratio, limit, start_sd, start_sd / 2, run_sd, turned=turned), claims, rng) == PASS
                 for turned in (False, True)]
        yield row(name, f"{limit:g} ×", f"{ratio:g} ×", f"{50 * start_sd:g} %, stated {100 * start_sd:g} %",
                  *(f"{100 * passed[look].mean():.2f} %" for look in (0, -1) for passed in passes))


TABLES = {"drift": drift_table, "starts": starts_table, "suites": suites_table}
