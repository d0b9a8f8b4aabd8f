"""SLOs on servers whose requests depend on each other, and SLOs that may end a measurement early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from simulate_claims import heading, row

from pytest_llmperf.calibration.page import share
from pytest_llmperf.calibration.slow_servers import CASES, RUNS, SlowServerCase, simulated_run, truth, verdicts
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.claim_judge import judge_slos
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import worst
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.parse import parse_slo

#: How many times the limit the truth is, where a measurement may end early.
UNTIL_TIMES = (1.0, 0.8, 0.5, 1.5)


def slow_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """SLOs on servers whose requests are not independent, at the exact limit and where the truth is 10 % beyond it."""
    seed = int(rng.integers(2**31))
    for runs in (3, 1):
        yield from heading(f"SLOs on servers that change slowly, {runs} run(s), {trials} trials", "server", "metric",
                           "requests a run", "run ÷ period", "false PASS at the limit", "false PASS 10 % beyond",
                           "false FAIL at the limit", "PASS where the limit is twice the truth")
        for case in CASES:
            for requests in case.requests:
                exact, beyond, far = verdicts(case, requests, runs, trials, seed=seed)
                counts = (exact["PASS"], beyond["PASS"], exact["FAIL"], far["PASS"])
                yield row(case.server, case.metric, requests, f"{case.periods(requests):.3g}",
                          *(share(count, trials) for count in counts))


def until_table(trials: int, rng: np.random.Generator) -> Iterator[str]:
    """Compare `perf.measure(until=…)` with a fixed measurement of three runs: false verdicts, decisions and runs."""
    yield from heading(f"SLOs that may end a measurement after one run, {trials} trials", "server", "metric",
                       "requests a run", "truth ÷ limit", "PASS: until / three runs", "FAIL: until / three runs",
                       "runs: until, mean")
    for case in (case for case in CASES if case.server == "independent" and case.metric != "itl_p99"):
        exact = truth(case.process, case.metric, rng)
        for requests, times in ((requests, times) for requests in case.requests for times in UNTIL_TIMES):
            slo = parse_slo(f"{case.metric} <= {exact / times:.9f}ms")
            verdicts_ = [judged_until(case, requests, slo, rng) for _ in range(trials)]
            shares = [" / ".join(share(sum(trial[place] == verdict for trial in verdicts_), trials) for place in (0, 1))
                      for verdict in (Verdict.PASS, Verdict.FAIL)]
            mean_runs = np.mean([count for *_, count in verdicts_])
            yield row(case.server, case.metric, requests, f"{times:g}", *shares, f"{mean_runs:.2f}")


def judged_until(
    case: SlowServerCase, requests: int, slo: Slo, rng: np.random.Generator
) -> tuple[Verdict, Verdict, int]:
    """The verdict of a measurement that may end after each run, of three runs at once, and the runs of the first."""
    metrics = [simulated_run(case, requests, rng) for _ in range(RUNS)]
    runs = [Run(seed, 1, run.records, cache_reset=True) for seed, run in enumerate(metrics)]

    def judged(count: int, looks: int) -> Verdict:
        measurement = Measurement("simulated", case.server, {}, tuple(runs[:count]), tuple(metrics[:count]))
        return worst(judge_slos(replace(measurement, looks=looks), [slo], Settings()))

    for count in range(1, RUNS + 1):
        if (verdict := judged(count, RUNS)) is not Verdict.INCONCLUSIVE:
            break
    return verdict, judged(RUNS, 1), count


TABLES = {"slow": slow_table, "until": until_table}
