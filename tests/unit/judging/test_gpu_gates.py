"""What on a GPU makes a run an ERROR, and what does not."""

from dataclasses import replace

import pytest

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.run_gates import gpu_problems
from pytest_llmperf.judging.validity import validity_problems
from pytest_llmperf.model.telemetry import ForeignProcess, GpuDevice, GpuSample, GpuTrace
from pytest_llmperf.results.causes.runs import GpuFault, GpuPartitioned, GpuSettingsChanged, GpusMixed, GpuThrottled
from pytest_llmperf.results.check import Problem

HEALTHY = GpuTrace(
    (GpuDevice(0, "NVIDIA H200", (("mig", "off"), ("power_limit_mw", "700000"))),),
    tuple(GpuSample(at_ns, 0, throttle_reasons=0x4, temperature_c=70) for at_ns in range(10)),
    pids_visible=True,
)


def problems_of(first=HEALTHY, **changed):
    return list(gpu_problems(replace(HEALTHY, **changed), first))


def test_a_power_cap_is_no_problem():
    assert problems_of() == []


def test_foreign_gpu_process_makes_run_contended(message):
    (problem,) = problems_of(strangers=(ForeignProcess(0, 42, 3 << 30, 55, "python3", "ada"),))
    message(problem.reason())


def test_foreign_gpu_process_with_unknown_memory_is_named(message):
    (problem,) = problems_of(strangers=(ForeignProcess(1, 42, sm_pct=5),))
    message(problem.reason())


@pytest.mark.parametrize(
    ("reasons", "named"),
    [(0x8, ["hw_slowdown"]), (0x20, ["sw_thermal_slowdown"]), (0x48, ["hw_slowdown", "hw_thermal_slowdown"]),
     (0x84, ["hw_power_brake_slowdown"])],
)
def test_throttling_in_one_sample_makes_run_invalid(reasons, named):
    hot = (*HEALTHY.samples[:9], GpuSample(9, 0, throttle_reasons=reasons, temperature_c=93))
    assert problems_of(samples=hot) == [GpuThrottled(named, 1, 10, 93)]


def test_unavailable_gpu_data_make_no_problem():
    assert problems_of(samples=(GpuSample(0, 0),), problem="NVML: gone", pids_visible=None) == []


def test_gpu_fault_makes_run_invalid():
    assert problems_of(faults=("a GPU reported Xid 79",)) == [
        GpuFault("a GPU reported Xid 79")]


def test_different_gpu_models_make_run_invalid():
    assert problems_of(devices=(*HEALTHY.devices, GpuDevice(1, "NVIDIA H100"))) == [
        GpusMixed(["NVIDIA H200", "NVIDIA H100"])]


def test_partitioned_gpu_makes_run_invalid():
    mig = (GpuDevice(0, "NVIDIA H200", (("mig", "on"),)),)
    assert problems_of(first=None, devices=mig) == [
        GpuPartitioned(0, "NVIDIA H200")]


def test_gpu_setting_changed_during_session_makes_run_invalid():
    lower = (GpuDevice(0, "NVIDIA H200", (("mig", "off"), ("power_limit_mw", "400000"))),)
    assert problems_of(devices=lower) == [
        GpuSettingsChanged(0, ["power_limit_mw 700000 → 400000"])]
    assert problems_of(first=None, devices=lower) == []


def test_the_gates_are_part_of_validity(make_run, make_measurement):
    bad = replace(HEALTHY, faults=("a GPU fell off the bus",))
    measurement = make_measurement(make_run(gpu=HEALTHY), make_run(seed=1, gpu=bad))
    assert validity_problems(measurement, set(), Settings()) == [
        Problem(GpuFault("a GPU fell off the bus"), run=2, seed=1)]
