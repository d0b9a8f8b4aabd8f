"""The canary of a host: fixed work on one core and in host memory, and the GPU's part in a process of its own."""

import ctypes
import json

import pytest

from pytest_llmperf.telemetry import canary_gpu
from pytest_llmperf.telemetry.canary import canary

HOST = {"one_core_ms", "host_copy_gb_per_s"}


@pytest.fixture
def program(tmp_path):
    """A program in the place of the one for the GPU."""
    def program(text):
        path = tmp_path / "gpu.py"
        path.write_text(text)
        return path

    return program


def test_values_of_gpu_program_join_values_of_host(program):
    values = canary(program('print(\'{"kernel_launch_us": 2.34567, "to_host_gb_per_s": 55.0, "other": [1]}\')'))
    assert values.keys() == {*HOST, "kernel_launch_us", "to_host_gb_per_s"}
    assert values["kernel_launch_us"] == 2.346
    assert all(values[name] > 0 for name in HOST)


@pytest.mark.parametrize(
    ("text", "reason", "timeout_s"),
    [("raise SystemExit(3)", "exit code 3", 60), ("import time; time.sleep(60)", "did not answer within 0.5 s", 0.5),
     ("print([1])", "exit code 0", 60)],
)
def test_failing_gpu_program_is_noted_as_not_seen(program, text, reason, timeout_s):
    values = canary(program(text), timeout_s=timeout_s)
    assert values.keys() == {*HOST, "not_seen"}
    assert reason in values["not_seen"]


def test_host_without_driver_library_has_reason_for_missing_values(monkeypatch, capsys):
    monkeypatch.setattr(canary_gpu, "LIBRARY", "libno-such-driver.so")
    canary_gpu.main()
    assert "libno-such-driver.so" in json.loads(capsys.readouterr().out)["not_seen"]


def test_driver_without_a_function_is_refused_by_its_name():
    with pytest.raises(OSError, match=r"^cuNoSuchCall: error -1$"):
        canary_gpu.Driver(object()).call("cuNoSuchCall")


class FakeLibrary:
    """Notes the driver's functions that are called; `failing` returns an error."""

    def __init__(self, failing=None):
        self.calls, self.failing = [], failing

    def __getattr__(self, name):
        def function(*_arguments):
            self.calls.append(name)
            return 209 if name == self.failing else 0

        return function


def test_gpu_program_measures_launches_and_copies_by_driver_calls(monkeypatch, capsys):
    library = FakeLibrary()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    canary_gpu.main()
    values = json.loads(capsys.readouterr().out)
    assert values.keys() == {"kernel_launch_us", "kernel_round_trip_us", "to_host_gb_per_s"}
    assert library.calls[:4] == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert library.calls.count("cuMemcpyDtoH_v2") == canary_gpu.REPEATS


def test_failed_kernel_has_reason_and_copy_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: FakeLibrary("cuModuleLoadData"))
    canary_gpu.main()
    values = json.loads(capsys.readouterr().out)
    assert values.keys() == {"not_seen", "to_host_gb_per_s"}
    assert values["not_seen"] == "cuModuleLoadData: error 209"
