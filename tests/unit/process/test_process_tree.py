"""Process identity and process trees: a signal reaches exactly the intended process."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pytest_llmperf.process import tree

if sys.platform != "linux":
    pytest.skip("/proc is Linux only", allow_module_level=True)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, "WHOSE": "ours"})
    while tree.environment_value(process.pid, "WHOSE") is None:  # not there yet in the midst of an exec
        time.sleep(0.001)
    yield process
    process.kill()
    process.wait()


def test_current_process_is_alive_with_identity():
    identity = tree.identity_of(os.getpid())
    assert identity.pid == os.getpid()
    assert tree.is_alive(identity)
    assert not tree.is_alive(tree.Identity(identity.pid, identity.starttime - 1))


def test_missing_pid_has_no_identity_and_gets_no_signal():
    assert tree.read_stat(2**30) is None
    assert tree.identity_of(2**30) is None
    assert not tree.send(tree.Identity(2**30, 1), signal.SIGKILL)


@pytest.mark.parametrize("name", ["a) R 1 (b", "two words", "((", ")"])
def test_process_name_with_special_characters_is_read(name, tmp_path):
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "60"])
    try:
        stat = tree.read_stat(process.pid)
        assert (stat.name, stat.ppid) == (name, os.getpid())
        assert stat.alive
    finally:
        process.kill()
        process.wait()


def test_descendants_list_parents_before_children():
    script = "sleep 60 & echo; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        shell.stdout.readline()
        below = tree.descendants(os.getpid())
        mine = [stat for stat in below if stat.identity.pid == shell.pid or stat.ppid == shell.pid]
        assert [stat.ppid for stat in mine] == [os.getpid(), shell.pid]
        assert [stat.identity for stat in tree.descendants(shell.pid)] == [mine[1].identity]
        for stat in reversed(mine):
            os.kill(stat.identity.pid, signal.SIGKILL)


def test_ancestors_begin_with_parent_and_are_unique():
    pids = tree.ancestors(os.getpid())
    assert pids[0] == os.getppid()
    assert len(set(pids)) == len(pids)


def test_zombie_process_is_not_alive():
    process = subprocess.Popen(["true"])
    identity = tree.identity_of(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert tree.read_stat(process.pid).state == "Z"
    assert not tree.is_alive(identity)
    process.wait()
    assert tree.identity_of(process.pid) != identity


def test_environment_value_is_read_from_process_start(sleeper):
    assert tree.environment_value(sleeper.pid, "WHOSE") == "ours"
    assert tree.environment_value(sleeper.pid, "WHO") is None
    assert tree.environment_value(2**30, "WHOSE") is None


def test_a_signal_reaches_only_the_very_process(sleeper):
    identity = tree.identity_of(sleeper.pid)
    assert not tree.send(tree.Identity(identity.pid, identity.starttime + 1), signal.SIGKILL)
    assert not tree.send(identity, signal.SIGKILL, tag=("WHOSE", "theirs"))
    assert sleeper.poll() is None
    assert tree.send(identity, signal.SIGKILL, tag=("WHOSE", "ours"))
    assert sleeper.wait(5) == -signal.SIGKILL


@pytest.mark.parametrize(("status", "words"), [
    (0, "exit code 0"), (2 << 8, "exit code 2"), (9, "signal 9 (SIGKILL)"), (11 | 128, "signal 11 (SIGSEGV)"),
    (50, "signal 50"),
])
def test_wait_status_is_described_in_words(status, words):
    assert tree.describe_status(status) == words
