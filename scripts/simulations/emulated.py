"""Whole suites on the emulator in virtual time, each session with a noise seed of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pytest_llmperf.calibration.aa_sessions import alarms, run_session, tests_of
from simulations.tables import Table, heading, row, share_of

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
        part: suite runs per suite run with one fault.
    """

    fault: str = ""
    watched_by: str = ""
    cause: str = ""
    part: int = field(default=1, compare=False)


#: Not the search for the highest rate beside it, which is compared with nothing and costs ten times as much.
SERVING = "test_answers_come_in_time"
FAULTS = (
    Planted("step_time=3.5%", SERVING, "tpot_mean changed"), Planted("step_time=7%", SERVING, "tpot_mean changed"),
    Planted("prefix_cache=off", "prefix_caching", "prefix_cache_hit_rate(a)"),
    Planted("chunk_budget=/4", "small_chunks", "max_num_batched_tokens"),
    Planted("kv=-50%", "the_memory_becomes_blocks", "kv_blocks"),
    Planted("acceptance=-0.5", "speculative_decoding", "spec_acceptance_rate(a)"),
    Planted("tp_link=/2", "four_gpus_prefill", "ttft_p50 changed"),
    Planted("offload_bandwidth=/4", "evicted_prefixes", "ttft_mean changed"),
    Planted("stalls=1%", SERVING, "largest_stall_p75"), Planted("leak", SERVING, "blocks are still held"),
    Planted("throttle", SERVING, "not steady: tpot_mean"),
)  # fmt: skip
#: The tests that watch for a fault, with nothing planted.
UNCHANGED = Planted(watched_by=f"({' or '.join(dict.fromkeys(each.watched_by for each in FAULTS))})", part=3)
ABOUT = f"""
A suite run is a pytest session: `pytest suites --emulate {KIND}` with a noise seed of its own. Noise: a factor per
server start (sd 0.3 %), one per run (0.5 %), and one per step (1 %, autocorrelation 0.6). Queues amplify the noise: in
an open loop a step that is 1 % longer makes mean TPOT about 1.4 % longer. A false alarm is a FAIL or an ERROR of any
check."""
#: Of one suite run: the fault, its number, each FAIL and ERROR as text, and how often each verdict came.
SuiteRun = dict[str, Any]


def whole_suites_table(suites: int, _rng: np.random.Generator) -> Iterator[str]:
    """Suite runs with each fault, and three times as many without one. Continues after an interruption."""
    wanted = [(planted, number) for planted in (*FAULTS, UNCHANGED) for number in range(planted.part * suites)]
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
    """Suite runs of an earlier, interrupted command on the same commit."""
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


#: Not printed unless it is named: hours.
TABLES: dict[str, Table] = {"whole_suites": whole_suites_table}
