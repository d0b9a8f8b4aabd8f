"""What a calibration on the emulator runs: nothing planted, slowdowns, and the mechanisms' faults."""

from __future__ import annotations

from dataclasses import dataclass

REALISTIC = "session=0.3%,run=0.5%,step=1%,ar=0.6"
NOISY = "session=2%,run=3.5%,step=1%,ar=0.6"
A_A = "A/A"


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A change of mean TPOT, and its noise; in an open loop both are more than those of a step's time.

    Args:
        tpot: the change, e.g. 0.05.
        run_sd, session_sd: of mean TPOT.
    """

    tpot: float
    run_sd: float
    session_sd: float


@dataclass(frozen=True, slots=True)
class Experiment:
    """Suite runs whose truth is known.

    Args:
        name: for people, and the key of its rows.
        suite_runs: how many.
        noise: the emulator's --noise.
        faults: planted, as --fault.
        slowdown: planted in their place, with noise to match.
        watched_by: part of the ids of the tests that are run; "" is all of them.
        cause: what the message of a FAIL or ERROR must say for the fault to be named.
        drawn: against baselines drawn from other suite runs, instead of the stored ones.
    """

    name: str
    suite_runs: int
    noise: str = REALISTIC
    faults: tuple[str, ...] = ()
    slowdown: Slowdown | None = None
    watched_by: str = ""
    cause: str = ""
    drawn: bool = False


#: Not the search for the highest rate beside it, which is compared with nothing and costs ten times as much.
SERVING = "serving.py::test_answers_come_in_time"
#: (fault, test that watches it, cause that it must name)
MECHANISMS = (
    ("prefix_cache=off", "prefix_caching", "prefix_cache_hit_rate(a)"),
    ("chunk_budget=/4", "small_chunks", "max_num_batched_tokens"),
    ("kv=-50%", "the_memory_becomes_blocks", "kv_blocks"),
    ("acceptance=-0.2", "speculative_decoding", "spec_acceptance_rate(a)"),
    ("tp_link=/2", "four_gpus_prefill", "ttft_p50 changed"),
    ("offload_bandwidth=/4", "evicted_prefixes", "ttft_mean changed"),
    ("stalls=1%", SERVING, "largest_stall_p75"),
    ("leak", SERVING, "blocks are still held"),
    ("throttle", SERVING, "not steady: tpot_mean"),
)
SLOWDOWNS = {
    "TPOT +5 %, run sd 0.5 %": Slowdown(0.05, run_sd=0.005, session_sd=0.003),
    "TPOT +10 %, run sd 1 %": Slowdown(0.10, run_sd=0.01, session_sd=0.005),
}
SLOWER = "tpot_mean changed"
MOST_OTHERS = 400


def experiments(suite_runs: int, faults: int) -> list[Experiment]:
    """All experiments; A/A comparisons come first.

    Args:
        suite_runs: number of A/A suite runs with the stored baselines. Each other A/A experiment gets a tenth of this
            number, at most 400.
        faults: number of suite runs per planted fault. A slowdown gets five times this number.
    """
    planted = [
        Experiment(fault, faults, faults=(fault,), watched_by=test, cause=cause) for fault, test, cause in MECHANISMS
    ]
    slow = [
        Experiment(name, 5 * faults, slowdown=slowdown, watched_by=SERVING, cause=SLOWER)
        for name, slowdown in SLOWDOWNS.items()
    ]
    others = min(suite_runs // 10, MOST_OTHERS)
    quiet = [
        Experiment(A_A, suite_runs),
        Experiment(f"{A_A}, run sd 3.5 %", others, NOISY, drawn=True),
        Experiment(f"{A_A}, drawn baselines", others, drawn=True),
    ]
    return [*quiet, *slow, *planted]
