"""Where temporary files, locks and homes go, on machines that lack some of these places."""

import os
import tempfile
from pathlib import Path

import pytest

from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.process.variables import inherited_environment
from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.process.places import check_shared_memory, not_shared_by, remarks, temporary_folder

OVERLAY = "1 0 0:1 / / rw - overlay overlay rw"
EMPTY_DIR = "2 1 8:1 /var/lib/kubelet/pods/7/volumes/kubernetes.io~empty-dir/tmp /tmp rw - ext4 /dev/sda rw"
MEMORY = "3 1 0:9 / /tmp rw - tmpfs tmpfs rw"
HOST = "4 1 8:1 /srv/locks /tmp rw - ext4 /dev/sda rw"


@pytest.fixture
def proc(tmp_path):
    """/proc/self in a container with these mounts."""
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns" / "pid").touch()

    def write(*mounts):
        (tmp_path / "mountinfo").write_text("\n".join(mounts))
        return tmp_path

    return write


@pytest.mark.parametrize(("mounts", "strangers"), [
    ([OVERLAY], "other containers"),
    ([OVERLAY, MEMORY], "other containers"),
    ([OVERLAY, EMPTY_DIR], "other pods"),
    ([OVERLAY, HOST], ""),
    ([OVERLAY, HOST, MEMORY], "other containers"),  # the last mount hides the one before
    ([OVERLAY, MEMORY, HOST], ""),
    ([], ""),
])
def test_mount_of_temporary_folder_decides_who_cannot_see_a_lock(proc, mounts, strangers):
    assert not_shared_by(Path("/tmp/llmperf-7"), proc(*mounts)) == strangers


def test_place_without_proc_has_no_remark_about_locks(tmp_path):
    assert not_shared_by(tmp_path, tmp_path / "proc") == ""


def test_machine_without_temporary_folder_is_an_error_that_says_what_to_mount(monkeypatch):
    def refuse():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    with pytest.raises(InfrastructureError, match=r"found in \['/tmp'\]: uid \d+ can write none of them. Set TMPDIR"):
        temporary_folder()


def test_missing_shared_memory_is_an_error_that_says_what_to_mount(tmp_path):
    check_shared_memory(tmp_path)
    with pytest.raises(InfrastructureError, match=r"shm cannot be written: No such file or directory. .* an emptyDir"):
        check_shared_memory(tmp_path / "shm")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home below a file, which nobody can make; the temporary folder is of the test."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    monkeypatch.delenv("HF_HOME", raising=False)
    return tmp_path / f"llmperf-home-{os.getuid()}"


def test_locks_of_other_users_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (f"llmperf-{os.getuid()}", "llmperf-4711", "llmperf-99", "llmperf-ports-4711", "llmperf-x"):
        (tmp_path / name).mkdir()
    assert remarks(tmp_path / f"llmperf-{os.getuid()}" / "machine.lock") == [
        "Sessions of uid 4711, 99 on this host do not wait for this session, because each user has a separate lock. "
        "Run all sessions of a host as one user."]


def test_servers_get_a_private_folder_in_place_of_an_unwritable_home(home, tmp_path):
    env = inherited_environment(Environment(("python",), True, None, "here"), tmp_path)
    assert (env["HOME"], "HF_HOME" in env) == (str(home), False)
    assert home.stat().st_mode & 0o777 == 0o700
    assert remarks(tmp_path / "machine.lock") == [
        f"The home {os.environ['HOME']} cannot be written: servers get {home} as their home."]


def test_servers_keep_the_models_of_a_home_that_cannot_be_written(home, tmp_path, monkeypatch):
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    monkeypatch.setattr("pytest_llmperf.engines.process.variables.writable", lambda folder: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    env = inherited_environment(Environment(("python",), True, None, "here"), tmp_path)
    assert (env["HOME"], env["HF_HOME"]) == (str(home), str(tmp_path / ".cache" / "huggingface"))


def test_servers_keep_a_home_that_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    env = inherited_environment(Environment(("python",), True, None, "here"), tmp_path)
    assert env["HOME"] == str(tmp_path)
    assert remarks(tmp_path / "machine.lock", {"HOME": str(tmp_path)}) == []
