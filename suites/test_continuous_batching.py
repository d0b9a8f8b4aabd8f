"""Continuous against static batches: the more the lengths of answers differ, the more the batch waits for the longest.

Hugging Face `generate` is the static engine: each row of a batch of n is computed until the longest answer ends. So a
step extends n × mean ÷ E[longest of n] answers: all n where the lengths are equal, 5.1 of 8 where they are uniform
between 0 and twice the mean, 2.9 of 8 in a mix of 8 to 256 tokens. vLLM refills a place as soon as its answer ends.
"""

from types import SimpleNamespace

import pytest

from pytest_llmperf import Perf, by_kind, closed, random_tokens, trace, transformers, vllm
from pytest_llmperf.workload import Workload

MIXED = "suites/tasks/mixed_lengths.jsonl"  # 8, 16, 32, 128 and 256 tokens, equally often
CASES = by_kind(cpu={"model": "tiny", "context": 2048, "together": 8, "requests": 80, "mean": 88})
# So many of 8 rows of a static batch are of use in a step, at most.
USED_ROWS = {"equal": 8.0, "uniform": 6.0, "mixed": 4.0}
RUNS = 5  # three pairs left a wide interval on a machine that other programs use
FILLED_PLACES = 6.0  # of 8, in a continuous batch: a place is empty only while the last answers of a run end


def workloads(case: SimpleNamespace) -> dict[str, Workload]:
    """Equal means, growing variance."""
    arrivals = closed(case.together)
    return {
        "equal": random_tokens(input=32, output=case.mean, arrivals=arrivals, requests=case.requests),
        "uniform": random_tokens(input=32, output=(1, 2 * case.mean - 1), arrivals=arrivals, requests=case.requests),
        "mixed": trace(path=MIXED, arrivals=arrivals, requests=case.requests),
    }


@CASES
def test_gain_of_continuous_batches_grows_with_spread_of_lengths(case: SimpleNamespace, perf: Perf) -> None:
    if perf.emulated:
        pytest.skip("the emulator schedules as vLLM and SGLang do, and has no static batches")
    refilled = vllm(case.model, max_model_len=case.context, max_num_seqs=case.together)
    padded = transformers(case.model, max_batch_size=case.together)
    answers = workloads(case)
    continuous = {name: perf.measure(refilled, workload, runs=RUNS) for name, workload in answers.items()}
    static = {name: perf.measure(padded, workload, runs=RUNS) for name, workload in answers.items()}
    for name, rows in USED_ROWS.items():
        perf.check(continuous[name], f"tokens_per_step >= {FILLED_PLACES}", "error_rate == 0")
        perf.check(static[name], f"tokens_per_step <= {rows}", "error_rate == 0")
    gains = {}
    for name in ("equal", "uniform"):
        (gains[name],) = perf.compare(
            "output_throughput(continuous) / output_throughput(static)",
            continuous=continuous[name], static=static[name],
        )
    # The engines' own speed cancels: what is claimed is that the mix gains more than equal lengths do.
    perf.compare(
        f"output_throughput(continuous) / output_throughput(static) >= {gains['equal'].estimate:.3g}",
        continuous=continuous["mixed"], static=static["mixed"],
    )
