"""The project's root: found from any folder of it, as pytest finds it."""

import pytest

from pytest_llmperf.config.root import project_root

MARKED = {
    "pytest.ini": "", "llmperf.toml": "", "pyproject.toml": "[tool.pytest.ini_options]\n", "tox.ini": "[pytest]\n",
    "setup.cfg": "[tool:pytest]\n",
}  # fmt: skip


@pytest.fixture
def deep(tmp_path, monkeypatch):
    folder = tmp_path / "package/deep"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("name", MARKED)
def test_project_root_is_folder_with_pytest_or_plugin_settings(tmp_path, deep, name):
    (tmp_path / name).write_text(MARKED[name])
    (deep.parent / "pyproject.toml").write_text("[project]\n")  # a package of the project
    (deep.parent / "tox.ini").write_text("[tox]\n")
    assert project_root() == tmp_path


@pytest.mark.parametrize("name", ["baselines", ".llmperf"])
def test_folder_with_baselines_or_runs_is_project_root(tmp_path, deep, name):
    (tmp_path / name).mkdir()
    assert project_root() == tmp_path


def test_nearest_configured_folder_is_project_root(tmp_path, deep):
    for folder in (tmp_path, deep.parent):
        (folder / "pytest.ini").write_text("")
    assert project_root() == deep.parent


def test_root_of_place_has_priority_over_root_of_current_folder(tmp_path, deep):
    other = tmp_path / "other/runs"
    other.mkdir(parents=True)
    assert project_root(other) == deep
    (other.parent / "pytest.ini").write_text("")
    assert project_root(other) == other.parent
