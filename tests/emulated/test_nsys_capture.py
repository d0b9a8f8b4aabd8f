"""A capture of Nsight Systems of an emulated server that runs as a process of its own."""

from contextlib import closing

from pytest_llmperf import closed, random_tokens, vllm
from pytest_llmperf.config.emulation import GPUS, Emulation
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.session.executions import begin_execution
from pytest_llmperf.session.perf import Perf
from pytest_llmperf.session.perf_session import PerfSession
from pytest_llmperf.session.profile import capture_run, installed_nsys
from pytest_llmperf.telemetry.hardware import emulated_hardware


def test_nsys_capture_starts_second_server_under_nsys(tmp_path, nsys_calls):
    spec, load = vllm("tiny", max_model_len=4096), random_tokens(input=20, output=50, arrivals=closed(2), requests=40)
    session = PerfSession(Settings(), tmp_path, emulated_hardware("h200", GPUS), lambda _status: None,
                          emulation=Emulation("h200", clock="real"))
    with closing(session):
        execution = begin_execution(session, "t", "h200")
        Perf(execution).measure(spec, load, runs=1)
        capture_run(execution.series[0], spec, installed_nsys(), tmp_path / "t.1.nsys-rep")
        assert session.pool.pids() == ()
    assert (tmp_path / "t.1.nsys-rep").read_bytes() == b"capture"
    assert [call.split()[0] for call in nsys_calls()] == ["launch", "start", "stop"]
    commands = [path.read_text() for path in sorted(session.run_dir.glob("servers/*/command.txt"))]
    assert ["--session-new=" in command for command in commands] == [False, True]
