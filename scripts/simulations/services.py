"""A claim between two running services whose replicas differ: how often it is wrong, and how often it is decided.

Canary and stable service have some replicas each. The replicas differ by the sd of a server start. A run's mean TPOT is
the mean over the replicas. Each replica counts its own mean TPOT, as its metrics page or a header of its answers shows.
The claim is "tpot_mean(a) / tpot_mean(b) <= 1.05". Three pairs make a look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log1p

import numpy as np
import numpy.typing as npt

from pytest_llmperf.judging.ratios import start_sd_prior
from pytest_llmperf.judging.replica_spread import Replicas
from pytest_llmperf.judging.requirements import judge_claim
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.run import CountedBy
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.session.sequential_claim import ALPHA_OF_LOOKS, MOST_STARTS_TOGETHER, in_vain
from pytest_llmperf.slo.parse import parse_claim
from pytest_llmperf.stats.interval import share_interval
from pytest_llmperf.stats.noise_estimate import start_sd_factor
from pytest_llmperf.stats.priors import prior_for
from pytest_llmperf.stats.ratio import StartSd
from simulations.baselines import standard
from simulations.tables import CONFIDENCE, Table, heading, percent, row

Array = npt.NDArray[np.float64]
METRIC, KIND, PAIRS, TPOT_S = "tpot_mean", "h200", 3, 0.01
CLAIM = parse_claim("tpot_mean(a) / tpot_mean(b) <= 1.05")
#: sd of a service's runs, and requests of each replica in a run.
RUN_SD, REQUESTS = 0.006, 50.0


@dataclass(frozen=True)
class Rollout:
    """A canary and a stable service.

    Args:
        slower: by how much the canary is slower in truth, as a share.
        sd: of the replicas.
        replicas: number of replicas of canary and stable service.
        sessions: stored sessions of the stable service, each on other starts.
        df: degrees of freedom of the distribution of the replicas; None for a normal one.
    """

    slower: float
    sd: float
    replicas: tuple[int, int]
    sessions: int = 0
    df: int | None = None

    def verdict(self, rng: np.random.Generator) -> Verdict:
        """The last verdict of one claim, by the rule of `judge_sequentially`."""
        levels = [self.sd * standard(self.df, (1, count), rng)[0] for count in self.replicas]
        levels[0] += log1p(self.slower)
        stored, runs = self._stored(rng), ((), ())
        for look, alpha in enumerate(ALPHA_OF_LOOKS):
            seeds = range(PAIRS * look, PAIRS * (look + 1))
            runs = tuple((*made, *(self._run(seed, side, levels[side], rng) for seed in seeds))
                         for side, made in enumerate(runs))
            a, b = (Measurement("service", "load", {}, each, tuple(run.metrics for run in each)).by_seed()
                    for each in runs)
            seen = Replicas(a, b)
            result = judge_claim(CLAIM, *(tuple(replace(run, counted_by=CountedBy.CHUNKS) for run in side.metrics)
                                          for side in (a, b)), start_sd=seen.start_sd(METRIC, stored), hardware=KIND,
                                 confidence=1 - alpha, restartable=False, replicas=seen)
            if result.verdict is not Verdict.INCONCLUSIVE or in_vain(result, MOST_STARTS_TOGETHER):
                break
        return result.verdict

    def _run(self, seed: int, side: int, levels: Array, rng: np.random.Generator) -> Run:
        """A run of one service: its mean TPOT, and that of each replica."""
        values = levels + RUN_SD * len(levels) ** 0.5 * rng.standard_normal(len(levels))
        counters = {f"{side}-{number}": {"requests_finished": REQUESTS, "tpot_count": REQUESTS,
                                         "tpot_s_sum": REQUESTS * TPOT_S * exp(value)}
                    for number, value in enumerate(values)}
        run = Run.of_values(seed, side, {METRIC: 1e3 * TPOT_S * float(np.exp(values).mean())})
        return replace(run, block=seed, replicas=counters if len(levels) > 1 else {})

    def _stored(self, rng: np.random.Generator) -> StartSd | None:
        """What the stored sessions show, as `judging.start_spread` reads it."""
        if not self.sessions:
            return None
        sd = float(self.sd * standard(self.df, (self.sessions, self.replicas[1]), rng).mean(1).std(ddof=1))
        default, least = start_sd_prior(find(METRIC), KIND), prior_for(find(METRIC), KIND).session_sd
        known = min(default.value, max(least, sd * start_sd_factor(self.sessions - 1)))
        return StartSd(known, "stored", sessions=self.sessions, stored_sd=max(sd, least))


#: True sd of the replicas, their distribution, and the numbers of replicas.
SDS = ((0.003, None), (0.01, None), (0.03, None), (0.05, None), (0.01, 3))
COUNTS = ((1, 1), (2, 2), (4, 4), (1, 4), (1, 10))


def services_table(claims: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading("TPOT of the canary at most 1.05 ×: shares in %, with limits of 95 %", "sd of replicas",
                       "replicas of canary + stable",
                       "stored sessions", "equal: PASS", "equal: FAIL", "+10 %: FAIL", "+10 %: PASS", "+5 %: PASS",
                       "+5 %: FAIL")
    for (sd, df), replicas, sessions in product(SDS, COUNTS, (0, 5)):
        verdicts = {slower: [Rollout(slower, sd, replicas, sessions, df).verdict(rng) for _ in range(claims)]
                    for slower in (0.0, 0.1, 0.05)}
        yield row(percent(sd) + ("" if df is None else f", t({df})"), " + ".join(map(str, replicas)), sessions,
                  *(_share(sum(verdict is wanted for verdict in verdicts[slower]), claims) for slower, wanted in (
                      (0.0, Verdict.PASS), (0.0, Verdict.FAIL), (0.1, Verdict.FAIL), (0.1, Verdict.PASS),
                      (0.05, Verdict.PASS), (0.05, Verdict.FAIL))))


def _share(count: int, claims: int) -> str:
    """"93 (91–95)": per cent, with Clopper–Pearson limits of 95 %."""
    limits = share_interval(count, claims, CONFIDENCE)
    return f"{100 * count / claims:.1f} ({100 * limits.low:.1f}–{100 * limits.high:.1f})"


TABLES: dict[str, Table] = {"services": services_table}
