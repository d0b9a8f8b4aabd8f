"""A child process that receives commands through its pipes."""

import sys
import time
from pathlib import Path

import pytest

from pytest_llmperf.clock import VirtualClock
from pytest_llmperf.errors import EngineError
from pytest_llmperf.process import kernel
from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.piped import PipedProcess

STUB = Path(__file__).parents[2] / "stubs" / "piped_engine.py"


@pytest.fixture
def begin(tmp_path):
    begun = []

    def begin(*argv):
        launch = Launch(argv=argv or (sys.executable, str(STUB)), env={"TOKEN": "hush-hush"}, cwd=tmp_path,
                        run_dir=tmp_path / "run")
        begun.append(PipedProcess(launch, VirtualClock()))
        return begun[-1]

    yield begin
    for process in begun:
        process.stop(0)


def test_piped_process_answers_commands_in_order(begin):
    process = begin()
    assert process.read() == {"ready": True, "now_ns": 0}
    assert process.call({"sleep": {"ns": 5}}) == {"now_ns": 5}
    assert process.call({"sleep": {"ns": 5}}) == {"now_ns": 10}
    assert process.ending() is None


def test_closed_pipe_ends_process(begin):
    process = begin()
    process.read()
    process._popen.stdin.close()
    assert process.wait_exit(5) == "exit code 0"


def test_process_stops_in_the_middle_of_an_answer(begin):
    """An interrupt ends `call` and leaves an answer that nobody reads: the child waits for a reader of its pipe."""
    process = begin()
    process.read()
    process._popen.stdin.write(b'{"long": 4000000}\n')
    process._popen.stdin.flush()
    assert process._popen.stdout.read(10) == b'{"body": "'
    begun_s = time.monotonic()
    process.stop(15)
    assert time.monotonic() - begun_s < 2
    assert process.ending() == "signal 9 (SIGKILL)"
    process.stop(15)


def test_process_stops_after_interrupt_left_popen_locked(begin, monkeypatch):
    """An interrupt between two instructions of `Popen.poll` has this effect, and `Popen.wait` would never return."""
    monkeypatch.setattr(kernel, "KILL_WAIT_S", 0.5)
    process = begin()
    process.read()
    process._popen._waitpid_lock.acquire()
    process.stop()
    assert process._popen.stdin.closed
    process._popen._waitpid_lock.release()
    assert process.ending() == "signal 9 (SIGKILL)"


def test_a_refused_command_is_an_error_and_the_child_goes_on(begin):
    process = begin()
    process.read()
    with pytest.raises(EngineError, match="refuses: no command nonsense"):
        process.call({"nonsense": 1})
    assert process.call({"sleep": {"ns": 1}})["now_ns"] == 1


def test_error_of_dead_process_contains_exit_code_and_log(begin):
    process = begin()
    process.read()
    with pytest.raises(EngineError, match=r"ended: exit code 3(.|\n)*the reason is here"):
        process.call({"exit": 3})
    with pytest.raises(EngineError, match="ended: exit code 3"):
        process.call({"sleep": {"ns": 1}})


def test_answer_that_is_no_json_object_raises_engine_error(begin):
    process = begin()
    process.read()
    with pytest.raises(EngineError, match="no JSON object: b'no json"):
        process.call({"garbage": 1})


def test_process_killed_during_call_raises_error_with_signal(begin):
    import threading

    process = begin()
    process.read()
    timer = threading.Timer(0.2, process.kill)
    timer.start()
    with pytest.raises(EngineError, match="signal 9"):
        process.call({"hang": 1})


def test_interrupted_call_kills_process(begin, monkeypatch):
    """The next call would read the answer to this one."""

    def interrupted(_process):
        raise KeyboardInterrupt

    process = begin()
    process.read()
    monkeypatch.setattr(PipedProcess, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.call({"sleep": {"ns": 5}})
    assert process.wait_exit(5) == "signal 9 (SIGKILL)"


def test_missing_program_is_an_engine_error(begin):
    with pytest.raises(EngineError, match="no-such-program cannot be started"):
        begin("/nowhere/no-such-program")


@pytest.mark.parametrize(("taken", "named"), [("run", "The run folder"), ("run/server.log/x", "server.log")])
def test_unwritable_run_folder_is_refused_by_piped_process(begin, tmp_path, taken, named):
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).touch()
    with pytest.raises(EngineError, match=rf"^{named} cannot be written: .*--llmperf-runs=DIR"):
        begin()
