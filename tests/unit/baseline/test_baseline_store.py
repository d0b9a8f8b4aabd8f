"""Reading, and writing several files at once: whatever fails at whatever moment, all of an update or nothing of it."""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock, SoftFileLock

from pytest_llmperf.baseline.journal import Disk
from pytest_llmperf.baseline.paths import baseline_path
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError

KIND = "h200"
TESTS = tuple(f"test_{suite}.py::test_{name}" for suite in "ab" for name in "xy")


def files_of(make, value, tests=TESTS):
    return {baseline_path(test, KIND): make.baseline(make.history(value), test=test) for test in tests}


def quick(root):
    """A store that does not wait for the device."""
    return Store(root, disk=DyingDisk())


def write(store, files):
    with store.update() as write_files:
        write_files(files)


def values(baselines):
    return {path: baseline.measurements[""].sessions[0].values("tpot_mean")[0] for path, baseline in baselines.items()}


def texts(root):
    """What lies there without anybody's help."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob("*/[!.]*/[!.]*.json")}


def leftovers(root):
    return list(root.rglob(".*.new"))


class Killed(BaseException):
    """The process is no more."""


class DyingDisk(Disk):
    """A disk on which the process dies at step `at`. A write step dies after half of the data. It skips fsync."""

    def __init__(self, at=10**9):
        self.steps = []
        self.at = at

    def step(self, name, path):
        self.steps.append((name, Path(path).name))
        if len(self.steps) > self.at:
            raise Killed

    def write(self, path, data):
        if len(self.steps) == self.at:
            path.write_bytes(data[: len(data) // 2])
        self.step("write", path)
        path.write_bytes(data)

    def make_folder(self, path):
        self.step("make_folder", path)
        super().make_folder(path)

    def rename(self, source, target):
        self.step("rename", target)
        super().rename(source, target)

    def remove(self, path):
        self.step("remove", path)
        super().remove(path)

    def remove_empty(self, folder):
        self.step("remove_empty", folder)
        super().remove_empty(folder)

    def sync_folder(self, path):
        self.step("sync_folder", path)


class FullDisk(DyingDisk):
    """A disk that is full from step `at` on: writes and new folders fail, other steps still work."""

    def step(self, name, path):
        self.steps.append((name, Path(path).name))
        if len(self.steps) > self.at and name in ("write", "make_folder"):
            raise OSError(errno.ENOSPC, "No space left on device")


class FailingDisk(DyingDisk):
    """From one step on nothing works, the first time for a reason of its own."""

    def step(self, name, path):
        self.steps.append((name, Path(path).name))
        if len(self.steps) - 1 == self.at:
            raise OSError(errno.ENOSPC, "No space left on device")
        if len(self.steps) > self.at:
            raise OSError(errno.EROFS, "Read-only file system")


class BrokenOnce(DyingDisk):
    """One step fails, for no reason of its own."""

    def step(self, name, path):
        self.steps.append((name, Path(path).name))
        if len(self.steps) - 1 == self.at:
            raise OSError(errno.EIO, "Input/output error")


def steps_of_an_update(make, root):
    disk = DyingDisk()
    write(quick(root), files_of(make, 1.0))
    write(Store(root, disk=disk), changes(make))
    return disk.steps


def changes(make):
    """Three files get new content, one goes, and one comes in a new folder."""
    new = files_of(make, 2.0, (*TESTS[1:], "test_c.py::test_z"))
    return {baseline_path(TESTS[0], KIND): None, **new}


def test_missing_folder_reads_as_empty_store(tmp_path):
    store = Store(tmp_path / "baselines")
    assert store.read(TESTS[0], KIND) is None
    assert store.read_all(KIND) == {}
    assert not (tmp_path / "baselines").exists()


def test_store_reads_back_written_baselines(tmp_path, make):
    store = Store(tmp_path / "baselines")
    files = files_of(make, 1.0)
    write(store, files)
    assert store.read_all(KIND) == files
    assert store.read_all("l4") == {}
    assert store.read(f"{TESTS[0]}[h200]", KIND) == files[baseline_path(TESTS[0], KIND)]
    assert not leftovers(tmp_path)


def test_reading_baselines_creates_no_update_folder(tmp_path, make):
    write(Store(tmp_path), files_of(make, 1.0))
    for path in (tmp_path / ".update").iterdir():
        path.unlink()
    (tmp_path / ".update").rmdir()
    Store(tmp_path).read_all(KIND)
    assert not (tmp_path / ".update").exists()


def test_files_of_running_update_are_hidden_from_git(tmp_path, make):
    write(Store(tmp_path), files_of(make, 1.0))
    assert (tmp_path / ".update" / ".gitignore").read_text() == "*\n"
    assert {path.name for path in tmp_path.iterdir()} == {KIND, ".update"}


def test_baseline_of_other_test_is_refused(tmp_path, make):
    write(Store(tmp_path), files_of(make, 1.0))
    with pytest.raises(BaselineError, match=r"h200/a/test_x.json belongs to test_a.py::test_x, not to old/test_a.py"):
        Store(tmp_path).read("old/test_a.py::test_x", KIND)


def test_corrupt_baseline_raises_error(tmp_path, make):
    write(Store(tmp_path), files_of(make, 1.0))
    path = tmp_path / baseline_path(TESTS[0], KIND)
    for broken in (b"", path.read_bytes()[:50]):
        path.write_bytes(broken)
        for read in (lambda: Store(tmp_path).read(TESTS[0], KIND), lambda: Store(tmp_path).read_all(KIND)):
            with pytest.raises(BaselineError, match=rf"{path}.*line \d+, column"):
                read()


def test_unreadable_baseline_raises_error(tmp_path):
    path = tmp_path / baseline_path(TESTS[0], KIND)
    path.mkdir(parents=True)
    with pytest.raises(BaselineError, match="cannot be read"):
        Store(tmp_path).read(TESTS[0], KIND)


def test_update_reads_old_values_and_writes_new_values(tmp_path, make):
    store = Store(tmp_path)
    write(store, files_of(make, 1.0))
    with store.update() as write_files:
        assert set(values(store.read_all(KIND)).values()) == {1.0}
        write_files({})
        write_files(files_of(make, 2.0))
    assert set(values(store.read_all(KIND)).values()) == {2.0}


def test_update_without_content_removes_file(tmp_path, make):
    store = Store(tmp_path)
    write(store, files_of(make, 1.0))
    write(store, changes(make))
    assert values(store.read_all(KIND)) == {
        path: 2.0 for path, baseline in changes(make).items() if baseline is not None
    }


def test_invalid_baseline_is_not_written(tmp_path, make):
    broken = make.baseline(make.stored(make.session(0, anchor=False, tpot_mean=1.0)), test=TESTS[0])
    with pytest.raises(BaselineError, match="anchor"):
        write(Store(tmp_path), {baseline_path(TESTS[0], KIND): broken})
    assert not texts(tmp_path)


def test_killed_update_is_completed_or_discarded_by_next_reader(tmp_path, make):
    steps = steps_of_an_update(make, tmp_path / "whole")
    assert len(steps) > 20
    before, after = set(), set()
    for at in range(len(steps)):
        root = tmp_path / str(at)
        write(quick(root), files_of(make, 1.0))
        old = texts(root)
        with pytest.raises(Killed):
            write(Store(root, disk=DyingDisk(at)), changes(make))
        new = texts(tmp_path / "whole")
        assert all(data in (old.get(path), new.get(path)) for path, data in texts(root).items())  # never torn
        (before if quick(root).read(TESTS[1], KIND).measurements[""].sessions[0].values("tpot_mean")[0] == 1
         else after).add(at)
        assert texts(root) == (old if at in before else new)  # the reader has finished or discarded it
        write(quick(root), files_of(make, 3.0))
        assert set(values(quick(root).read_all(KIND)).values()) <= {2.0, 3.0}
        assert not leftovers(root)
    assert before
    assert after
    assert max(before) < min(after)  # there is one moment at which it happens
    assert steps[max(before)] == ("rename", "journal.json")


def test_killed_recovery_is_repeated_by_next_reader(tmp_path, make):
    steps = steps_of_an_update(make, tmp_path / "whole")
    happened = steps.index(("rename", "journal.json")) + 1
    for at in range(12):
        root = tmp_path / str(at)
        write(quick(root), files_of(make, 1.0))
        with pytest.raises(Killed):
            write(Store(root, disk=DyingDisk(happened)), changes(make))
        with suppress(Killed):
            Store(root, disk=DyingDisk(at)).read_all(KIND)
        assert set(values(quick(root).read_all(KIND)).values()) == {2.0}
        assert texts(root) == texts(tmp_path / "whole")


@pytest.mark.parametrize("disk", [FullDisk, BrokenOnce, FailingDisk])
def test_disk_error_changes_no_file_or_reports_unfinished_update(tmp_path, make, disk):
    steps = steps_of_an_update(make, tmp_path / "whole")
    happened = steps.index(("rename", "journal.json"))
    seen = 0
    for at in range(len(steps)):
        root = tmp_path / str(at)
        write(quick(root), files_of(make, 1.0))
        old = texts(root)
        said = error_of(Store(root, disk=disk(at)), changes(make))
        seen += bool(said)
        assert not said or str(root) in said
        assert not said or "No space left" in said or "Input/output" in said
        if "Nothing was changed" in said:
            assert texts(root) == old
            assert not leftovers(root) or disk is FailingDisk  # the next one removes them
        else:
            assert at > happened or not said
            assert not said or "whoever reads next finishes it" in said
            assert set(values(quick(root).read_all(KIND)).values()) == {2.0}
        write(quick(root), files_of(make, 3.0))
        assert not leftovers(root)
    assert seen > 5


def error_of(store, files):
    try:
        write(store, files)
    except BaselineError as error:
        return str(error)
    return ""


def test_everything_is_on_the_device_before_anything_is_replaced(tmp_path, make):
    steps = steps_of_an_update(make, tmp_path)
    journal = steps.index(("rename", "journal.json"))
    written = [i for i, (name, _) in enumerate(steps) if name == "write"]
    assert max(written) < journal
    synced = {name for step, name in steps[max(written[:-1]):journal] if step == "sync_folder"}
    assert {"a", "b", "c", KIND} <= synced
    assert steps[journal + 1] == ("sync_folder", ".update")  # it has happened from here on
    last = max(i for i, step in enumerate(steps) if step == ("rename", "test_z.json"))
    done = steps.index(("rename", "done.json"))
    assert {"a", "b", "c"} <= {name for step, name in steps[last:done] if step == "sync_folder"}


def test_failed_update_removes_its_new_folders(tmp_path, make):
    write(Store(tmp_path), files_of(make, 1.0))
    disk = FullDisk(10**9)
    write(Store(tmp_path, disk=disk), files_of(make, 2.0))
    disk = FullDisk(len(disk.steps) - 8)
    with pytest.raises(BaselineError):
        write(Store(tmp_path, disk=disk), files_of(make, 1.0, tuple(f"test_n{i}.py::test_x" for i in range(9))))
    assert {path.name for path in (tmp_path / KIND).iterdir()} == {"a", "b"}


def test_writer_waits_for_lock_and_reports_timeout(tmp_path, make):
    store = Store(tmp_path)
    with store.update(), pytest.raises(BaselineError, match=r"Another process.*for 0.05 s.*Nothing was changed"):
        write(Store(tmp_path, timeout_s=0.05), files_of(make, 1.0))
    write(Store(tmp_path, timeout_s=0.05), files_of(make, 1.0))


def test_a_reader_waits_for_a_writer_that_is_in_the_middle(tmp_path, make):
    """It never sees half of an update, although it takes no lock otherwise."""
    write(quick(tmp_path), files_of(make, 0.0))
    torn, stop = [], threading.Event()

    def read():
        store = quick(tmp_path)
        while not stop.is_set():
            seen = set(values(store.read_all(KIND)).values())
            if len(seen) != 1:
                torn.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    for value in range(1, 60):
        write(quick(tmp_path), files_of(make, float(value)))
    stop.set()
    reader.join()
    assert not torn


def test_an_update_between_two_files_of_a_reader_is_seen_whole(tmp_path, make):
    """The reader has read the first file, and is about to read the second, when everything is replaced."""
    files, new = files_of(make, 1.0), files_of(make, 2.0)
    write(Store(tmp_path), files)
    second, updates = sorted(files)[1], [new]

    class Interrupted(Store):
        def _read(self, path):
            if path == second and updates:
                write(Store(tmp_path), updates.pop())
            return super()._read(path)

    assert values(Interrupted(tmp_path).read_all(KIND)) == dict.fromkeys(new, 2.0)
    assert not updates


def test_rename_replaces_the_target_in_one_step(tmp_path):
    source, target = tmp_path / "new", tmp_path / "old"
    source.write_text("new")
    target.write_text("old")
    number = source.stat().st_ino
    Disk().rename(source, target)
    assert (target.stat().st_ino, source.exists()) == (number, False)


class Unsupported(FileLock):
    """What NFS without a lock daemon answers."""

    def _acquire(self):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize(("lock", "says"), [(Unsupported, "No locks available"), (SoftFileLock, "has no locks")])
def test_update_without_lock_support_writes_no_file(tmp_path, make, lock, says):
    """Fault 53."""
    with pytest.raises(BaselineError, match=rf"(?s){says}.*Nothing was changed|{says}.*Nothing was changed"):
        write(Store(tmp_path, make_lock=lock, timeout_s=0.1), files_of(make, 1.0))
    assert not texts(tmp_path)
    write(Store(tmp_path), files_of(make, 1.0))


@pytest.mark.parametrize("path", ["../x.json", "/etc/x.json", "h200/../../x.json", ""])
def test_path_outside_baseline_folder_is_refused(tmp_path, make, path):
    root = tmp_path / "baselines"
    with pytest.raises(BaselineError, match="leads out of the folder"):
        write(Store(root), {path: make.baseline(make.history(1.0))})
    assert not (tmp_path / "x.json").exists()


def test_a_symbolic_link_out_of_the_folder_is_not_followed(tmp_path, make):
    """Fault 67."""
    outside, root = tmp_path / "outside", tmp_path / "baselines"
    write(Store(outside), files_of(make, 1.0))
    root.mkdir()
    (root / KIND).symlink_to(outside / KIND)
    outside_texts = texts(outside)
    for act in (
        lambda: Store(root).read(TESTS[0], KIND),
        lambda: Store(root).read_all(KIND),
        lambda: write(Store(root), files_of(make, 2.0)),
    ):
        with pytest.raises(BaselineError, match="leads out of the folder"):
            act()
    assert texts(outside) == outside_texts


def test_baseline_folder_may_be_a_symlink(tmp_path, make):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(Store(tmp_path / "link"), files_of(make, 1.0))
    assert len(Store(tmp_path / "real").read_all(KIND)) == len(TESTS)
