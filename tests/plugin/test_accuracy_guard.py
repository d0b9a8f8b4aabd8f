"""Accuracy guards of claims on the emulator, which invents its answers, and bad arguments."""

import pytest

pytestmark = pytest.mark.emulated

SUITE = """
from pytest_llmperf import closed, random_tokens, vllm

def test_it(perf):
    fast = vllm("llama-3.1-8b", max_model_len=8192)
    slow = fast.with_flags(max_num_seqs=1)
    traffic = random_tokens(input=200, output=40, arrivals=closed(4), requests=24)
    perf.claim(fast, slow, traffic, "ttft_p50(b) / ttft_p50(a) >= 1.5", allow={"tpot_mean": 10.0}, guards=GUARDS)
    perf.accuracy(fast, "sums.yaml")
"""


def test_emulated_accuracy_is_reported_as_not_measured(run, stored_checks):
    result, junit = run(SUITE.replace("GUARDS", '{"accuracy(sums.yaml)": 0.01}'), "--emulate", "h200")
    assert result.ret == 0
    checks = stored_checks(next(junit.iter("testcase")))
    of_task = [(check["verdict"], check["cause"]) for check in checks if check["metric"] == "accuracy(sums.yaml)"]
    assert of_task == [("REPORTED", "accuracy_not_emulated")] * 2


def test_tolerated_loss_in_points_is_refused(run):
    result, _ = run(SUITE.replace("GUARDS", '{"accuracy(sums.yaml)": 1}'), "--emulate", "h200")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*Write 0.01 for one point*"])
