"""Sessions on the emulator in virtual time, each with noise of its own: whole suites, steadiness, young servers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from pytest_llmperf import EngineSpec, Perf, closed, poisson, random_tokens, shared_prefix, vllm
from pytest_llmperf.calibration.aa_sessions import alarms, run_session, tests_of
from pytest_llmperf.config.emulation import GPUS, Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf_session import STEADY_AGE_S, PerfSession
from pytest_llmperf.telemetry.hardware import emulated_hardware
from pytest_llmperf.workload import Workload
from simulations.mser import mser
from simulations.steadiness import RUNS, WARMING_UP, is_unsteady
from simulations.tables import Table, heading, row, share, share_of

ROOT = Path(__file__).parents[2]
KIND = "h200"
NOISE = "session=0.3%,run=0.5%,step=1%,ar=0.6"
#: Noise seeds begin here, so that no session has the noise of a stored session.
FIRST_SEED = 1000


@dataclass(frozen=True)
class Planted:
    """Suite runs whose truth is known.

    Args:
        fault: as `--emulate-fault`; "" for nothing.
        watched_by: `-k` expression of the tests that are run; "" for all of them.
        cause: text in a FAIL or ERROR that names the fault.
        part: suite runs per suite run with nothing planted.
    """

    fault: str = ""
    watched_by: str = ""
    cause: str = ""
    part: float = field(default=0.25, compare=False)


#: Not the search for the highest rate beside it, which is compared with nothing and costs ten times as much.
SERVING = "test_answers_come_in_time"
UNCHANGED = Planted(part=1.0)
FAULTS = (
    Planted("step_time=3.5%", SERVING, "tpot_mean changed"), Planted("step_time=7%", SERVING, "tpot_mean changed"),
    Planted("prefix_cache=off", "prefix_caching", "prefix_cache_hit_rate(a)"),
    Planted("chunk_budget=/4", "small_chunks", "max_num_batched_tokens"),
    Planted("kv=-50%", "the_memory_becomes_blocks", "kv_blocks"),
    Planted("acceptance=-0.2", "speculative_decoding", "spec_acceptance_rate(a)"),
    Planted("tp_link=/2", "four_gpus_prefill", "ttft_p50 changed"),
    Planted("offload_bandwidth=/4", "evicted_prefixes", "ttft_mean changed"),
    Planted("stalls=1%", SERVING, "largest_stall_p75"), Planted("leak", SERVING, "blocks are still held"),
    Planted("throttle", SERVING, "not steady: tpot_mean"),
)  # fmt: skip
ABOUT = f"""
A suite run is a pytest session: `pytest suites --emulate {KIND}` with a noise seed of its own. Noise: a factor per
server start (sd 0.3 %), one per run (0.5 %), and one per step (1 %, autocorrelation 0.6). Queues amplify the noise: in
an open loop a step that is 1 % longer makes mean TPOT about 1.4 % longer. A false alarm is a FAIL or an ERROR of any
check."""
#: Of one suite run: the fault, its number, each FAIL and ERROR as text, and how often each verdict came.
SuiteRun = dict[str, Any]


def whole_suites_table(suites: int, _rng: np.random.Generator) -> Iterator[str]:
    """Suite runs with nothing planted, and a quarter as many with each fault. Goes on where it was stopped."""
    wanted = [(planted, number) for planted in (UNCHANGED, *FAULTS) for number in range(round(planted.part * suites))]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.strip()
    journal = ROOT / ".llmperf" / f"whole_suites-{commit}.jsonl"
    suite_runs = stored_suite_runs(journal)
    missing = [each for each in wanted if (each[0].fault, each[1]) not in suite_runs]
    with journal.open("a", encoding="utf-8") as file, ThreadPoolExecutor(os.cpu_count()) as workers:
        for suite_run in workers.map(measured_suite_run, missing):
            suite_runs[suite_run["fault"], suite_run["number"]] = suite_run
            file.write(json.dumps(suite_run, ensure_ascii=False) + "\n")
            file.flush()
    yield ABOUT
    yield from heading(f"Nothing changed, {commit}", "suite runs with a false alarm", "suite runs with INCONCLUSIVE",
                       "suite runs with IMPROVED")
    quiet = [suite_runs[each.fault, number] for each, number in wanted if each is UNCHANGED]
    yield row(share_of(bool(each["bad"]) for each in quiet),
              *(share_of(verdict in each["verdicts"] for each in quiet) for verdict in ("INCONCLUSIVE", "IMPROVED")))
    yield from heading("Planted faults", "planted", "watched by", "found", "named", "by the words", "INCONCLUSIVE",
                       "silently green")
    for planted in FAULTS:
        chosen = [suite_runs[each.fault, number] for each, number in wanted if each is planted]
        unsure = ["INCONCLUSIVE" in each["verdicts"] and not each["bad"] for each in chosen]
        yield row(f"`{planted.fault}`", planted.watched_by, share_of(bool(each["bad"]) for each in chosen),
                  share_of(any(planted.cause in text for text in each["bad"]) for each in chosen), f"“{planted.cause}”",
                  share_of(unsure), share_of(not each["bad"] and not open_ for each, open_ in
                                             zip(chosen, unsure, strict=True)))


def stored_suite_runs(journal: Path) -> dict[tuple[str, int], SuiteRun]:
    """Those of an earlier, interrupted command on the same commit."""
    journal.parent.mkdir(exist_ok=True)
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    return {(suite_run["fault"], suite_run["number"]): suite_run for suite_run in map(json.loads, lines)}


def measured_suite_run(wanted: tuple[Planted, int]) -> SuiteRun:
    """One pytest session on the emulator."""
    planted, number = wanted
    tests = " and ".join(filter(None, (KIND, planted.watched_by)))
    arguments = ["suites", "-p", "no:cacheprovider", "--emulate", KIND, "--emulate-noise", NOISE, "--emulate-seed",
                 str(FIRST_SEED + number), "-k", tests]
    with tempfile.TemporaryDirectory() as folder:
        run_session([*arguments, *(["--emulate-fault", planted.fault] if planted.fault else [])], Path(folder), ROOT)
        results = tests_of(Path(folder))
    return {"fault": planted.fault, "number": number, "bad": alarms(results),
            "verdicts": Counter(check.verdict.value for test in results for check in test.checks)}


@contextmanager
def session_on(emulation: Emulation, *, steady_age_s: float = STEADY_AGE_S, references: tuple[str, ...] = ()
               ) -> Iterator[PerfSession]:
    """A session without pytest and without baselines."""
    with tempfile.TemporaryDirectory() as folder:
        session = PerfSession(Settings(), Path(folder), emulated_hardware(emulation.kind, GPUS), lambda _status: None,
                              rng=random.Random(emulation.seed), emulation=emulation, references=references,
                              steady_age_s=steady_age_s)
        try:
            yield session
        finally:
            session.close()


LLAMA = vllm("llama-3.1-8b", max_model_len=16384)


def workloads(seed: int) -> dict[str, tuple[EngineSpec, Workload]]:
    """The shapes of the shipped suites."""
    questions = shared_prefix(prefix=4000, suffix=(32, 96), output=16, groups=3, arrivals=poisson(4), requests=45,
                              seed=seed)
    tokens = partial(random_tokens, seed=seed)
    return {
        "open loop, equal lengths": (LLAMA, tokens(input=1024, output=128, arrivals=poisson(10), requests=100)),
        "open loop, lengths 1:40": (LLAMA, tokens(input=(100, 4000), output=(16, 256), arrivals=poisson(5),
                                                  requests=100)),
        "shared prefixes": (LLAMA, questions),
        "shared prefixes, no cache: overloaded": (LLAMA.with_flags(enable_prefix_caching=False), questions),
        "64 at once": (LLAMA, tokens(input=1024, output=64, arrivals=closed(64), requests=128)),
        "one at a time": (LLAMA, tokens(input=200, output=128, arrivals=closed(1), requests=12)),
    }


def emulated_steadiness_table(starts: int, _rng: np.random.Generator) -> Iterator[str]:
    """How often steady servers are called not steady, by the product and, run by run, by MSER-5."""
    yield from heading(f"Three runs on an emulated {KIND}, {starts} starts", "workload", "fault", "not steady",
                       "not steady with 5.67, 5.14, 4.70 ms planted", "runs that are not steady by MSER-5")
    for fault, name in product(("", "throttle"), workloads(0)):
        ends: list[tuple[bool, bool]] = []
        single: list[bool] = []
        for start in range(starts):
            runs = tpots_ms(name, Emulation(KIND, faults=(fault,) if fault else (), seed=FIRST_SEED + start))
            slow = [[value * factor for value in run] for run, factor in zip(runs, WARMING_UP, strict=True)]
            ends.append((is_unsteady(runs), is_unsteady(slow)))
            single += [not mser(run).steady() for run in runs if len(run) >= 50]
        yield row(name, fault or "–", *map(share_of, zip(*ends, strict=True)), share_of(single))


def tpots_ms(name: str, emulation: Emulation) -> list[list[float]]:
    """TPOTs of the requests of each run, on a start of their own."""
    with session_on(emulation) as session:
        spec, workload = workloads(RUNS * emulation.seed)[name]
        perf = Perf(begin_execution(session, "steadiness", KIND))
        measurement = perf.measure(spec, workload, runs=RUNS, may_preempt=True)
        return [[value / 1e6 for values in metrics.by_request("tpot") or () for value in values or ()]
                for metrics in measurement.metrics]


def age_table(suites: int, _rng: np.random.Generator) -> Iterator[str]:
    """Does a slow time after the start change verdicts of `--reference`, and does it pay to wait for its end?

    The steps of a server take 4 % longer in runs that begin within 40 s of its start. Emulated starts take no time, so
    this is a server that is 80 s old at its first run and slow until 120 s.
    """
    quiet = "session=0.18%,run=0.2%,step=1%"  # of resident servers on H200s: docs/measured/h200_resident.md
    yield from heading("Candidate against reference on servers that are slow at first", "candidate", "servers", "FAIL",
                       "INCONCLUSIVE", "PASS", "pairs of runs, mean")
    for fault, noise, steady_age_s in (("", quiet, STEADY_AGE_S), *(
            (fault, f"{quiet},age=4%:40s", age_s) for fault in ("", "step_time=+2%") for age_s in (STEADY_AGE_S, 0.0))):
        emulations = [Emulation(KIND, faults=(fault,) if fault else (), noise=noise, seed=seed)
                      for seed in range(suites)]
        ends = [compared_with_reference(emulation, steady_age_s) for emulation in emulations]
        slow = f"slow at first, measured from {steady_age_s:g} s on" if noise is not quiet else "no age"
        yield row(fault or "equal", slow,
                  *(share(sum(verdict is wanted for verdict, _ in ends), suites)
                    for wanted in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)),
                  f"{np.mean([pairs for _, pairs in ends]):.1f}")


def compared_with_reference(emulation: Emulation, steady_age_s: float) -> tuple[Verdict, int]:
    """The verdict on median ITL, and the pairs that it took."""
    load = random_tokens(input=1024, output=128, arrivals=poisson(10), requests=100)
    with session_on(emulation, steady_age_s=steady_age_s, references=("vllm",)) as session:
        execution = begin_execution(session, "age", KIND)
        perf = Perf(execution)
        perf.compare_with_baseline(perf.measure(LLAMA.with_flags(enable_prefix_caching=False), load, runs=1),
                                   primaries=["itl_p50"])
        return execution.results[0].verdict, len(execution.measurements[-1].runs)


#: Not printed unless they are named: a session takes seconds to minutes.
TABLES: dict[str, Table] = {"whole_suites": whole_suites_table, "emulated_steadiness": emulated_steadiness_table,
                            "age": age_table}
