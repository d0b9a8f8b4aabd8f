"""`--reference` on several GPUs: both builds on each GPU, or one build a GPU with an exchange."""

import json
from collections import Counter
from pathlib import Path

import pytest

SUITE = """
from pytest_llmperf import by_kind, closed, random_tokens, vllm

@by_kind(h100={{}})
def test_it(case, perf):
    run = perf.measure({engine}, random_tokens(input=100, output=60, arrivals=closed(1), requests=6), runs=1)
    perf.compare_with_baseline(run, primaries=["itl_p50"])
"""
SMALL = SUITE.format(engine='vllm("llama-3.1-8b", max_model_len=8192)')
LARGE = SUITE.format(engine='vllm("mixtral-8x7b", max_model_len=8192, tensor_parallel_size=2)')  # 95 of 80 GiB a GPU
SLOWER_GPUS = "session=0.1%,run=0.1%,step=1%,gpu=5%"  # seed 3: steps of GPUs 0 and 1 are 11 % longer

pytestmark = pytest.mark.emulated


@pytest.fixture
def compared(run, pytester, monkeypatch):
    """Compare two builds on an emulated host; gives the result of the comparison and the measurements."""

    def compared(suite, gpus, *args):
        if gpus:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        run(suite, "--emulate", "h100", "--reference", "vllm=emulator", "--emulate-noise", SLOWER_GPUS,
            "--emulate-seed", "3", *args)
        (run_file,) = Path(pytester.path, ".llmperf/runs").glob("*/tests/*.json")
        test = json.loads(run_file.read_text())
        (check,) = [check for check in test["checks"] if check["subject"].startswith("reference ")]
        return check, test["measurements"]

    return compared


def starts_of(measurement):
    return Counter(run["start_id"] for run in measurement["runs"])


@pytest.mark.parametrize(("fault", "verdict", "change"), [((), "PASS", 0.0),
                                                          (("--emulate-fault", "step_time=+3%"), "FAIL", 0.03)])
def test_difference_between_gpus_is_removed_where_builds_exchange_them(compared, fault, verdict, change):
    check, (measured, candidate, reference) = compared(LARGE, "0,1,2,3", *fault)
    assert check["verdict"] == verdict
    assert check["estimate"] == pytest.approx(change, abs=0.006)
    assert 0.08 < check["facts"]["gpu_difference"] < 0.13
    assert [run["block"] for run in candidate["runs"]] == [run["block"] for run in reference["runs"]]
    assert [starts_of(side) for side in (candidate, reference)] == [{1: 3, 3: 3}, {2: 3, 4: 3}]
    assert {side["conditions"]["treatment"] for side in (measured, candidate, reference)} == {"1 server on other GPUs"}


def test_small_model_is_compared_on_each_gpu_at_the_same_time(compared):
    check, (_, candidate, reference) = compared(SMALL, "0,1,2")
    assert (check["verdict"], check["facts"]["pairs"]) == ("PASS", 9)
    assert "gpu_difference" not in check["facts"]
    assert [starts_of(side) for side in (candidate, reference)] == [{1: 3, 3: 3, 5: 3}, {2: 3, 4: 3, 6: 3}]
    of_turns = Counter(run["block"] for side in (candidate, reference) for run in side["runs"])
    assert of_turns == dict.fromkeys(range(1, 7), 3)  # turns of three runs at the same time
    assert {side["conditions"]["treatment"] for side in (candidate, reference)} == {
        "1 idle server beside it; 4 servers on other GPUs"}


@pytest.mark.parametrize(("gpus", "args"), [
    ("", ()), ("0", ()), ("0,1,2", ("--llmperf-set", "resident_servers=sleep")),
    ("0,1,2", ("--llmperf-set", "resident_servers=none"))])
def test_one_gpu_or_servers_in_turn_leave_the_other_gpus_free(compared, gpus, args):
    check, measurements = compared(SMALL, gpus, "--llmperf-extension-limit", "0", *args)
    assert check["facts"]["pairs"] == 3
    assert not any("other GPUs" in each["conditions"].get("treatment", "") for each in measurements)
