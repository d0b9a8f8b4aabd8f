"""Run folders in a store: copies, removal of old folders, and the error if the store refuses."""

import sys
from datetime import UTC, datetime

import fsspec
import pytest

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.session.run_folder import RunStore

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
    store = RunStore(Settings(runs_store=f"{url}/"))
    store.begin(SESSION)
    assert stored() == [f"{SESSION}/begun"]
    assert store.add(folder, NOW) == f"{url}/{SESSION}"
    assert stored() == [f"{SESSION}/begun", f"{SESSION}/session.json", f"{SESSION}/tests/a.json"]
    assert fsspec.open(f"{url}/{SESSION}/tests/a.json").open().read() == b"[1]"


@pytest.mark.parametrize(("days", "names"), [
    (0.0, ["20261101T000000Z-aaaaaa", "20261127T100001Z-bbbbbb", "20261127T095959Z-cccccc"]),
    (1.0, ["20261127T100001Z-bbbbbb"]),
])
def test_store_loses_sessions_that_are_too_old_and_nothing_else(memory, folder, days, names):
    url, stored = memory
    others = ["20261101T000000Z-aaaaaa", "20261127T100001Z-bbbbbb", "20261127T095959Z-cccccc", "20261101-notes", "old"]
    for name in others:
        RunStore(Settings(runs_store=url)).begin(name)
    RunStore(Settings(runs_store=url, runs_store_days=days)).add(folder, NOW)
    assert {path.partition("/")[0] for path in stored()} == {SESSION, "20261101-notes", "old", *names}


@pytest.mark.parametrize(("url", "reason"), [
    ("file://{folder}/file/runs", "NotADirectoryError"),
    ("nowhere://bucket", "ValueError: Protocol not known"),
])
def test_store_that_refuses_is_one_sentence(tmp_path, url, reason):
    (tmp_path / "file").touch()
    store = RunStore(Settings(runs_store=url.format(folder=tmp_path)))
    with pytest.raises(ConfigError, match=rf"The store runs_store = .* refuses files: {reason}.*Correct the URL"):
        store.begin(SESSION)


def test_password_in_url_of_store_is_masked(tmp_path):
    with pytest.raises(ConfigError) as refusal:
        RunStore(Settings(runs_store="nowhere://user:s3cretpassw0rd@bucket")).begin(SESSION)
    assert "s3cretpassw0rd" not in str(refusal.value)


def test_missing_package_of_store_is_named_with_its_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"not installed .*pip install 'pytest-llmperf\[store\]'"):
        RunStore(Settings(runs_store="s3://bucket")).begin(SESSION)
