"""The handle on a server process: state of the running server, exit status, and stop."""

import json
import os
import sys
import threading
import time

import pytest

from pytest_llmperf.clock import seconds
from pytest_llmperf.errors import EngineError, EnvironmentMissing
from pytest_llmperf.process import supervisor, tree
from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.reaper import alone_ns
from pytest_llmperf.process.supervisor import Supervised
from pytest_llmperf.testing.waiting import until

if sys.platform != "linux":
    pytest.skip("supervision is Linux only", allow_module_level=True)


class TickingClock:
    """A clock that advances by one second at each reading."""

    def __init__(self):
        self.now = 0

    def now_ns(self):
        self.now += seconds(1)
        return self.now

    def sleep_ns(self, duration_ns):
        self.now += duration_ns


@pytest.fixture
def start(tmp_path):
    servers = []

    def start_(*argv, clock=None, **fields):
        run_dir = tmp_path / f"run{len(servers)}"
        fields = {"env": dict(os.environ), "grace_s": 2.0, **fields}
        servers.append(Supervised.start(Launch(argv, cwd=tmp_path, run_dir=run_dir, **fields), clock))
        return servers[-1]

    yield start_
    for server in servers:
        server.stop(0)


def test_running_server_has_pid_and_no_ending(start):
    server = start("sleep", "60", clock=TickingClock())
    assert server.ending() is None
    assert server.ending() is None
    assert server.wait_exit(0.01) is None
    assert server.pids() == (server.pid,)
    assert tree.is_alive(tree.identity_of(server.pid))
    assert repr(server) == f"<Supervised sleep running with pid {server.pid}>"
    assert server.evidence().ending == "running"
    assert server.evidence().elapsed_s == 2.0


def test_stopped_server_has_ending_and_reaped_processes(start):
    server = start("sleep", "60")
    report = server.stop()
    assert server.ending() is not None
    assert server.ending() == "signal 15 (SIGTERM)"
    assert repr(server) == "<Supervised sleep exited with signal 15 (SIGTERM)>"
    assert server.pids() == ()
    assert [process.name for process in report.reaped] == ["sleep"]
    assert (report.why, report.survivors, any(process.sigkill for process in report.reaped)) == ("stop", (), False)
    assert report.duration_s > 0


def test_the_report_is_on_disk_when_stop_returns(start):
    server = start("sleep", "60")
    report = server.stop()
    written = json.loads((server.launch.run_dir / "reaped.json").read_text())
    assert written == json.loads(report.to_json())
    assert sorted(path.name for path in server.launch.run_dir.iterdir()) == ["command.txt", "reaped.json", "server.log"]


def test_second_stop_returns_same_report(start):
    server = start("sleep", "60")
    assert server.stop() is server.stop()


def test_many_threads_may_wait_and_stop(start):
    server = start("sleep", "60")
    said = []
    waiting = [threading.Thread(target=lambda: said.append(server.wait_exit(60))) for _ in range(4)]
    stopping = [threading.Thread(target=lambda: said.append(server.stop())) for _ in range(4)]
    for thread in waiting + stopping:
        thread.start()
    for thread in waiting + stopping:
        thread.join(60)
    assert said.count("signal 15 (SIGTERM)") == 4
    assert len({id(report) for report in said if not isinstance(report, str)}) == 1


def test_a_second_stop_can_shorten_the_grace(start):
    server = start("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done")
    until(lambda: server.evidence().log_tail == ("deaf",))
    patient = threading.Thread(target=server.stop, args=(600.0,))
    patient.start()
    time.sleep(0.1)
    server.stop(0.0)
    patient.join(60)
    assert not patient.is_alive()
    assert server.ending() == "signal 9 (SIGKILL)"


@pytest.mark.parametrize(("leader_first", "order", "until_then"), [
    (True, ["leader", "child"], "sleep 0.4"), (False, ["child", "leader"], "until [ -e told ]; do sleep 0.02; done"),
])
def test_leader_first_option_determines_sigterm_order(start, tmp_path, leader_first, order, until_then):
    """vLLM's API server sends its engine process a SIGTERM; ours in addition would end that process in its teardown."""
    child = '(trap "echo child >> told; exit 0" TERM; echo up > child; while :; do sleep 0.02; done) &'
    trap = f"""trap '(trap "" TERM; {until_then}); echo leader >> told; exit 0' TERM"""
    leader = f"{trap}; until [ -e child ]; do sleep 0.02; done; echo up > ready; while :; do sleep 0.02; done"
    server = start("sh", "-c", f"{child} {leader}", grace_s=60.0, leader_first=leader_first)
    until((tmp_path / "ready").exists)
    assert not any(process.sigkill for process in server.stop().reaped)
    assert (tmp_path / "told").read_text().split() == order


def test_a_leader_has_all_but_the_end_of_the_grace():
    """Longer than the 10 s that vLLM beside LMCache may take, at the default of 15."""
    assert alone_ns(seconds(15)) == seconds(12)
    assert alone_ns(seconds(1)) == seconds(0.5)


def test_leader_has_half_of_short_grace_period_before_children_are_killed(start, tmp_path):
    script = "trap : TERM; sleep 60 & echo $! > pid; mv pid child; while :; do sleep 0.02; done"
    server = start("sh", "-c", script, grace_s=4.0, leader_first=True)
    until((tmp_path / "child").exists)
    child = int((tmp_path / "child").read_text())
    stopping = threading.Thread(target=server.stop)
    began_s = time.monotonic()
    stopping.start()
    until(lambda: child not in server.pids())
    assert time.monotonic() - began_s >= 1.9
    stopping.join()
    sigkilled = {process.pid for process in server.stop().reaped if process.sigkill}
    assert server.pid in sigkilled
    assert child not in sigkilled


def test_exception_in_block_stops_server_and_is_raised(start):
    with pytest.raises(ZeroDivisionError), start("sleep", "60") as server:
        raise ZeroDivisionError
    assert server.ending() is not None


def test_exit_callback_is_called_once_after_server_exit(start):
    server = start("sleep", "60")
    calls = []
    server.on_gone(lambda: calls.append(server.ending() is None))
    assert calls == []
    server.stop()
    server.stop()
    assert calls == [False]


def test_server_has_given_environment_tag_and_default_signals(start):
    script = "echo $COLOUR $LLMPERF_TAG; grep -E 'SigIgn|SigBlk' /proc/self/status; readlink /proc/self/fd/0"
    server = start("sh", "-c", script, env={"COLOUR": "red", "PATH": os.environ["PATH"]})
    assert server.wait_exit(60) == "exit code 0"
    tagged, blocked, ignored, stdin = server.evidence().log_tail
    assert tagged == f"red {server.launch.tag}"
    assert int(blocked.split()[1], 16) == 0
    assert int(ignored.split()[1], 16) & (1 << 0 | 1 << 1 | 1 << 14) == 0  # HUP, INT, TERM
    assert stdin == "/dev/null"


def test_the_server_inherits_no_pipe_of_ours(start):
    other = start("sleep", "60")
    server = start("sh", "-c", "ls -l /proc/self/fd | grep -c pipe:")
    assert server.wait_exit(60) == "exit code 0"
    assert server.evidence().log_tail == ("2",)  # stdout and stderr, which go to the log
    assert other.ending() is None


def test_server_and_watchdog_have_separate_sessions(start):
    server = start("sleep", "60")
    assert len({os.getsid(0), os.getsid(server.pid), os.getsid(server._watchdog.pid)}) == 3


def test_abandoned_start_leaves_no_watchdog(tmp_path):
    server = Supervised(Launch(("sleep", "60"), dict(os.environ), tmp_path, tmp_path, tag="0-1-1-x"), TickingClock())
    watchdog = tree.identity_of(server._watchdog.pid)
    server._abandon()
    assert not tree.is_alive(watchdog)


def test_non_executable_program_raises_environment_missing_without_secrets(start, tmp_path):
    (tmp_path / "engine").write_text("not executable")
    with pytest.raises(EnvironmentMissing, match="cannot start") as caught:
        start(str(tmp_path / "engine"), "--api-key", "hush-hush")
    assert "hush-hush" not in str(caught.value)
    assert caught.value.evidence.ending == "never started"


def test_titles_of_workers_do_not_overwrite_the_tag(start):
    """py-setproctitle writes over /proc/PID/environ, where the tag is, unless it is told not to."""
    server = start("sleep", "60")
    assert tree.environment_value(server.pid, "SPT_NOENV") == "1"
    assert tree.environment_value(server.pid, "LLMPERF_TAG") == server.launch.tag


def test_a_launch_shows_no_secrets(tmp_path):
    launch = Launch(("vllm", "--api-key", "abc"), {"HF_TOKEN": "canary-value"}, tmp_path, tmp_path)
    assert repr(launch) == "Launch(vllm --api-key ***)"


def test_crashing_watchdog_kills_server(start, tmp_path):
    """An order that it cannot read is a fault of ours; the server must not outlive it."""
    server = start("sleep", "60")
    server._watchdog.stdin.write(b"no json\n")
    server._watchdog.stdin.flush()
    assert server.wait_exit(60) == "signal 9 (SIGKILL)"
    assert not server.pids()
    server.stop()
    assert "JSONDecodeError" in (server.launch.run_dir / "watchdog.log").read_text()


@pytest.mark.parametrize(("taken", "named"), [("run", "The run folder"), ("run/watchdog.log/x", "watchdog.log")])
def test_unwritable_run_folder_is_refused_by_supervisor(tmp_path, taken, named):
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).touch()
    with pytest.raises(EngineError, match=rf"^{named} cannot be written: .*--llmperf-runs=DIR"):
        Supervised.start(Launch(("true",), {}, tmp_path, tmp_path / "run"))


def test_server_stops_after_interrupt_left_event_locked(start, monkeypatch):
    """An interrupt in `Event.wait` has this effect: the thread that reads the watchdog's reports never goes on."""
    monkeypatch.setattr(supervisor, "STOP_MARGIN_S", 0.5)
    monkeypatch.setattr(supervisor, "KILL_WAIT_S", 0.5)
    server = start("sleep", "60")
    locked = server._status.exited._cond
    locked.acquire()
    identity = tree.identity_of(server.pid)
    server.stop(0)
    assert not tree.is_alive(identity)
    locked.release()
    server._status.join(60)
