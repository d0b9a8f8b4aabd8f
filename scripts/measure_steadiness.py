#!/usr/bin/env python3
"""How often "not steady" is said of steady servers, and of others: measurements of three runs on the emulator.

    python scripts/measure_steadiness.py --kind h200 --starts 60 --each 3

Every measurement has seeds of its own. Beside the A/A figures: the power against the series of a fresh TP=2 server
(mean TPOT 5.67, 5.14, 4.70 ms), planted on the same runs; how often MSER-5 calls a single run unsteady, which is why it
is no gate; and, simulated, the rule for runs that are paired with stored ones. `--fault throttle` measures a fault.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from math import log
from pathlib import Path

import numpy as np
from mser import mser
from scipy.stats import beta

from pytest_llmperf import EngineSpec, Perf, closed, poisson, random_tokens, shared_prefix, vllm
from pytest_llmperf.config.emulation import NOISE, Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.steadiness import ALPHA, METRIC, drift_p
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.stats.level import level_change
from pytest_llmperf.stats.priors import Scale, margins_for, prior_for
from pytest_llmperf.stats.shift import shift
from pytest_llmperf.telemetry.hardware import emulated_hardware
from pytest_llmperf.workload import Workload

WARMING_UP = (5.67 / 4.70, 5.14 / 4.70, 1.0)
RATES = {"l4": 1, "a100": 5, "h100": 10, "h200": 10}
RUNS, SEEDS_APART = 3, 1000
PAIRED_NOISE = ((0.003, 0.003), (0.006, 0.004), (0.01, 0.005), (0.02, 0.01), (0.035, 0.02))


def cases(kind: str, seed: int) -> dict[str, tuple[EngineSpec, Workload]]:
    """The shapes of the shipped suites."""
    base = vllm("phi-4-mini" if kind == "l4" else "llama-3.1-8b", max_model_len=16384)
    rate = RATES[kind]
    questions = shared_prefix(prefix=4000, suffix=(32, 96), output=16, groups=3,
                              arrivals=poisson(1 if kind == "l4" else 4), requests=45, seed=seed)
    serving = random_tokens(input=1024, output=128, arrivals=poisson(rate), requests=100, seed=seed)
    lengths = random_tokens(input=(100, 4000), output=(16, 256), arrivals=poisson(rate / 2), requests=100, seed=seed)
    crowd = random_tokens(input=1024, output=64, arrivals=closed(64), requests=128, seed=seed)
    single = random_tokens(input=200, output=128, arrivals=closed(1), requests=12, seed=seed)
    return {
        "open loop, equal lengths": (base, serving), "open loop, lengths 1:40": (base, lengths),
        "shared prefixes": (base, questions),
        "shared prefixes, no cache: overloaded": (base.with_flags(enable_prefix_caching=False), questions),
        "64 at once": (base, crowd), "one at a time": (base, single),
    }


def measured(options: argparse.Namespace, name: str, start: int) -> Iterator[Measurement]:
    """Measurements on one emulated start; with a fault each has a start of its own, since faults may grow."""
    emulation = Emulation(options.kind, faults=tuple(options.fault), noise=options.noise, seed=start)
    with tempfile.TemporaryDirectory() as folder:
        session = PerfSession(Settings(), Path(folder), emulated_hardware(options.kind, 8), lambda _line: None,
                              rng=random.Random(start), emulation=emulation)
        try:
            for number in range(options.each):
                spec, workload = cases(options.kind, SEEDS_APART * (start * options.each + number))[name]
                perf = Perf(begin_execution(session, "steadiness", options.kind))
                yield perf.measure(spec, workload, runs=RUNS, may_preempt=True, fresh=bool(options.fault))
        finally:
            session.close()


def tpots(measurement: Measurement) -> list[list[float]]:
    return [[value for values in metrics.by_request("tpot") or () for value in values or ()]
            for metrics in measurement.metrics]


def called(runs: list[list[float]], kind: str) -> bool:
    tolerated = margins_for(find(METRIC), kind).on(Scale.LOG).tolerated
    return level_change(runs, prior_for(find(METRIC), kind), tolerated, ALPHA) is not None


def on_the_emulator(options: argparse.Namespace) -> None:
    print("| workload | measurements | not steady | … with 5.67, 5.14, 4.70 planted | runs, MSER | not steady |")
    print("|---|---|---|---|---|---|")
    whole = Counter[str]()
    for name in cases(options.kind, 0):
        count = Counter[str]()
        for start in range(options.first, options.first + options.starts):
            for measurement in measured(options, name, start):
                runs = tpots(measurement)
                planted = [[value * factor for value in run] for run, factor in zip(runs, WARMING_UP, strict=True)]
                long = [run for run in runs if len(run) >= 50]
                count.update(measurements=1, alarms=called(runs, options.kind),
                             found=called(planted, options.kind), runs=len(long),
                             mser=sum(not mser(run).steady() for run in long))
        whole += count
        print(_row(name, count), flush=True)
    print(_row("all", whole))
    limit = upper(whole["alarms"], whole["measurements"])
    print(f"\nNot steady: at most {limit:.2%} of measurements, {limit / RUNS:.3%} per run (Clopper–Pearson, 95 %).")


def _row(name: str, count: Counter[str]) -> str:
    cells = (name, count["measurements"], count["alarms"], count["found"], count["runs"], count["mser"])
    return "| " + " | ".join(map(str, cells)) + " |"


def upper(alarms: int, of: int) -> float:
    """Clopper–Pearson's upper 95 % limit, one-sided."""
    return 1.0 if alarms >= of else float(beta.ppf(0.95, alarms + 1, of - alarms))


def paired(options: argparse.Namespace) -> None:
    """Simulated: three runs against three stored sessions of the same seeds."""
    rng = np.random.default_rng(1)
    prior, tolerated = prior_for(find(METRIC), "h200"), margins_for(find(METRIC), "h200").on(Scale.LOG).tolerated
    print(f"\n| run sd / session sd | of {options.simulations}: not steady | upper limit | … with the series planted |")
    print("|---|---|---|---|")
    for run_sd, session_sd in PAIRED_NOISE:
        alarms = hits = 0
        for _ in range(options.simulations):
            seeds = rng.normal(0, 0.02, RUNS)
            levels = rng.normal(0, session_sd, 4)[:, None] + seeds + rng.normal(0, run_sd, (4, RUNS))
            same, *stored = [list(enumerate(session)) for session in levels.tolist()]
            today = [(seed, value + log(factor)) for (seed, value), factor in zip(same, WARMING_UP, strict=True)]
            alarms += drift_p(shift(same, stored, prior), stored, tolerated) is not None
            hits += drift_p(shift(today, stored, prior), stored, tolerated) is not None
        print(f"| {run_sd:.1%} / {session_sd:.1%} | {alarms} | {upper(alarms, options.simulations):.2%} | {hits} |",
              flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=list(RATES), default="h200")
    parser.add_argument("--starts", type=int, default=20, help="emulated starts per workload (default: %(default)s)")
    parser.add_argument("--each", type=int, default=3, help="measurements per start (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="seed of the first start (default: %(default)s)")
    parser.add_argument("--fault", action="append", default=[], help="plant one, e.g. throttle; may be repeated")
    parser.add_argument("--noise", default=NOISE, help="as --emulate-noise (default: %(default)s)")
    parser.add_argument("--simulations", type=int, default=3000,
                        help="per row of the paired rule (default: %(default)s)")
    options = parser.parse_args()
    on_the_emulator(options)
    paired(options)


if __name__ == "__main__":
    main()
