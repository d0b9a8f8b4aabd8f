"""What ends with its process: a sweep removes it once the process is dead, and never before."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.process.places import private_folder, scratch_folder
from pytest_llmperf.process.ports import reserve_port
from pytest_llmperf.process.scratch import Scratch, lock, sweep, temporaries, write_whole

HOLD = """
import sys
from pathlib import Path
from pytest_llmperf.process.scratch import Scratch, lock
made = Scratch(Path(sys.argv[1]), "load-")
(made.path / "answers").write_text("raw")
held = lock(Path(sys.argv[1]) / "20000.lock")
print(made.path, flush=True)
sys.stdin.read()
"""
WRITE = """
import sys
from pathlib import Path
from pytest_llmperf.process.scratch import write_whole
print("begun", flush=True)
while True:
    for letter in b"ab":
        write_whole(Path(sys.argv[1]), bytes([letter]) * 5_000_000)
"""
only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


@pytest.fixture
def child(tmp_path):
    """A process that runs this code on this path; gives it and its first line."""
    made = []

    def child(code, path=tmp_path):
        command = [sys.executable, "-c", code, path]
        made.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return made[-1], made[-1].stdout.readline().strip()

    yield child
    for process in made:
        process.kill()
        process.communicate()


def test_scratch_folder_survives_sweep_until_process_is_killed(tmp_path, child):
    holder, folder = child(HOLD)
    assert sweep(tmp_path.iterdir()) == []
    assert [path.name for path in Path(folder).iterdir()] == ["answers"]
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert {path.name for path in sweep(tmp_path.iterdir())} == {Path(folder).name, "20000.lock"}
    assert list(tmp_path.iterdir()) == []


def test_scratch_that_was_left_is_removed_by_the_next_sweep(tmp_path):
    left, held = Scratch(tmp_path, "load-"), Scratch(tmp_path, "load-")
    left.leave()
    assert sweep(tmp_path.iterdir()) == [left.path]
    held.remove()
    assert list(tmp_path.iterdir()) == []


def test_sweep_follows_no_symbolic_link(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("kept")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "folder").symlink_to(tmp_path / "outside")
    (inside / "file").symlink_to(tmp_path / "outside" / "file")
    made = Scratch(inside, "load-")
    (made.path / "folder").symlink_to(tmp_path / "outside")
    made.leave()
    assert sweep(inside.iterdir()) == [made.path]
    assert (tmp_path / "outside" / "file").read_text() == "kept"


@only_root
def test_sweep_leaves_files_of_another_user(tmp_path):
    for path in (tmp_path / "folder", tmp_path / "7.lock"):
        path.mkdir() if path.suffix == "" else path.touch()
        os.chown(path, 12345, 12345)
    assert sweep(tmp_path.iterdir()) == []
    assert len(list(tmp_path.iterdir())) == 2


def test_lock_of_removed_file_does_not_count(tmp_path):
    held = lock(tmp_path / "x.lock")
    assert lock(tmp_path / "x.lock") is None
    (tmp_path / "x.lock").unlink()
    fresh = lock(tmp_path / "x.lock")
    assert fresh is not None
    for descriptor in (held, fresh):
        os.close(descriptor)


def test_closed_port_lease_leaves_no_lock_file(tmp_path):
    reserve_port(random.Random(1), folder=tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_killed_writer_leaves_whole_file_and_sweep_removes_temporary(tmp_path, child):
    rng, left = random.Random(1), 0
    for _ in range(15):
        writer, _ = child(WRITE, tmp_path / "report.html")
        time.sleep(rng.uniform(0.0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        left += len(temporaries([tmp_path]))
        sweep(temporaries([tmp_path]))
        assert [path for path in tmp_path.iterdir() if path.name != "report.html"] == []
        if (tmp_path / "report.html").exists():
            assert len(set((tmp_path / "report.html").read_bytes())) == 1
    assert left > 0


def test_temporary_of_living_writer_survives_sweep(tmp_path):
    """Four threads write without a pause while a fifth thread sweeps."""
    over, written = threading.Event(), []

    def write(name):
        for number in range(200):
            write_whole(tmp_path / name, f"{number}".encode())
        made = Scratch(tmp_path, "load-")
        written.append((tmp_path / name).read_text())
        made.remove()

    def clear():
        while not over.is_set():
            sweep([*temporaries([tmp_path]), *tmp_path.glob("load-*")])

    writers = [threading.Thread(target=write, args=(f"file{number}",)) for number in range(4)]
    sweeper = threading.Thread(target=clear)
    for thread in (sweeper, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    sweeper.join()
    assert written == ["199"] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"file{number}" for number in range(4)]


def test_private_folder_excludes_other_users(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert scratch_folder() == private_folder(tmp_path / f"llmperf-scratch-{os.getuid()}")
    assert scratch_folder().stat().st_mode & 0o777 == 0o700


def test_planted_link_in_place_of_private_folder_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "dangling", "file", "open"):
        with pytest.raises(InfrastructureError, match=f"{name} is not a folder of uid .* may enter; remove it"):
            private_folder(tmp_path / name)
    assert not (tmp_path / "nothing").exists()


def test_written_file_has_the_mode_that_the_umask_gives(tmp_path):
    umask = os.umask(0o027)
    try:
        write_whole(tmp_path / "report.html", b"x")
    finally:
        os.umask(umask)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o640


def test_missing_folder_of_written_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "report.html", b"x")
