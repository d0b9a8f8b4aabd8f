"""What a thread sees of fake GPUs, and what it makes of a driver that is old, mute, gone or hanging."""

import os
import sys

import pytest

from pytest_llmperf.clock import SystemClock
from pytest_llmperf.telemetry.gpu_watch import GpuWatch, user_of
from pytest_llmperf.telemetry.hardware import Gpu
from pytest_llmperf.testing.fake_nvml import ANSWERS, FakeGpu, FakeNvml

OURS, THEIRS = 1_000_001, os.getppid()
GPUS = (Gpu(0, "NVIDIA H200", "h200"), Gpu(1, "NVIDIA H200", "h200"))


@pytest.fixture
def nvml():
    return FakeNvml([FakeGpu(used_bytes=9 << 30, processes={OURS: 9 << 30}, utilization_pct=93), FakeGpu()])


@pytest.fixture
def seen(nvml):
    """Returns a function that runs `between` after the first sample of a watch and returns the trace of the watch."""

    def seen(between=lambda: None, gpus=GPUS[:1], ours=lambda: [OURS], timeout_s=60.0):
        watch = GpuWatch(nvml, gpus, ours, SystemClock(), interval_s=0.002)
        watch.start()
        while not nvml.calls.get("nvmlDeviceGetTemperature") and watch._thread.is_alive() and nvml.answering.is_set():
            pass
        between()
        watch.stop(timeout_s)
        return watch.trace(0)

    return seen


def test_every_gpu_is_sampled_in_the_order_of_time(seen):
    trace = seen(gpus=GPUS)
    columns = trace.columns()
    assert columns["at_ns"] == sorted(columns["at_ns"])
    assert columns["device"][:2] == [0, 1]
    assert columns["device"].count(0) == columns["device"].count(1) >= 2
    assert columns["utilization_pct"][:2] == [93, 0]
    assert columns["memory_used_bytes"][:2] == [9 << 30, 0]
    assert columns["power_w"][0] == 120.0
    assert trace.problem is None
    assert trace.faults == ()


def test_sample_times_count_from_start_of_run(nvml):
    clock = SystemClock()
    watch = GpuWatch(nvml, GPUS[:1], lambda: [OURS], clock, interval_s=10)
    begun_ns = clock.now_ns()
    watch.start()
    watch.stop()
    first, last = (watch.trace(begun_ns).samples[i].at_ns for i in (0, -1))
    assert 0 <= first <= last <= clock.now_ns() - begun_ns
    assert watch.trace(begun_ns + 10**12).samples[0].at_ns == first - 10**12


def test_temporary_gpu_process_is_reported_with_peak_memory(seen, nvml):
    processes = nvml.gpus[0].processes

    def visit():
        looks = nvml.calls["nvmlDeviceGetComputeRunningProcesses"]
        processes[THEIRS] = 5 << 30
        while nvml.calls["nvmlDeviceGetComputeRunningProcesses"] < looks + 2:
            pass
        del processes[THEIRS]

    (stranger,) = seen(visit).strangers
    assert (stranger.pid, stranger.memory_bytes, stranger.device) == (THEIRS, 5 << 30, 0)
    assert stranger.user
    assert stranger.name


def test_a_process_that_only_computes_is_named_too(seen, nvml):
    nvml.gpus[0].sm_pct = {THEIRS: 40, OURS: 60}
    (stranger,) = seen().strangers
    assert (stranger.pid, stranger.sm_pct) == (THEIRS, 40)


@pytest.mark.parametrize(("free_mib", "held_mib", "sm_pct", "competes"), [
    (0, 256, 0, False), (0, 257, 0, True), (128, 200, 0, False),
    (1024, 1024, 0, False), (1024, 1025, 0, True), (1024, 1, 5, True),
])  # fmt: skip
def test_process_that_fit_beside_server_at_start_is_not_contention(nvml, free_mib, held_mib, sm_pct, competes):
    nvml.gpus[0].processes[THEIRS] = held_mib << 20
    nvml.gpus[0].sm_pct = {THEIRS: sm_pct}
    watch = GpuWatch(nvml, GPUS[:1], lambda: [OURS], SystemClock(), 10, free_bytes=free_mib << 20)
    watch.start()
    watch.stop()
    assert bool(watch.trace(0).strangers) is competes


def test_late_process_of_the_session_is_not_foreign(seen, nvml):
    late = 1_000_002
    ours = [OURS]

    def start():
        ours.append(late)
        nvml.gpus[0].processes[late] = 5 << 30

    trace = seen(start, ours=lambda: tuple(ours))
    assert trace.strangers == ()
    assert trace.pids_visible


@pytest.mark.parametrize(("processes", "visible"), [({}, None), ({4_000_000: 9 << 30}, False), ({OURS: None}, True)])
def test_foreign_processes_are_reported_only_if_own_process_is_visible(seen, nvml, processes, visible):
    nvml.gpus[0].processes = processes
    trace = seen()
    assert trace.pids_visible is visible
    assert trace.strangers == ()


def test_memory_use_of_old_driver_includes_reserved_memory(seen, nvml):
    nvml.unsupported = {"nvmlDeviceGetMemoryInfo_v2"}
    assert set(seen().columns()["memory_used_bytes"]) == {9 << 30}


@pytest.mark.parametrize("missing", ["nvmlEventSetCreate", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceRegisterEvents"])
def test_no_events_and_no_counters_are_no_faults(seen, nvml, missing):
    nvml.unsupported = {missing}
    trace = seen()
    assert trace.faults == ()
    assert trace.problem is None


def test_each_gpu_fault_is_reported_once(seen, nvml):
    trace = seen(lambda: nvml.xids.extend([31, 31]))
    assert [fault[:22] for fault in trace.faults] == ["a GPU reported Xid 31 ", "a GPU reported Xid 31 "]


def test_memory_errors_before_run_are_not_counted(seen, nvml):
    nvml.gpus[0].ecc_errors = 7
    assert seen().faults == ()
    (fault,) = seen(lambda: setattr(nvml.gpus[0], "ecc_errors", 9)).faults
    assert fault.startswith("GPU 0 had 2 uncorrected memory errors")


def test_lost_gpu_is_reported_and_earlier_samples_are_kept(seen, nvml):
    trace = seen(lambda: setattr(nvml.gpus[0], "lost", True))
    assert trace.faults == ("a GPU fell off the bus",)
    assert trace.samples
    assert trace.problem is None


def test_silent_driver_is_reported_and_earlier_samples_are_kept(seen, nvml):
    trace = seen(lambda: nvml.broken.update({*vars(FakeNvml), *ANSWERS, "nvmlDeviceGetMemoryInfo_v2"}))
    assert trace.problem == "NVML: the driver no longer reports GPU 0"
    assert trace.samples
    assert trace.faults == ()


def test_hanging_driver_ends_watch_after_timeout(seen, nvml):
    nvml.answering.clear()
    try:
        assert "did not answer within 0.05 s" in seen(timeout_s=0.05).problem
    finally:
        nvml.answering.set()


def test_a_user_is_a_number_where_users_have_no_names(monkeypatch):
    monkeypatch.setitem(sys.modules, "pwd", None)
    assert user_of(os.getpid()) == str(os.getuid())
