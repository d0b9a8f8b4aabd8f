"""Run folders say where they come from; several are one session, and nothing is taken from two places as one."""

import json
import random
import shutil
import subprocess
from datetime import UTC, datetime

import pytest

from pytest_llmperf.errors import BaselineError
from pytest_llmperf.results.baseline import Provenance
from pytest_llmperf.session.baseline_update import read_sessions
from pytest_llmperf.session.provenance import (
    FILE,
    add_canary,
    lacks_canary,
    provenance,
    read_provenance,
    session_id,
    write_provenance,
)

KNOWN = Provenance("20260102T030405Z-abcdef", "2026-01-02", "0123456789ab", False, "f00")


@pytest.fixture
def folder(tmp_path):
    """Makes a run folder with one test."""

    def make(name, origin=KNOWN, test="t.py::x"):
        made = tmp_path / name
        (made / "tests").mkdir(parents=True)
        write_provenance(made, origin)
        content = {"schema": 1, "test": test, "complete": True, "error": None, "measurements": [], "checks": []}
        (made / "tests" / "x.json").write_text(json.dumps(content))
        return made / "tests" / "x.json"

    return make


def changed(**fields):
    return Provenance(**{"session": KNOWN.session, "date": KNOWN.date, "commit": KNOWN.commit, "dirty": KNOWN.dirty,
                         "host": KNOWN.host} | fields)


def test_provenance_read_equals_provenance_written(folder):
    assert read_provenance(folder("a").parents[1]) == KNOWN


def test_ids_sort_by_time():
    rng = random.Random(1)
    ids = [session_id(datetime(2026, 1, day, tzinfo=UTC), rng) for day in (1, 2, 10)]
    assert ids == sorted(ids)
    assert ids[0].startswith("20260101T000000Z-")


def test_run_folders_of_workers_become_one_session(folder):
    dirty = changed(dirty=True)
    late = changed(session="20260103T000000Z-000000")
    first, other = read_sessions([folder("c", late), folder("a-gw0"), folder("a-gw1", dirty, "t.py::y")])
    assert (first.provenance, [test.test for test in first.tests]) == (dirty, ["t.py::x", "t.py::y"])
    assert other.provenance == late


@pytest.mark.parametrize("field", ["host", "commit"])
def test_one_session_of_two_places_is_refused(folder, field):
    paths = [folder("a"), folder("b", changed(**{field: "elsewhere"}))]
    with pytest.raises(BaselineError, match="comes from two places"):
        read_sessions(paths)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "session.json cannot be read: No such file"),
        ("{", "no JSON at line 1"),
        ('{"schema": 2}', "schema 2, and this pytest-llmperf reads 1. Install a newer one"),
        ('{"schema": 1}', "is missing"),
        (json.dumps({"schema": 1, "session": "s", "date": "d", "commit": 7, "dirty": False, "host": "h"}), "at commit"),
    ],
)
def test_unreadable_session_file_is_refused(folder, text, complaint):
    path = folder("a")
    place = path.parents[1] / FILE
    place.unlink() if text is None else place.write_text(text)
    with pytest.raises(BaselineError, match=complaint):
        read_sessions([path])


def test_a_run_file_of_a_newer_version_is_refused(folder):
    path = folder("a")
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 9'))
    with pytest.raises(BaselineError, match=r"its schema is 9, and this version reads 1\. Install a newer"):
        read_sessions([path])


def test_a_copy_elsewhere_says_the_same(folder, tmp_path):
    original = folder("a").parents[1]
    shutil.copytree(original, tmp_path / "copy")
    assert read_provenance(tmp_path / "copy") == read_provenance(original)


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        who = ["-c", "user.email=a@b", "-c", "user.name=a"]
        subprocess.run(["git", "-C", tmp_path / "project", *who, *arguments], check=True, capture_output=True)

    root = tmp_path / "project"
    root.mkdir()
    git("init")
    (root / "suite.py").write_text("a = 1")
    git("add", "suite.py")
    git("commit", "-m", "first")
    return root


@pytest.mark.parametrize("baselines", ["baselines", "../elsewhere", "/elsewhere"])
def test_changed_files_are_dirty_wherever_baselines_lie(repository, baselines):
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert not provenance(repository, "s", now, [baselines], "host").dirty
    (repository / "suite.py").write_text("a = 2")
    assert provenance(repository, "s", now, [baselines], "host").dirty


def test_a_status_that_git_does_not_tell_is_not_clean(repository):
    (repository / ".git" / "index").write_bytes(b"broken")
    origin = provenance(repository, "s", datetime(2026, 1, 2, tzinfo=UTC), [], "host")
    assert origin.commit is not None
    assert origin.dirty


def test_provenance_outside_repository_has_no_commit(tmp_path):
    origin = provenance(tmp_path, "s", datetime(2026, 1, 2, tzinfo=UTC), [], "host")
    assert (origin.commit, origin.dirty) == (None, False)


def test_canary_is_kept_once_per_host(tmp_path):
    (tmp_path / "session.json").write_text('{"schema": 1}')
    for host in ("one", "two"):
        assert lacks_canary(tmp_path, host)
        add_canary(tmp_path, host, {"one_core_ms": 5.0})
        assert not lacks_canary(tmp_path, host)
    stored = json.loads((tmp_path / "session.json").read_text())
    assert stored["canary"] == [{"host": "one", "one_core_ms": 5.0}, {"host": "two", "one_core_ms": 5.0}]
