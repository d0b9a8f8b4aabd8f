"""Cleanup removes segments that a server created and leaves all other segments."""

import mmap
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_llmperf.process import shm

if sys.platform != "linux":
    pytest.skip("/dev/shm is Linux only", allow_module_level=True)

OURS = [os.getpid()]


@pytest.fixture
def folder():
    """A folder in /dev/shm: on other file systems /proc/PID/maps may show another device than stat."""
    with tempfile.TemporaryDirectory(dir=shm.FOLDER) as name:
        yield Path(name)


def create(folder, name):
    """A segment that this process has open."""
    return os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)


def test_created_segments_of_known_namings_are_removed_and_other_files_stay(folder):
    os.close(create(folder, "psm_old"))
    attribution = shm.Attribution(folder)
    ours = ["psm_new", "sem.mp-new", "vllm_dist_new-tp:0-[0-1]-cpushm_0"]
    handles = [create(folder, name) for name in (*ours, "somebody_elses", "psm")]
    attribution.look(OURS)
    for handle in handles:
        os.close(handle)
    assert attribution.clean_up() == shm.CleanUp(removed=tuple(ours))
    assert sorted(path.name for path in folder.iterdir()) == ["psm", "psm_old", "somebody_elses"]


def test_segment_made_anew_under_an_old_name_is_removed(folder):
    os.close(create(folder, "psm_a"))
    attribution = shm.Attribution(folder)
    handle = create(folder, "psm_b")
    (folder / "psm_b").rename(folder / "psm_a")
    attribution.look(OURS)
    os.close(handle)
    assert attribution.clean_up().removed == ("psm_a",)


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_created_segment_stays_while_a_process_uses_the_file(folder, how):
    attribution = shm.Attribution(folder)
    with os.fdopen(create(folder, "psm_used"), "r+b") as file:
        file.truncate(4096)
        attribution.look(OURS)
        with mmap.mmap(file.fileno(), 4096):
            if how == "mapped":
                file.close()
            assert attribution.clean_up() == shm.CleanUp()
    assert attribution.clean_up().removed == ("psm_used",)


def test_segment_unused_at_first_sight_stays_and_is_named(folder):
    """As one that another program hands over: for a moment no process has it mapped."""
    attribution = shm.Attribution(folder)
    os.close(create(folder, "psm_in_transit"))
    assert attribution.look(OURS) == set()
    assert attribution.clean_up() == shm.CleanUp(unproven=("psm_in_transit",))
    assert (folder / "psm_in_transit").exists()


def test_segment_of_another_creator_stays_after_the_unit_attached(folder):
    attribution = shm.Attribution(folder)
    os.close(create(folder, "psm_attached"))
    attribution.look(OURS)
    handle = os.open(folder / "psm_attached", os.O_RDWR)
    attribution.look(OURS)
    os.close(handle)
    assert attribution.clean_up().unproven == ("psm_attached",)


def test_only_segments_in_use_count_as_created_by_leftovers(folder):
    os.close(create(folder, "psm_idle"))
    handle = create(folder, "psm_theirs")
    attribution = shm.Attribution.of_users(OURS, folder)
    os.close(handle)
    assert attribution.clean_up() == shm.CleanUp(removed=("psm_theirs",))


def test_link_or_missing_folder_or_process_is_harmless(folder):
    (folder / "target").write_text("mine")
    attribution = shm.Attribution(folder)
    (folder / "psm_link").symlink_to(folder / "target")
    with (folder / "target").open():
        attribution.look(OURS)
    attribution.clean_up()
    assert (folder / "target").read_text() == "mine"
    assert shm.segments(folder / "none") == set()
    assert shm.used_by([2**30], folder) == set()


def test_spawn_lock_with_temporary_name_is_found_by_inode():
    lock = multiprocessing.get_context("spawn").Lock()
    name = f"sem.{lock._semlock.name[1:]}"
    (segment,) = [segment for segment in shm.segments() if segment.name == name]
    assert segment.file_id in shm.used_by(OURS)
