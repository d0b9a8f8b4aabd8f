"""Run folders in a store: copies, removal of old folders, and the error if the store refuses."""

import sys
from datetime import UTC, datetime

import fsspec
import pytest

from pytest_llmperf.errors import ConfigError, UsageError
from pytest_llmperf.session.run_store import RunStore

SESSION = "20261128T093015Z-3cdc55"
NOW = datetime(2026, 11, 28, 10, 0, tzinfo=UTC)


@pytest.fixture
def memory(tmp_path):
    """The URL of a folder in fsspec's memory store, and a function that lists the files of the folder."""
    system, root = fsspec.filesystem("memory"), f"/{tmp_path.name}"
    return f"memory:/{root}", lambda: sorted(path.removeprefix(f"{root}/") for path in system.find(root))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / SESSION
    (path / "tests").mkdir(parents=True)
    (path / "session.json").write_text("{}")
    (path / "tests" / "a.json").write_text("[1]")
    return path


def test_store_gets_every_file_of_a_run_folder(memory, folder):
    url, stored = memory
    store = RunStore(f"{url}/")
    store.begin(SESSION, folder.parent)
    assert stored() == [f"begun/{SESSION}"]
    assert store.add(folder, NOW) == f"{url}/{SESSION}"
    assert stored() == [f"{SESSION}/session.json", f"{SESSION}/tests/a.json"]
    assert fsspec.open(f"{url}/{SESSION}/tests/a.json").open().read() == b"[1]"


@pytest.mark.parametrize(("days", "names"), [
    (0.0, ["20261101T000000Z-aaaaaa", "20261127T100001Z-bbbbbb", "20261127T095959Z-cccccc"]),
    (1.0, ["20261127T100001Z-bbbbbb"]),
])
def test_store_loses_sessions_that_are_too_old_and_nothing_else(memory, folder, days, names):
    url, stored = memory
    others = ["20261101T000000Z-aaaaaa", "20261127T100001Z-bbbbbb", "20261127T095959Z-cccccc", "20261101-notes", "old"]
    for name in others:
        fsspec.open(f"{url}/{name}/session.json", "w").open().close()
    RunStore(url, days).add(folder, NOW)
    assert {path.partition("/")[0] for path in stored()} == {SESSION, "20261101-notes", "old", *names}


@pytest.mark.parametrize(("url", "reason"), [
    ("file://{folder}/file/runs", "NotADirectoryError"),
    ("nowhere://bucket", "ValueError: Protocol not known"),
])
def test_store_that_refuses_is_one_sentence(tmp_path, url, reason):
    (tmp_path / "file").touch()
    store = RunStore(url.format(folder=tmp_path))
    with pytest.raises(ConfigError, match=rf"The run store '.*' refuses files: {reason}.*Correct the URL"):
        store.begin(SESSION, tmp_path)
    with pytest.raises(ConfigError, match=rf"The run store '.*' cannot be read: {reason}.*Correct the URL"):
        store.fetch("newest", tmp_path)


def test_password_in_url_of_store_is_masked(tmp_path):
    with pytest.raises(ConfigError) as refusal:
        RunStore("nowhere://user:s3cretpassw0rd@bucket").begin(SESSION, tmp_path)
    assert "s3cretpassw0rd" not in str(refusal.value)


def test_missing_package_of_store_is_named_with_its_installation(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"not installed .*pip install 'pytest-llmperf\[store\]'"):
        RunStore("s3://bucket").begin(SESSION, tmp_path)


def test_run_folder_comes_back_from_the_store_unchanged(memory, folder, tmp_path):
    url, _ = memory
    RunStore(url).add(folder, NOW)
    for named in (SESSION, "newest", "3cdc55"):
        (into := tmp_path / f"into-{named}").mkdir()
        copy = RunStore(url).fetch(named, into)
        assert copy == into / SESSION
        assert {path.relative_to(copy): path.read_bytes() for path in copy.rglob("*") if path.is_file()} == {
            path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_results_of_all_runs_come_without_requests_and_logs(memory, folder, tmp_path):
    url, _ = memory
    for name in ("requests", "servers"):
        (folder / name).mkdir()
        (folder / name / "a.json").touch()
    for session in (SESSION, "20261101T000000Z-aaaaaa"):
        RunStore(url).add(folder.rename(folder.with_name(session)), NOW)
        folder = folder.with_name(session)
    (into := tmp_path / "into").mkdir()
    RunStore(url).fetch_all(into)
    assert sorted(str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()) == [
        f"{session}/{name}" for session in ("20261101T000000Z-aaaaaa", SESSION)
        for name in ("session.json", "tests/a.json")]


def test_unknown_run_of_store_is_answered_with_the_stored_ids(memory, folder, tmp_path):
    url, _ = memory
    RunStore(url).add(folder, NOW)
    with pytest.raises(UsageError, match=f"20250101: there is no such path, and no run in {url} has .*{SESSION}"):
        RunStore(url).fetch("20250101", tmp_path)


@pytest.mark.parametrize("url", ["s3:/", "s3://", "file:", "memory://empty-store"])
def test_url_without_store_or_without_runs_is_answered_with_the_form(url, tmp_path):
    fsspec.filesystem("memory").makedirs("/empty-store", exist_ok=True)
    with pytest.raises(UsageError, match=r"no run is stored there\. Write the URL of the store and a run: s3://"):
        RunStore(url).fetch("newest", tmp_path)


def test_killed_session_is_known_until_its_folder_is_copied(memory, folder):
    url, _ = memory
    later = "20261128T110000Z-abcdef"
    assert RunStore(url).begin(SESSION, folder.parent) == []
    assert RunStore(url).begin(later, folder.parent) == [folder]
    RunStore(url).add(folder, NOW)
    assert RunStore(url).begin(later, folder.parent) == []
