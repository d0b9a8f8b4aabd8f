"""After a test is judged and written, its request records live in the run folder alone."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.emulated

SUITE = """
import gc
import pytest
from pytest_llmperf import poisson, random_tokens, vllm
from pytest_llmperf.model.record import RequestRecord

ENGINE = vllm("llama-3.1-8b", max_model_len=8192)
MEASURED = []

def records_in_memory():
    gc.collect()
    return sum(isinstance(one, RequestRecord) for one in gc.get_objects())

@pytest.mark.parametrize("number", range(4))
def test_own_run(perf, number):
    assert records_in_memory() == 0
    MEASURED.append(perf.measure(ENGINE, random_tokens(input=32, output=8, arrivals=poisson(40), requests=50,
                                                       seed=100 * number), runs=2))
    perf.check(MEASURED[-1], "ttft_p50 <= 1s", "itl_p50 <= 1s")
    assert records_in_memory() == 100

def test_shared_measurement(perf):
    assert records_in_memory() == 0
    shared = MEASURED[0]
    perf.check(shared, "ttft_p50 <= 1s", "itl_p50 <= 1s")
    assert len(shared.records) == records_in_memory() == 100
    assert len(shared.to_pandas()) == 100

def test_end():
    assert records_in_memory() == 0
"""

def test_records_of_finished_tests_leave_memory_and_are_judged_again_alike(run, stored_checks):
    result, junit = run(SUITE, "--emulate", "h200", "-p", "no:randomly")
    result.assert_outcomes(passed=6)
    first_case, *_, shared, _ = junit.iter("testcase")
    assert stored_checks(first_case) == stored_checks(shared) != []


def test_pooled_execution_reads_released_records_from_run_folder(run):
    suite = SUITE.partition("@pytest.mark.parametrize")[0] + """
@pytest.mark.flaky(reruns=1)
def test_it(perf):
    assert records_in_memory() == 0
    MEASURED.append(perf.measure(ENGINE, random_tokens(input=32, output=8, arrivals=poisson(40), requests=50), runs=2))
    perf.check(MEASURED[-1], "ttft_p50 <= 1us" if len(MEASURED) == 1 else "ttft_p50 <= 1s")
    if len(MEASURED) == 2:
        assert len(MEASURED[-1].records) == 200 and MEASURED[-1].records[:100] == MEASURED[0].records
"""
    result, _ = run(suite, "--emulate", "h200", "-rP")
    result.stdout.fnmatch_lines(["*execution 1: FAIL, 2 of its 2 runs count; execution 2: PASS*"])
    (run_file,) = Path(".llmperf/runs").glob("*/tests/*.json")
    (measurement,) = json.loads(run_file.read_text())["measurements"]
    assert len({run["requests"] for run in measurement["runs"]}) == 4
