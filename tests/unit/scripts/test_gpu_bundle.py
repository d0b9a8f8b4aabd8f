"""The bundle maker, on wheels that are made here: no index is asked."""

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_bundle.py"
pytestmark = pytest.mark.skipif(shutil.which("xz") is None, reason="needs xz")


@pytest.fixture(scope="module")
def bundler(load_script):
    return load_script("gpu_bundle")


def make_wheel(folder, name, files):
    """A wheel for Python 3.12 on the host that bundles are for."""
    info = f"{name}-1.0.dist-info"
    path = folder / f"{name}-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: cp312-cp312-manylinux_2_28_x86_64\n")
        wheel.writestr(f"{info}/RECORD", "")
        for file, content in files.items():
            wheel.writestr(file, content)
    return path


@pytest.fixture
def index(bundler, tmp_path, monkeypatch):
    """A folder of wheels in place of an index, and lists of pins for them."""
    wheels, pins = tmp_path / "index", tmp_path / "pins"
    for folder in (wheels, pins):
        folder.mkdir()
    dropped = {"vllm/_flashmla_C.abi3.so": "x", "vllm/kernel.h": ""}
    make_wheel(wheels, "vllm", {"vllm/__init__.py": "", "vllm/moe.so": "".join(map(chr, range(32, 127)))} | dropped)
    make_wheel(wheels, "httptools", {"httptools/__init__.py": ""})
    make_wheel(wheels, "lmcache", {"lmcache/__init__.py": ""})
    for name, line in {"vllm": "vllm==1.0", "plugin": "httptools==1.0", "lmcache": "lmcache==1.0"}.items():
        (pins / f"{name}.txt").write_text(f"# pins\n{line}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return pins


def unpacked(out, into):
    into.mkdir()
    subprocess.run(f"cat {out}/part.* | xz -dc | tar -C {into} -xf -", shell=True, check=True)
    return {str(path.relative_to(into)) for path in into.rglob("*") if path.is_file() and "dist-info" not in str(path)}


def test_bundle_separates_engine_and_plugin_and_excludes_dropped_files(bundler, index, tmp_path, capsys):
    wheel = make_wheel(tmp_path, "pytest_llmperf", {"pytest_llmperf/__init__.py": ""})
    out = tmp_path / "out"
    assert bundler.main(["--kind", "vllm", "--pins", str(index), "--out", str(out), "--wheel", str(wheel),
                         "--add", str(index / "lmcache.txt"), "--drop", "vllm/moe*"]) == 0
    assert unpacked(out, tmp_path / "host") == {
        "engine/vllm/__init__.py", "engine/lmcache/__init__.py", "plugin/httptools/__init__.py",
        "plugin/pytest_llmperf/__init__.py",
    }
    printed = capsys.readouterr().out
    assert "in 1 part" in printed
    assert f"cat {out}/part.* | xz -dc -T0 | tar -C /tmp/llmperf -xf -" in printed
    assert "--llmperf-engine vllm=/tmp/llmperf/engine" in printed


def test_harness_bundle_contains_gsm8k_alone_in_separate_folder(bundler, index, tmp_path, monkeypatch, capsys):
    make_wheel(tmp_path / "index", "lm_eval", {
        "lm_eval/__init__.py": "", "lm_eval/tasks/__init__.py": "", "lm_eval/tasks/gsm8k/gsm8k.yaml": "task: gsm8k",
        "lm_eval/tasks/mmlu/mmlu.yaml": "task: mmlu",
    })
    (index / "lm_eval.txt").write_text("lm_eval==1.0\n")
    monkeypatch.chdir(tmp_path)
    engine_part = tmp_path / ".bundle" / "part.0000"
    engine_part.parent.mkdir()
    engine_part.write_text("of vLLM's bundle")
    assert bundler.main(["--kind", "lm_eval", "--pins", str(index)]) == 0
    assert unpacked(tmp_path / ".bundle" / "lm_eval", tmp_path / "host") == {
        "lm_eval/lm_eval/__init__.py", "lm_eval/lm_eval/tasks/__init__.py", "lm_eval/lm_eval/tasks/gsm8k/gsm8k.yaml",
    }
    assert engine_part.read_text() == "of vLLM's bundle"
    assert "--llmperf-engine lm_eval=/tmp/llmperf/lm_eval" in capsys.readouterr().out


def test_nixl_bundle_contains_one_transport_in_the_engine_folder(bundler, index, tmp_path, monkeypatch, capsys):
    plugins = ".nixl_cu13.mesonpy.libs/plugins/libplugin_"
    make_wheel(tmp_path / "index", "nixl", {
        "nixl/__init__.py": "", f"{plugins}UCX.so": "", f"{plugins}GDS.so": "", "nixl_cu13.libs/libucp.so.0": "",
        "nixl_cu13.libs/libaws-c-io.so": "", "nixl_ep_cu13/nixl_ep.so": "",
    })
    (index / "nixl.txt").write_text("nixl==1.0\n")
    monkeypatch.chdir(tmp_path)
    assert bundler.main(["--kind", "nixl", "--pins", str(index)]) == 0
    assert unpacked(tmp_path / ".bundle" / "nixl", tmp_path / "host") == {
        "engine/nixl/__init__.py", f"engine/{plugins}UCX.so", "engine/nixl_cu13.libs/libucp.so.0",
    }
    assert "--llmperf-engine vllm_router=/tmp/llmperf/engine" in capsys.readouterr().out


def test_bundle_parts_stay_below_requested_size_and_replace_old_parts(bundler, index, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "part.99").write_text("of an earlier bundle")
    assert bundler.main(["--kind", "vllm", "--pins", str(index), "--out", str(out), "--part-mib", "0.0001"]) == 0
    sizes = [part.stat().st_size for part in sorted(out.glob("part.*"))]
    assert len(sizes) > 1
    assert max(sizes) <= 105
    assert "engine/vllm/moe.so" in unpacked(out, tmp_path / "host")


def test_hollow_modules_are_added_to_bundle(bundler, index, tmp_path):
    (index / "sglang_hollow" / "soundfile").mkdir(parents=True)
    (index / "sglang_hollow" / "soundfile" / "__init__.py").write_text("")
    (index / "sglang.txt").write_text("vllm==1.0\n")
    assert bundler.main(["--kind", "sglang", "--pins", str(index), "--out", str(tmp_path / "out")]) == 0
    assert "engine/soundfile/__init__.py" in unpacked(tmp_path / "out", tmp_path / "host")


def test_unmatched_drop_pattern_is_reported(bundler, index, tmp_path, capsys):
    arguments = ["--kind", "vllm", "--pins", str(index), "--out", str(tmp_path / "out"), "--drop", "vlm/*"]
    assert bundler.main(arguments) == 0
    assert "nothing matches --drop vlm/*" in capsys.readouterr().err


def test_unavailable_package_writes_no_bundle(bundler, index, tmp_path, capsys):
    (index / "vllm.txt").write_text("nobody-has-this==1.0\n")
    assert bundler.main(["--kind", "vllm", "--pins", str(index), "--out", str(tmp_path / "out")]) == 1
    assert "pip cannot fetch" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert bundler.main(["--kind", "vllm", "--pins", "no/such", "--out", str(tmp_path / "out")]) == 1
    assert "there is no such list" in capsys.readouterr().err


def test_shipped_lists_pin_every_line():
    for path in (SCRIPT.parent / "engines" / "gpu").glob("*.txt"):
        pins = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert pins
        assert all(line.count("==") == 1 for line in pins), path
        assert pins == sorted(pins, key=str.lower), path
