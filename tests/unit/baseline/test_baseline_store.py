"""Reading, and writing several files under a lock: at any moment each file is old or new."""

import errno
import os
from pathlib import Path

import pytest
from filelock import FileLock, SoftFileLock

from pytest_llmperf.baseline.paths import baseline_path
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.errors import BaselineError
from pytest_llmperf.process.scratch import write_whole

KIND = "h200"
TESTS = tuple(f"test_{suite}.py::test_{name}" for suite in "ab" for name in "xy")


def files_of(make, value, tests=TESTS):
    return {baseline_path(test, KIND): make.baseline(make.history(value), test=test) for test in tests}


def write(store, files):
    with store.update() as write_files:
        write_files(files)


def values(baselines):
    return {path: baseline.measurements[""].sessions[0].values("tpot_mean")[0] for path, baseline in baselines.items()}


def texts(root):
    """What lies there without anybody's help."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob("*/[!.]*/[!.]*.json")}


def leftovers(root):
    return list(root.rglob(".*.new*"))


class Killed(BaseException):
    """The process is no more."""


@pytest.fixture
def fail_at(monkeypatch):
    """Let the step with this number fail: a draft is written, or a file is replaced or removed."""
    steps = []

    def arm(number, error):
        steps.clear()

        def failing(step):
            def call(*arguments, **options):
                steps.append(step.__name__)
                if len(steps) - 1 == number:
                    raise error
                return step(*arguments, **options)

            return call

        monkeypatch.undo()
        monkeypatch.setattr("pytest_llmperf.baseline.store.write_whole", failing(write_whole))
        monkeypatch.setattr(Path, "replace", failing(Path.replace))
        return steps

    return arm


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


DRAFTS, STEPS = 8, 12  # two steps for each of 4 drafts, then 4 files


def test_killed_update_leaves_each_file_old_or_new(tmp_path, make, fail_at, monkeypatch):
    write(Store(tmp_path / "whole"), files_of(make, 1.0))
    write(Store(tmp_path / "whole"), changes(make))
    new = texts(tmp_path / "whole")
    for number in range(STEPS):
        root = tmp_path / str(number)
        write(Store(root), files_of(make, 1.0))
        old = texts(root)
        fail_at(number, Killed())
        with pytest.raises(Killed):
            write(Store(root), changes(make))
        monkeypatch.undo()
        assert all(data in (old.get(path), new.get(path)) for path, data in texts(root).items())
        write(Store(root), changes(make))
        assert texts(root) == new
        assert not leftovers(root)


def test_drafts_of_a_killed_writer_are_neither_read_nor_kept(tmp_path, make):
    write(Store(tmp_path), files_of(make, 1.0))
    path = tmp_path / baseline_path(TESTS[0], KIND)
    for name in (f".{path.name}.new", f"..{path.name}.new.0123abcd.tmp"):
        path.with_name(name).write_text("torn")
    assert set(values(Store(tmp_path).read_all(KIND)).values()) == {1.0}
    write(Store(tmp_path), {})
    assert not leftovers(tmp_path)


def test_disk_error_changes_no_file_or_names_the_command_that_completes(tmp_path, make, fail_at, monkeypatch):
    for number in range(STEPS):
        root = tmp_path / str(number)
        write(Store(root), files_of(make, 1.0))
        old = texts(root)
        fail_at(number, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(BaselineError, match="No space left") as caught:
            write(Store(root), changes(make))
        monkeypatch.undo()
        assert not leftovers(root)
        if number < DRAFTS:
            assert "Nothing was changed" in str(caught.value)
            assert texts(root) == old
        else:
            assert "llmperf baselines take RUN" in str(caught.value)


def test_all_drafts_are_written_before_the_first_file_is_replaced(tmp_path, make, fail_at):
    write(Store(tmp_path), files_of(make, 1.0))
    steps = fail_at(None, None)
    write(Store(tmp_path), changes(make))
    assert steps == ["write_whole", "replace"] * 4 + ["replace"] * 4


def test_writer_waits_for_lock_and_reports_timeout(tmp_path, make):
    store = Store(tmp_path)
    with store.update(), pytest.raises(BaselineError, match=r"Another process.*for 0.05 s.*Nothing was changed"):
        write(Store(tmp_path, timeout_s=0.05), files_of(make, 1.0))
    write(Store(tmp_path, timeout_s=0.05), files_of(make, 1.0))


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
