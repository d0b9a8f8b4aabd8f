"""Run folders say where they come from; several are one session, and nothing is taken from two places as one."""

import json
import random
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_llmperf.errors import BaselineError, UsageError
from pytest_llmperf.process.git import git
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
from pytest_llmperf.testing.waiting import until

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


NOW = datetime(2026, 1, 2, tzinfo=UTC)


def origin_of(root):
    origin = provenance(root, "s", NOW, [], "host")
    return origin.commit, origin.dirty, origin.git_error


def break_git_file(root):
    (root / ".git").rename(root / "moved")
    (root / ".git").write_text("gitdir: /gone/.git/worktrees/w")


def become_bare(root):
    bare = root.with_name("bare")
    subprocess.run(["git", "clone", "-q", "--bare", root, bare], check=True)
    shutil.rmtree(root)
    bare.rename(root)


def forget_commits(root):
    subprocess.run(["git", "-C", root, "update-ref", "-d", "HEAD"], check=True)


@pytest.mark.parametrize(("break_repository", "reason"), [
    (lambda root: (root / ".git" / "index").write_bytes(b"broken"), "git status refuses: fatal: "),
    (become_bare, "must be run in a work tree"),
    (break_git_file, "fatal: not a git repository: /gone/"),
    (forget_commits, "the repository has no commit yet"),
])
def test_status_that_git_does_not_tell_is_dirty_with_reason(repository, break_repository, reason):
    break_repository(repository)
    commit, dirty, git_error = origin_of(repository)
    assert (commit, dirty) == (None, True)
    assert reason in git_error


@pytest.mark.parametrize(("script", "reason"), [
    (None, "git is not on the PATH"),
    ("echo \"fatal: detected dubious ownership in repository at '/p'\" >&2\n"
     "echo '	git config --global --add safe.directory /p' >&2\nexit 128",
     "git status refuses: fatal: detected dubious ownership in repository at '/p'; "
     "git advises: git config --global --add safe.directory /p"),
])
def test_git_that_cannot_answer_is_no_missing_repository(tmp_path, monkeypatch, script, reason):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "git").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "git").chmod(0o755)
    assert origin_of(tmp_path) == (None, True, reason)


def test_hanging_git_is_killed_with_child_processes(tmp_path, monkeypatch):
    (tmp_path / "git").write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {tmp_path}/child\nwait\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(UsageError, match=r"git status did not answer within 2 s"):
        git(tmp_path, "status", timeout_s=2.0)
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    until(lambda: not child.exists() or child.read_text().split()[2] == "Z")


@pytest.mark.parametrize("place", ["repository", "worktree", "outside"])
def test_provenance_ignores_variables_of_git_hook(repository, tmp_path, monkeypatch, place):
    subprocess.run(["git", "-C", repository, "worktree", "add", "-q", tmp_path / "worktree"], check=True)
    root = {"repository": repository, "worktree": tmp_path / "worktree", "outside": tmp_path}[place]
    other = tmp_path / "other"
    subprocess.run(["git", "init", "-q", other], check=True)
    by_hand = origin_of(root)
    for name, value in {"GIT_DIR": other / ".git", "GIT_INDEX_FILE": other / "index", "GIT_WORK_TREE": other,
                        "GIT_CEILING_DIRECTORIES": tmp_path, "LANGUAGE": "de", "LC_ALL": "de_DE.UTF-8"}.items():
        monkeypatch.setenv(name, str(value))
    assert origin_of(root) == by_hand
    assert (by_hand[0] is None) is (place == "outside")
    assert by_hand[1:] == (False, None)


def test_settings_of_repository_run_no_program_and_hide_no_change(repository, tmp_path):
    for key in ("core.fsmonitor", "core.hooksPath"):
        subprocess.run(["git", "-C", repository, "config", key, str(tmp_path / "programs")], check=True)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "post-index-change").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (programs / "post-index-change").chmod(0o755)
    (repository / ".git" / "index.lock").touch()  # another git works at the same time
    (repository / "suite.py").write_text("a = 2")
    assert origin_of(repository)[1] is True
    assert not (tmp_path / "ran").exists()


def test_changes_in_submodule_are_dirty_whatever_settings_ignore(repository, tmp_path):
    who = ["-c", "user.email=a@b", "-c", "user.name=a", "-c", "protocol.file.allow=always"]
    for command in (["submodule", "--quiet", "add", str(repository), "part"], ["commit", "-qm", "second"],
                    ["config", "diff.ignoreSubmodules", "all"]):
        subprocess.run(["git", "-C", repository, *who, *command], check=True, capture_output=True)
    assert origin_of(repository)[1] is False
    (repository / "part" / "suite.py").write_text("a = 2")
    assert origin_of(repository)[1] is True
    assert origin_of(repository / "part")[0] != origin_of(repository)[0]


def test_provenance_outside_repository_has_no_commit(tmp_path):
    assert origin_of(tmp_path) == (None, False, None)


def test_unknown_commit_survives_session_file(folder):
    unknown = changed(commit=None, dirty=True, git_error="git is not on the PATH")
    assert read_provenance(folder("a", unknown).parents[1]) == unknown


def test_canary_is_kept_once_per_host(tmp_path):
    (tmp_path / "session.json").write_text('{"schema": 1}')
    for host in ("one", "two"):
        assert lacks_canary(tmp_path, host)
        add_canary(tmp_path, host, {"one_core_ms": 5.0})
        assert not lacks_canary(tmp_path, host)
    stored = json.loads((tmp_path / "session.json").read_text())
    assert stored["canary"] == [{"host": "one", "one_core_ms": 5.0}, {"host": "two", "one_core_ms": 5.0}]
