#!/usr/bin/env python3
"""How a slow time after the start of a server changes verdicts, on the emulator in virtual time.

    python scripts/simulate_age.py --suites 200

An emulated H200 serves 1,024/128 tokens at 10 requests/s, 100 requests a run. With `--age 4%:40s` the steps of a server
take 4 % longer in runs that begin within 40 s of its start. Emulated starts take no time, so this is a server that is
80 s old at its first run and slow until 120 s. The rule of `--reference` judges median ITL of candidate and reference.
Each comparison has new noise and new starts.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from pytest_llmperf import Perf, poisson, random_tokens, vllm
from pytest_llmperf.calibration.emulated_session import EmulatedSession
from pytest_llmperf.calibration.suite_test import SuiteTest, outcome_of
from pytest_llmperf.config.emulation import Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.perf_session import STEADY_AGE_S
from pytest_llmperf.stats.binomial import share_interval

NOISE = "session=0.18%,run=0.2%,step=1%"  # of resident servers on H200s: docs/measured/h200_servers.md
SPEC = vllm("llama-3.1-8b", max_model_len=16384, enable_prefix_caching=False)
LOAD = random_tokens(input=1024, output=128, arrivals=poisson(10), requests=100)


def compare(execution: Execution) -> None:
    perf = Perf(execution)
    perf.compare_with_baseline(perf.measure(SPEC, LOAD, runs=1), primaries=["itl_p50"])


def row(name: str, session: EmulatedSession, suites: int) -> str:
    """A line of the table."""
    verdicts, pairs = Counter[str](), 0
    for suite in range(suites):
        session.begin_suite_run(suite)
        outcome = outcome_of(SuiteTest(name, compare), session, "h200")
        verdicts[outcome.results[0].verdict.value] += 1
        pairs += len(outcome.measurements[-1].runs)
    shares = []
    for verdict in ("FAIL", "INCONCLUSIVE", "PASS", "IMPROVED", "ERROR"):
        limits = share_interval(verdicts[verdict], suites, 0.975)
        shares.append(f"{verdicts[verdict]} ({100 * limits.low:.1f}–{100 * limits.high:.1f} %)")
    return f"| {name} | {' | '.join(shares)} | {pairs / suites:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", type=int, default=200)
    parser.add_argument("--age", default="4%:40s", metavar="SHARE:TIME")
    options = parser.parse_args()
    print("| servers | FAIL | INCONCLUSIVE | PASS | IMPROVED | ERROR | pairs of runs, mean |")
    print("|---|---|---|---|---|---|---|")
    aged = f"{NOISE},age={options.age}"
    for steady_age_s, noise, fault in (
        (STEADY_AGE_S, NOISE, ""), (STEADY_AGE_S, aged, ""), (0.0, aged, ""), (STEADY_AGE_S, aged, "+2%"),
        (0.0, aged, "+2%"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            faults = (f"step_time={fault}",) if fault else ()
            session = EmulatedSession(Settings(), Path(folder), Emulation("h200", faults=faults, noise=noise),
                                      steady_age_s)
            session.references = frozenset({"vllm"})
            try:
                waits = f", measured from {steady_age_s:g} s on" if steady_age_s else ", measured at once"
                name = f"candidate {fault or 'equal'}, {'young servers slow' + waits if noise is aged else 'no age'}"
                print(row(name, session, options.suites), flush=True)
            finally:
                session.close()


if __name__ == "__main__":
    main()
