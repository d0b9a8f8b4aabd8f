"""What the hooks of a project's conftest.py add at all five doors, and that it ends with its session."""

import pytest

from pytest_llmperf.engines.adapters import ENGINES
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.metrics.registry import METRICS
from pytest_llmperf.report.export import SINKS
from pytest_llmperf.workload.expression import WORKLOADS

CONFTEST = '''
import sys
from pytest_llmperf import at_times, random_tokens
from pytest_llmperf.extending import (AddedMetric, AddedWorkload, Direction, EngineAdapter, HardwareKind, Sink, Unit,
                                      command_line)

class Own(EngineAdapter):
    api, name, package = 1, "own", "pip"

    def arguments(self, spec, placement):
        return ["-c", "raise SystemExit('the engine of conftest.py ran')"]

def pytest_llmperf_engines(config):
    return [Own()]

def pytest_llmperf_kinds(config):
    return [HardwareKind(name="t4", nvml_words=("t4",), nvml_memory_gib=15.0, cuda_memory_gib=14.6,
                         bandwidth_bytes_per_s=3.2e11, cache_bytes=4e6, bf16_flops=65e12, pcie_bytes_per_s=16e9)]

def pytest_llmperf_metrics(config):
    return [AddedMetric(api=1, name="served", unit=Unit.MS, direction=Direction.HIGHER, formula="served requests",
                        take=lambda records, counters: float(sum(record.ok for record in records)))]

def pytest_llmperf_workloads(config):
    return [AddedWorkload(api=1, name="pairs", build=lambda *, seed=0: random_tokens(
        input=32, output=4, arrivals=at_times([0.0, 0.0, 0.2, 0.2]), requests=4, seed=seed))]

def pytest_llmperf_sinks(config):
    return [Sink(api=1, name="names", files=lambda tests: {"": "\\\\n".join(test.test for test in tests).encode()})]
'''
SUITE = '''
import pytest
from pytest_llmperf import vllm
from pytest_llmperf.extending import build_spec
from pytest_llmperf.workload.expression import WORKLOADS

@pytest.mark.t4
def test_kind_metric_workload(perf):
    run = perf.measure(vllm("tiny"), WORKLOADS.get("pairs").build())
    perf.check(run, "served >= 4ms")

@pytest.mark.t4
def test_engine(perf):
    perf.measure(build_spec("own", "tiny", {}, {}), WORKLOADS.get("pairs").build())
'''


@pytest.mark.emulated
@pytest.mark.parametrize("dist", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_hooks_of_conftest_add_at_all_five_doors(pytester, dist):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=SUITE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-m", "t4", "--emulate", "t4",
                                           "--llmperf-export=names=names.txt", *dist)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*the emulator schedules as vLLM and SGLang do, and does not know own*"])
    assert "test_kind_metric_workload" in (pytester.path / "names.txt").read_text()


def test_additions_are_unknown_after_the_session(pytester):
    doors = (ENGINES, GPU_KINDS, METRICS, WORKLOADS, SINKS)
    before = [tuple(door) for door in doors]
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it="""
        from pytest_llmperf.engines.adapters import ENGINES

        def test_known():
            assert ENGINES.get("own").package == "pip"
    """)
    for _ in range(2):  # a name that stayed would be a duplicate
        pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
        assert [tuple(door) for door in doors] == before


ADDED = """
from pytest_llmperf.extending import AddedMetric, Direction, Unit

def metric(name="spread", take=lambda records, counters: 1.0):
    return AddedMetric(api=1, name=name, unit=Unit.MS, direction=Direction.LOWER, take=take, formula="x")

def pytest_llmperf_metrics(config):
    {body}
"""
MEASURED = """
from pytest_llmperf import closed, random_tokens, vllm

def test_x(perf):
    load = random_tokens(input=32, output=4, arrivals=closed(1), requests=2)
    perf.check(perf.measure(vllm("llama-3.1-8b"), load, runs=1), "error_rate == 0")
"""


@pytest.mark.parametrize(("body", "message"), [
    ("raise KeyError('unit')", "conftest.py: the hook pytest_llmperf_metrics fails: KeyError: 'unit'"),
    ("return metric()", "conftest.py: the hook pytest_llmperf_metrics returns AddedMetric. Let it return a list."),
    ("return [metric('ttft_p50')]", "conftest.py adds the metric 'ttft_p50', which pytest-llmperf has, too."),
    ("return [metric('my metric')]", "conftest.py adds the metric 'my metric'. Name it by letters, digits"),
])
def test_wrong_hook_is_one_sentence_before_a_test(pytester, body, message):
    pytester.makeconftest(ADDED.format(body=body))
    pytester.makepyfile(MEASURED)
    result = pytester.runpytest_subprocess("--emulate", "h200")
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: {message}*"])


@pytest.mark.parametrize(("value", "shown"), [("'slow'", "'slow'"), ("float('nan')", "nan")])
def test_metric_without_a_finite_number_is_refused(pytester, value, shown):
    pytester.makeconftest(ADDED.format(body=f"return [metric(take=lambda records, counters: {value})]"))
    pytester.makepyfile(MEASURED)
    result = pytester.runpytest_subprocess("--emulate", "h200")
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"*The metric spread gives {shown} on a run. Let the function return a finite *"])
