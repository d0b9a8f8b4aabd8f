"""Shared memory that a server left goes; what anybody still uses stays."""

import mmap
import os
import sys

import pytest

from pytest_llmperf.process import shm

if sys.platform != "linux":
    pytest.skip("/dev/shm is Linux only", allow_module_level=True)


def create(folder, name):
    (folder / name).write_bytes(b"\0" * 4096)


def test_new_segments_of_multiprocessing_are_removed_and_nothing_else(tmp_path):
    create(tmp_path, "psm_old")
    before = shm.segments(tmp_path)
    ours = ["psm_new", "sem.mp-new", "vllm_dist_new-tp:0-[0-1]-cpushm_0"]
    for name in (*ours, "somebody_elses", "psm"):
        create(tmp_path, name)
    assert shm.remove_leaked(before, set(ours), tmp_path) == ours
    assert sorted(path.name for path in tmp_path.iterdir()) == ["psm", "psm_old", "somebody_elses"]


def test_a_segment_of_an_old_name_but_made_anew_is_new(tmp_path):
    create(tmp_path, "psm_a")
    before = shm.segments(tmp_path)
    create(tmp_path, "psm_b")
    (tmp_path / "psm_b").rename(tmp_path / "psm_a")
    assert shm.remove_leaked(before, {"psm_a"}, tmp_path) == ["psm_a"]


@pytest.mark.parametrize("keep", ["mapped", "open"])
def test_a_segment_in_use_stays(tmp_path, keep):
    create(tmp_path, "psm_used")
    with (tmp_path / "psm_used").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        if keep == "mapped":
            file.close()
        assert shm.used_by([os.getpid()], tmp_path) == {"psm_used"}
        assert shm.remove_leaked(set(), {"psm_used"}, tmp_path) == []
    assert shm.used_by([os.getpid()], tmp_path) == set()
    assert shm.remove_leaked(set(), {"psm_used"}, tmp_path) == ["psm_used"]


def test_links_and_missing_folders_are_harmless(tmp_path):
    (tmp_path / "target").write_text("mine")
    (tmp_path / "psm_link").symlink_to(tmp_path / "target")
    shm.remove_leaked(set(), {"psm_link"}, tmp_path)
    assert (tmp_path / "target").read_text() == "mine"
    assert shm.segments(tmp_path / "none") == set()
    assert shm.used_by([2**30], tmp_path) == set()


def test_where_other_processes_may_be_hidden_only_what_was_seen_in_use_goes(tmp_path):
    create(tmp_path, "psm_seen")
    create(tmp_path, "psm_unseen")
    assert shm.remove_leaked(set(), {"psm_seen"}, tmp_path, whole_host=False) == ["psm_seen"]
    assert (tmp_path / "psm_unseen").exists()
    assert shm.remove_leaked(set(), set(), tmp_path, whole_host=True) == ["psm_unseen"]
