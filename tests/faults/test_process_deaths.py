"""Faults 8-13, 18, 19, 24: deaths of the server, of its watchdog, and of what earlier runs left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_llmperf.errors import EnvironmentMissing, StopFailed
from pytest_llmperf.process import leftovers, tree
from pytest_llmperf.process.launch import Launch
from pytest_llmperf.process.supervisor import Supervised
from pytest_llmperf.process.unit import TAG
from pytest_llmperf.testing.waiting import until

if sys.platform != "linux":
    pytest.skip("supervision is Linux only", allow_module_level=True)

STUBS = Path(__file__).with_name("stubs")
ROOT = Path(__file__).parents[2]


def launch(folder, *options, **fields):
    fields = {"grace_s": 0.3, "abandoned_grace_s": 0.3, **fields}
    return Launch(
        argv=(sys.executable, "-I", "-S", str(STUBS / "stub_server.py"), str(folder), *options),
        env=dict(os.environ), cwd=folder, run_dir=folder / "run", **fields,
    )


def roles(folder):
    files = [path for path in (folder / "pids").iterdir() if path.suffix != ".tmp"]
    return {path.name: tree.Identity(*map(int, path.read_text().split())) for path in files}


@pytest.fixture
def started(tmp_path):
    """Start the stub with these parts and wait until all of them are there."""
    servers = []

    def start(*parts, **fields):
        options = [word for part in parts for word in ("--with", part)]
        servers.append(Supervised.start(launch(tmp_path, *options, **fields)))
        until((tmp_path / "ready").exists)
        return servers[-1]

    yield start
    for server in servers:
        server.stop(0)


@pytest.mark.parametrize("code", [0, 2])
def test_an_early_exit_is_known_at_once_with_evidence(tmp_path, code):
    """Faults 18 and 19."""
    argv = ("sh", "-c", f"echo the reason; exit {code}")
    server = Supervised.start(Launch(argv, dict(os.environ), tmp_path, tmp_path / "run"))
    assert server.wait_exit(30.0) == f"exit code {code}"
    evidence = server.evidence()
    assert evidence.log_tail == ("the reason",)
    assert evidence.ending == f"exit code {code}"
    assert f"exit {code}" in evidence.command
    server.stop()


def test_a_missing_program_is_named(tmp_path):
    with pytest.raises(EnvironmentMissing, match="no-such-engine"):
        Supervised.start(Launch(("no-such-engine",), dict(os.environ), tmp_path, tmp_path / "run"))


def test_killed_server_without_output_is_noticed(tmp_path):
    """Fault 24. The watchdog sleeps until something happens: without a wake-up it would never notice."""
    with Supervised.start(Launch(("sleep", "600"), dict(os.environ), tmp_path, tmp_path / "run")) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait_exit(60) == "signal 9 (SIGKILL)"
        assert server.ending() is not None


def test_children_of_dead_server_are_reaped(started, tmp_path):
    server = started("child", "detached", grace_s=2.0)  # time for the child, the other is deaf
    os.kill(server.pid, signal.SIGKILL)
    server.wait_exit(60)
    who = roles(tmp_path)
    assert tree.is_alive(who["child"])
    assert set(server.pids()) == {who["child"].pid, who["detached"].pid}
    report = server.stop()
    assert not [role for role, identity in who.items() if tree.is_alive(identity)]
    assert {process.pid for process in report.reaped} >= {identity.pid for identity in who.values()}
    assert [process.pid for process in report.reaped if process.sigkill] == [who["detached"].pid]


def test_server_that_ignores_sigterm_is_killed_after_grace_period(tmp_path):
    """Fault 10."""
    server = Supervised.start(launch(tmp_path, "--ignore-term"))
    until((tmp_path / "ready").exists)
    began_s = time.monotonic()
    report = server.stop(grace_s=0.4)
    assert time.monotonic() - began_s >= 0.35
    assert server.ending() == "signal 9 (SIGKILL)"
    assert [process.pid for process in report.reaped if process.sigkill] == [server.pid]


def test_a_stopped_server_still_ends_on_sigterm(started):
    server = started()
    os.kill(server.pid, signal.SIGSTOP)
    assert not any(process.sigkill for process in server.stop(grace_s=60.0).reaped)
    assert server.ending() == "signal 15 (SIGTERM)"


def test_a_zombie_is_not_alive_and_is_reaped(started, tmp_path):
    """Fault 11."""
    server = started("zombie")
    zombie = roles(tmp_path)["zombie"]
    until(lambda: tree.read_stat(zombie.pid).state == "Z")
    assert not tree.is_alive(zombie)
    assert zombie.pid not in server.pids()
    server.stop()
    assert tree.identity_of(zombie.pid) != zombie


def test_orphans_that_end_while_the_server_runs_are_collected(tmp_path):
    argv = ("sh", "-c", "(sleep 0.05 & echo $! > orphan); echo up > ready; sleep 60")
    with Supervised.start(Launch(argv, dict(os.environ), tmp_path, tmp_path / "run")):
        until((tmp_path / "ready").exists)
        orphan = int((tmp_path / "orphan").read_text())
        until(lambda: tree.read_stat(orphan) is None)


def test_server_dies_with_watchdog_and_stop_finds_children_by_tag(started, tmp_path):
    """Fault 8, with the run alive."""
    server = started("child", "detached")
    who = roles(tmp_path)
    server._watchdog.kill()
    assert "watchdog was lost" in server.wait_exit(60)
    until(lambda: not tree.is_alive(who["server"]))
    assert tree.is_alive(who["detached"])
    report = server.stop()
    assert report.why == "watchdog lost"
    assert {process.pid for process in report.reaped} == {who["child"].pid, who["detached"].pid}
    assert not any(map(tree.is_alive, who.values()))
    assert (tmp_path / "segment").read_text() in report.shm_removed
    assert (tmp_path / "run" / "reaped.json").exists()


@pytest.mark.parametrize("lost", ["nobody", "server", "watchdog"])
def test_shared_memory_of_a_dead_process_is_removed(started, tmp_path, lost):
    """The server or its watchdog may be dead when the stop begins."""
    server = started("segment")
    semaphore = Path("/dev/shm") / (tmp_path / "semaphore").read_text()
    until(lambda: semaphore.name in {segment.name for segment in server._status.segments})
    if lost == "server":
        os.kill(server.pid, signal.SIGKILL)
    elif lost == "watchdog":
        server._watchdog.kill()
    server.wait_exit(0.1 if lost == "nobody" else 60)
    assert semaphore.name in server.stop().shm_removed
    assert not semaphore.exists()


BYSTANDER = """
import mmap, multiprocessing, os, sys
from multiprocessing import shared_memory
spawn = multiprocessing.get_context("spawn")
print(flush=True)
sys.stdin.readline()
locks = [spawn.Lock() for _ in range(20)]
memory = shared_memory.SharedMemory(create=True, size=4096)
tensor = f"torch_{os.getpid()}_1_0"  # as torch names the file of a tensor that it shares
handle = os.open(f"/dev/shm/{tensor}", os.O_CREAT | os.O_RDWR, 0o600)
os.truncate(handle, 4096)
mapped = mmap.mmap(handle, 4096)
transit = f"psm_{os.getpid():x}"
os.close(os.open(f"/dev/shm/{transit}", os.O_CREAT, 0o600))
print(transit, memory.name, tensor, *(f"sem.{lock._semlock.name[1:]}" for lock in locks), flush=True)
sys.stdin.readline()
for name in (transit, tensor):
    os.unlink(f"/dev/shm/{name}")
memory.close()
memory.unlink()
"""


@pytest.mark.parametrize("lost", ["nobody", "watchdog"])
def test_locks_memory_and_tensors_of_living_bystander_survive_cleanup(started, tmp_path, lost):
    argv = [sys.executable, "-c", BYSTANDER]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bystander:
        bystander.stdout.readline()
        server = started("segment")
        print(file=bystander.stdin, flush=True)
        transit, *used = bystander.stdout.readline().split()
        semaphore = (tmp_path / "semaphore").read_text()
        until(lambda: semaphore in {segment.name for segment in server._status.segments})
        if lost == "watchdog":
            server._watchdog.kill()
            server.wait_exit(60)
        report = server.stop()
        left = [name for name in (transit, *used) if (Path("/dev/shm") / name).exists()]
        print(file=bystander.stdin, flush=True)
    assert left == [transit, *used]
    assert len(used) == 22
    assert report.shm_removed == (semaphore,)
    assert transit in report.shm_unproven
    assert not {*used} & {*report.shm_unproven}
    assert transit in (tmp_path / "run" / "reaped.json").read_text()
    assert transit in report.shm_note


@pytest.fixture
def orphaned(tmp_path):
    """A server whose pytest run and watchdog were both killed. Yields the surviving processes by role."""
    parent = subprocess.Popen(
        [sys.executable, str(STUBS / "hold_server.py"), str(tmp_path), "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    until((tmp_path / "ready").exists)
    until((tmp_path / "watchdog").exists)
    who = roles(tmp_path)
    os.kill(int((tmp_path / "watchdog").read_text()), signal.SIGKILL)
    parent.kill()
    parent.wait()
    server = who.pop("server")
    until(lambda: not tree.is_alive(server))
    yield who
    for identity in who.values():
        tree.send(identity, signal.SIGKILL)


def test_leftovers_of_a_dead_run_are_swept(orphaned):
    """Faults 8 and 13."""
    swept = leftovers.sweep(pids=[identity.pid for identity in orphaned.values()])
    assert not any(map(tree.is_alive, orphaned.values()))
    # Not all of them, where a run beside this test has swept, too.
    assert {leftover.identity for leftover in swept.killed} <= set(orphaned.values())
    assert all(f"pid {leftover.identity.pid}" in str(swept) for leftover in swept.killed)
    assert not leftovers.sweep(pids=[identity.pid for identity in orphaned.values()])


def test_a_server_of_a_living_run_is_left_alone(started, tmp_path):
    """Fault 13."""
    started("child")
    who = roles(tmp_path)
    assert not leftovers.sweep(pids=[identity.pid for identity in who.values()])
    assert all(map(tree.is_alive, who.values()))


@pytest.fixture
def sleeper():
    processes = []

    def start(**env):
        processes.append(subprocess.Popen(["sleep", "60"], env={**os.environ, **env}))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("tag", ["", "nonsense", f"{os.getuid() + 1}-1-1-other-user", f"{os.getuid()}-x-1-n"])
def test_processes_without_a_tag_of_ours_are_never_touched(sleeper, tag):
    stranger = sleeper(**{TAG: tag})
    assert not leftovers.sweep(pids=[stranger.pid])
    assert stranger.poll() is None


def test_a_reused_pid_is_not_killed(sleeper):
    """Fault 12: a record names the pid of a process that has gone; a foreign process has the pid now."""
    stranger = sleeper()
    now = tree.identity_of(stranger.pid)
    tag = leftovers.Tag.parse(f"{os.getuid()}-1-1-gone")
    stale = leftovers.Leftover(tree.Identity(now.pid, now.starttime - 1), "vllm", tag)
    same_time = leftovers.Leftover(now, "vllm", tag)
    leftovers.kill([stale, same_time], leftovers.SystemClock(), limit_s=0.05)
    time.sleep(0.05)
    assert stranger.poll() is None


def test_leftover_with_living_watchdog_is_not_killed(sleeper):
    tag = f"{os.getuid()}-999999999-1-{os.getpid()}"
    watchdog = sleeper(**{leftovers.WATCHDOG_TAG: tag})
    until(lambda: tree.environment_value(watchdog.pid, leftovers.WATCHDOG_TAG) == tag)
    server = sleeper(**{TAG: tag})
    until(lambda: tree.environment_value(server.pid, TAG) == tag)
    swept = leftovers.sweep(pids=[server.pid])
    assert [leftover.identity.pid for leftover in swept.pending] == [server.pid]
    assert server.poll() is None


def test_fork_that_inherits_control_pipe_does_not_keep_server_alive(tmp_path):
    """A user's fork inherits the write end; the pidfd of the parent tells the watchdog all the same."""
    script = (
        "import os, sys, time, pathlib\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from hold_server import Supervised, held, wait_for\n"
        "start = Supervised.start\n"
        "def start_and_fork(launch):\n"
        "    server = start(launch)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        time.sleep(60)\n"
        "        os._exit(0)\n"
        "    pathlib.Path(sys.argv[2], 'fork').write_text(str(pid))\n"
        "    return server\n"
        "Supervised.start = start_and_fork\n"
        "with held(pathlib.Path(sys.argv[2]), 0, 0.3):\n"
        "    wait_for(pathlib.Path(sys.argv[2], 'finish'))\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(STUBS), str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    until((tmp_path / "ready").exists)
    until((tmp_path / "fork").exists)
    who = roles(tmp_path)
    parent.kill()
    parent.wait()
    try:
        until(lambda: not any(map(tree.is_alive, who.values())))
    finally:
        os.kill(int((tmp_path / "fork").read_text()), signal.SIGKILL)


def test_survivors_are_named(started, tmp_path):
    """No process survives SIGKILL on this machine, so the test inserts a report with a survivor."""
    server = started()
    report = server.stop()
    identity = tree.identity_of(os.getpid())
    from pytest_llmperf.process.unit import Reaped, StopReport

    server.report = StopReport(
        report.tag, "stop", survivors=(Reaped(identity.pid, identity.starttime, "x", "alive", True),)
    )
    with pytest.raises(StopFailed, match=str(identity.pid)):
        server.stop()
    server.report = report


UNPROVEN = """
from pathlib import Path

def test_x(perf):
    perf.check(perf.measure(stub(), FEW), "error_rate == 0")
    Path("/dev/shm/@@").touch()
"""


def test_segment_of_unknown_creator_is_named_in_summary_and_run_folder(suite):
    name = f"psm_0{os.getpid():x}"
    path = Path("/dev/shm") / name
    try:
        result, _ = suite.run(UNPROVEN.replace("@@", name))
        assert path.exists()
    finally:
        path.unlink(missing_ok=True)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"llmperf: Not removed from /dev/shm: *{name}*"])
    (report,) = suite.folder.rglob("reaped.json")
    assert name in json.loads(report.read_text())["shm_unproven"]
