"""Does a young baseline grow, and does a gradual drift get in that way?

A history is a series of sessions for one metric of one test. The other metrics of the suite differ as this one. A
session has three runs; an undecided comparison measures five or eight. The package's own decision and update plan
follow. The true value gets worse by a fixed step per session. `below` is the number of stored sessions under which an
INCONCLUSIVE comparison is no obstacle; 0 is the rule "INCONCLUSIVE is always refused".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log
from statistics import fmean

import numpy as np

from pytest_llmperf.baseline import plan as planning
from pytest_llmperf.baseline.merging import UpdateTerms
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import Baseline, Provenance, StoredSession
from pytest_llmperf.results.check import BASELINE_COMPARISON, CheckResult
from pytest_llmperf.results.levels import offsets
from pytest_llmperf.results.measurement import Measurement, Run, TestResult
from pytest_llmperf.stats.decision import LOOKS
from pytest_llmperf.stats.priors import SuiteSpread, kind_of, session_levels, worse_when_larger
from simulations.baselines import INCONCLUSIVE, Compared, Judged, execute, seeded
from simulations.tables import Table, heading, percent, row

SESSIONS, SUITE_PRIMARIES = 10, 20
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


def history(metric: str, step: float, rng: np.random.Generator) -> History:
    """Sessions one after the other, each worse than the one before by `step` (a share)."""
    (run_sd, session_sd), worse = NOISES[metric], 1 if worse_when_larger(find(metric)) else -1
    files: dict[str, Baseline] = {}
    taken, verdicts = list[bool](), list[Verdict]()
    stored: Sequence[StoredSession] = ()
    for number in range(SESSIONS):
        level = worse * number * log(1 + step) + rng.normal(0, session_sd)
        values = (100 * np.exp(level + rng.normal(0, run_sd, LOOKS[-1]))).tolist()
        verdict, runs = judged(metric, values, stored)
        planned = planning.plan([measured_test(metric, values[:runs], verdict)], files, terms(number), "all")
        files = files | dict(planned.files)
        stored = next(iter(files.values())).measurements[""].sessions
        taken.append(bool(planned.files))
        verdicts.append(verdict)
    anchor = next(session for session in stored if session.anchor)
    return History(tuple(taken), fmean(offsets(stored, anchor, metric)), tuple(verdicts))


def measured_test(metric: str, values: Sequence[float], verdict: Verdict) -> TestResult:
    runs = tuple(Run.of_values(seed, 1, {metric: value}) for seed, value in seeded(values))
    fresh = Measurement("", "", {"hardware": "h200"}, runs, baseline="", primaries=(metric,))
    check = CheckResult(f"{BASELINE_COMPARISON} {metric}", verdict, metric)
    return TestResult("suites/test_x.py::test_y", True, None, (fresh,), (check,))


def terms(number: int) -> UpdateTerms:
    return UpdateTerms(Provenance(f"20260101T{number:06d}Z-000000", "2026-01-01", None, False, "host"))


def judged(name: str, values: Sequence[float], stored: Sequence[StoredSession]) -> tuple[Verdict, int]:
    """The comparison's verdict and the runs that it took."""
    if not stored:
        return Verdict.NO_BASELINE, LOOKS[0]
    sign = 1 if worse_when_larger(find(name)) else -1
    earlier = [[(seed, sign * log(value or 0)) for (seed, _), value in zip(session.runs, session.values(name),
                                                                           strict=True)] for session in stored]
    metric, kind = Judged(name), kind_of(find(name))
    suite = SuiteSpread.of([(kind, metric.prior, session_levels(earlier))] * SUITE_PRIMARIES)
    today = seeded([sign * log(value) for value in values])
    (verdict,), runs = execute([Compared(today, earlier, suite.learnt(metric.prior, kind), metric.margins)],
                               SUITE_PRIMARIES)
    return verdict, runs


def growth_table(histories: int, rng: np.random.Generator) -> Iterator[str]:
    yield from heading(f"{histories} histories of {SESSIONS} sessions", "metric", "step", "below",
                       f"stored of {SESSIONS}", "INCONCLUSIVE", "mean level", "highest level")
    rule = planning.YOUNG_BELOW
    for metric, step, below in product(NOISES, (0.0, 0.005, 0.01, 0.02, 0.05), (0, 3, rule)):
        planning.YOUNG_BELOW = below  # what is compared here is the rule itself
        ends = [history(metric, step, rng) for _ in range(histories)]
        levels = [exp(end.level) - 1 for end in ends]
        yield row(metric, percent(step), below, f"{fmean(sum(end.taken) for end in ends):.1f}",
                  percent(fmean(verdict is INCONCLUSIVE for end in ends for verdict in end.verdicts)),
                  f"{fmean(levels):+.1%}", f"{max(levels):+.1%}")
    planning.YOUNG_BELOW = rule


TABLES: dict[str, Table] = {"growth": growth_table}
