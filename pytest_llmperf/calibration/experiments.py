"""What a calibration on the emulator runs: nothing planted, slowdowns, and the mechanisms' faults."""

from __future__ import annotations

from dataclasses import dataclass

REALISTIC = "session=0.3%,run=0.5%,step=1%,ar=0.6"
NOISIER = "session=0.5%,run=1%,step=1%,ar=0.6"
A_A = "A/A"


@dataclass(frozen=True, slots=True)
class Experiment:
    """Suite runs whose truth is known.

    Args:
        name: for people, and the key of its rows.
        suite_runs: how many.
        noise: the emulator's --noise.
        faults: planted, as --fault.
        watched_by: part of the ids of the tests that are run; "" is all of them.
        cause: what the message of a FAIL or ERROR must say for the fault to be named.
        drawn: against baselines drawn from other suite runs, instead of the stored ones.
    """

    name: str
    suite_runs: int
    noise: str = REALISTIC
    faults: tuple[str, ...] = ()
    watched_by: str = ""
    cause: str = ""
    drawn: bool = False


#: (fault, test that watches it, cause that it must name)
MECHANISMS = (
    ("prefix_cache=off", "prefix_caching", "prefix_cache_hit_rate(a)"),
    ("chunk_budget=/4", "chunked_prefill", "max_num_batched_tokens"),
    ("kv=-50%", "the_memory_becomes_blocks", "kv_blocks"),
    ("acceptance=-0.2", "speculative_decoding", "spec_acceptance_rate(a)"),
    ("tp_link=/2", "four_gpus", "ttft_p50 is"),
    ("offload_bandwidth=/4", "evicted_prefixes", "ttft_p50 is"),
    ("stalls=1%", "serving", "largest_stall_p50"),
    ("leak", "serving", "blocks are still held"),
    ("throttle", "serving", "tpot_mean is"),
)
SLOWER = "tpot_mean is"


def experiments(suite_runs: int, faults: int) -> list[Experiment]:
    """All of them, the longest last.

    Args:
        suite_runs: with nothing planted.
        faults: suite runs with each mechanism's fault; slowdowns get five times as many.
    """
    planted = [Experiment(fault, faults, REALISTIC, (fault,), test, cause) for fault, test, cause in MECHANISMS]
    slow = [
        Experiment("TPOT +5 %, run sd 0.5 %", 5 * faults, REALISTIC, ("step_time=+5%",), "serving", SLOWER),
        Experiment("TPOT +10 %, run sd 1 %", 5 * faults, NOISIER, ("step_time=+10%",), "serving", SLOWER),
    ]
    drawn = Experiment(f"{A_A}, baselines drawn anew", suite_runs // 10, drawn=True)
    return [*planted, *slow, drawn, Experiment(A_A, suite_runs)]
