"""Does a young baseline grow, and does a creeping regression get in that way? Prints Markdown tables.

    python scripts/simulate_baseline_growth.py --histories 200

A history is a series of sessions for one metric of one test. A session has three runs; an undecided comparison measures
five or eight. Then the package's own `decide` and update plan follow.
The other metrics of the suite differ as this one. The true value gets worse by a fixed step per
session. `below` is the number of stored sessions under which an INCONCLUSIVE comparison is no obstacle; 0 is the rule
"INCONCLUSIVE is always refused".
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

from pytest_llmperf.baseline import plan as planning
from pytest_llmperf.baseline.merging import UpdateTerms
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import Baseline, Provenance, StoredSession
from pytest_llmperf.results.check import BASELINE_COMPARISON, CheckResult
from pytest_llmperf.results.levels import offsets
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.stats.decision import LOOKS, MetricComparison, alpha_at, decide
from pytest_llmperf.stats.priors import (
    SuiteSpread,
    kind_of,
    margins_for,
    prior_for,
    scale_of,
    session_levels,
    worse_when_larger,
)
from pytest_llmperf.stats.shift import shift

SEEDS = 3
SUITE_PRIMARIES = 20
CONDITIONS = {"hardware": "h200"}
#: run and session sd: measured on H200s, and a noisy host.
NOISES = {"tpot_mean": (0.005, 0.003), "ttft_p50": (0.02, 0.027), "output_throughput": (0.02, 0.01)}


@dataclass(frozen=True)
class History:
    """What became of one history.

    Args:
        taken: of each session whether it was stored.
        level: how far the mean of what is stored in the end has left the anchor, as a log ratio.
        verdicts: of each session.
    """

    taken: tuple[bool, ...]
    level: float
    verdicts: tuple[Verdict, ...]


def history(metric: str, step: float, sessions: int, rng: random.Random) -> History:
    """Sessions one after the other, each worse than the one before by `step` (a share)."""
    run_sd, session_sd = NOISES[metric]
    stored: Baseline | None = None
    path, taken, verdicts = "", [], []
    for number in range(sessions):
        worse = 1 if worse_when_larger(find(metric)) else -1
        level = worse * number * log(1 + step) + rng.gauss(0, session_sd)
        values = [100 * exp(level + rng.gauss(0, run_sd)) for _ in range(LOOKS[-1])]
        earlier_sessions = () if stored is None else stored.measurements[""].sessions
        verdict, runs = judged(metric, values, earlier_sessions)
        fresh_runs = tuple(Run.of_values(i % SEEDS, 1, {metric: values[i]}) for i in range(runs))
        fresh = Measurement("", "", CONDITIONS, fresh_runs, baseline="", primaries=(metric,))
        check = CheckResult(f"{BASELINE_COMPARISON} {metric}", verdict, metric)
        test = TestResult("suites/test_x.py::test_y", True, None, (fresh,), (check,))
        origin = Provenance(f"20260101T{number:06d}Z-000000", "2026-01-01", None, False, "host")
        planned = planning.plan([test], {} if stored is None else {path: stored}, UpdateTerms(origin), "all")
        taken.append(bool(planned.files))
        verdicts.append(verdict)
        for path, stored in planned.files.items():  # noqa: B007
            pass
    stored_sessions = stored.measurements[""].sessions if stored else ()
    anchor = next(session for session in stored_sessions if session.anchor)
    return History(tuple(taken), fmean(offsets(stored_sessions, anchor, metric)), tuple(verdicts))


def judged(metric: str, values: Sequence[float], stored: Sequence[StoredSession]) -> tuple[Verdict, int]:
    """The comparison's verdict and the runs that it took."""
    if not stored:
        return Verdict.NO_BASELINE, LOOKS[0]
    metric_, scale = find(metric), scale_of(find(metric))
    larger = worse_when_larger(metric_)
    earlier = [
        [(seed, scale.read(value, worse_when_larger=larger))
         for (seed, _), value in zip(session.runs, session.values(metric), strict=True)]
        for session in stored
    ]
    prior = prior_for(metric_, "h200")
    suite = SuiteSpread.of([(kind_of(metric_), prior, session_levels(earlier))] * SUITE_PRIMARIES)
    verdict, looked_at = Verdict.INCONCLUSIVE, 0
    for look in LOOKS:
        today = [(i % SEEDS, scale.read(value, worse_when_larger=larger)) for i, value in enumerate(values[:look])]
        estimate = shift(today, earlier, suite.learnt(prior, kind_of(metric_)))
        alpha = alpha_at(look, looked_at, primaries=1, suite_primaries=SUITE_PRIMARIES)
        (verdict,) = decide([MetricComparison(estimate, margins_for(metric_, "h200").on(scale))], alpha)
        looked_at = look
        if verdict is not Verdict.INCONCLUSIVE:
            break
    return verdict, looked_at


def table(metric: str, histories: int, seed: int) -> None:
    print(f"\n{metric}, sd of runs and sessions {NOISES[metric]}, tolerated "
          f"{margins_for(find(metric), 'h200').tolerated:.0%}\n")
    print("| step | below | stored of 10 | INCONCLUSIVE | mean level | highest level |\n|---|---|---|---|---|---|")
    rule = planning.YOUNG_BELOW
    for step in (0.0, 0.005, 0.01, 0.02, 0.05):
        for below in (0, 3, rule):
            planning.YOUNG_BELOW = below  # what is compared here is the rule itself
            rng = random.Random(seed)
            histories_ = [history(metric, step, 10, rng) for _ in range(histories)]
            stored = fmean(sum(history.taken) for history in histories_)
            open_ = fmean(verdict is Verdict.INCONCLUSIVE for history in histories_ for verdict in history.verdicts)
            levels = [exp(history.level) - 1 for history in histories_]
            print(f"| {step:.1%} | {below} | {stored:.1f} | {open_:.0%} | {fmean(levels):+.1%} | {max(levels):+.1%} |")
    planning.YOUNG_BELOW = rule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for metric in NOISES:
        table(metric, options.histories, options.seed)


if __name__ == "__main__":
    main()
