"""A release is read from a wheel without its packages; what goes wrong is one sentence."""

import errno
import json
import subprocess
import sys
import zipfile

import pytest

from pytest_llmperf.cli import main
from pytest_llmperf.engines.releases import wheel
from pytest_llmperf.engines.releases.wheel import check, read_wheel, release_of
from pytest_llmperf.errors import UsageError
from pytest_llmperf.releases.stored import Release, as_json, release, versions

ARGUMENTS = """
import argparse, json
from dataclasses import dataclass
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked
from absent_package.deep import Base, decorate

@checked
class Config:
    size: int = Field(default=3, gt=0)
    names: list = Field(default_factory=list)

@decorate(torch.float16)
class Worker(Base):
    pass

class Deprecated(argparse.Action):
    def __call__(self, *words):
        pass

def make(parser):
    parser.add_argument("--config-a", "-c", type=json.loads, default=Config())
    parser.add_argument("--switch", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--policy", choices=["lpm", "fcfs"], default="fcfs")
    parser.add_argument("--older", dest="policy", action=Deprecated)
    for number in range(20):
        parser.add_argument(f"--number-{number}", type=int, nargs="+")
"""
SERVER = '''
import os
from prometheus_client import Counter
tokens = Counter(name="lmcache:tokens", documentation="", labelnames=["model", "tier"])
LEVEL = os.getenv("LMCACHE_LEVEL", "3")
if "LMCACHE_OLD" in os.environ:
    raise ValueError("LMCACHE_OLD is no longer supported")

@router.post("/clear")
def budget():
    """A text that is not compared."""
    return 8192
'''


@pytest.fixture
def make_wheel(tmp_path, monkeypatch):
    """Builds a wheel of the engine "lmcache" that is read as the description here says."""
    how = {"distribution": "lmcache", "package": "lmcache", "parser_class": "argparse:ArgumentParser",
           "parsers": ["lmcache.moved:make", "lmcache.arguments:make"], "metric": "lmcache:[a-z]+",
           "variable": "LMCACHE_[A-Z]+", "cited": {"budget": "the budget"}, "instead": {"flags": {}}}
    monkeypatch.setattr(wheel, "description", lambda engine: how)

    def make_wheel(version="9.1", **files):
        path = tmp_path / f"lmcache-{version}-py3-none-any.whl"
        texts = {"arguments": ARGUMENTS, "server": SERVER, "__init__": ""} | files
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in texts.items():
                archive.writestr(f"lmcache/{name}.py", text)
            info = f"lmcache-{version}.dist-info"
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: lmcache\nVersion: {version}\n"
                             "Requires-Dist: torch==2.14.0\nRequires-Dist: yaml>=1\n"
                             'Requires-Dist: jax==1; extra == "x"\n')
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return path

    return make_wheel


def test_options_are_those_of_the_engine_s_own_parser_without_its_packages(make_wheel):
    flags = read_wheel("lmcache", "9.1", make_wheel()).flags
    assert flags["--config-a"] == {"names": ["-c"], "type": "json", "default": {"size": 3, "names": []}}
    assert flags["--switch"] == {"action": "boolean", "default": True}
    assert flags["--policy"] == {"choices": ["fcfs", "lpm"], "default": "fcfs"}
    assert flags["--older"] == {"action": "Deprecated", "dest": "policy"}
    assert flags["--number-7"] == {"type": "int", "nargs": "+"}


def test_source_gives_what_a_server_reads_and_digests_without_docstrings(make_wheel):
    facts = read_wheel("lmcache", "9.1", make_wheel())
    assert facts.metrics == {"lmcache:tokens": {"kind": "counter", "labels": ["model", "tier"]}}
    assert facts.variables == {"LMCACHE_LEVEL": {"default": "3"}}
    assert facts.routes == {"POST /clear": {}}
    assert facts.packages == {"torch": {"version": "2.14.0"}}
    same = read_wheel("lmcache", "9.1", make_wheel(server=SERVER.replace("not compared", "changed")))
    other = read_wheel("lmcache", "9.1", make_wheel(server=SERVER.replace("8192", "16384")))
    assert facts.sources == same.sources
    assert facts.sources != other.sources


def test_moved_parser_is_reported_with_the_place_to_correct(make_wheel):
    with pytest.raises(UsageError, match=r"cannot be read \(none of lmcache\.moved:make, lmcache\.arguments:make is"):
        read_wheel("lmcache", "9.1", make_wheel(arguments=""))


def test_file_that_is_no_wheel_is_refused(tmp_path, make_wheel):
    make_wheel()
    (tmp_path / "broken.whl").write_text("no archive")
    with pytest.raises(UsageError, match=r"broken\.whl is no wheel"):
        read_wheel("lmcache", "9.1", tmp_path / "broken.whl")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip finds packages in this folder alone."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_unknown_release_is_downloaded_once_and_then_read_from_the_cache(make_wheel, index, monkeypatch):
    make_wheel()
    steps = []
    first = release_of("lmcache", "9.1", index / "cache", steps.append)
    assert steps == ["Downloading the wheel of lmcache==9.1 with pip.", "Reading lmcache-9.1-py3-none-any.whl."]
    monkeypatch.setattr(wheel, "read_from_index", None)
    assert release_of("lmcache", "9.1", index / "cache", steps.append) == first
    assert len(steps) == 2


def test_version_that_the_index_lacks_is_refused_with_the_newest(make_wheel, index):
    make_wheel()
    with pytest.raises(UsageError, match=r"lmcache 9\.2: the package index has no wheel of this version for Python .*; "
                                         r"the newest is 9\.1\. Did you mean 9\.1\?"):
        release_of("lmcache", "9.2", index / "cache")


def test_short_version_is_the_stored_one(tmp_path):
    assert release_of("vllm", "0.33", tmp_path).version == "0.33.0"


def test_unreachable_index_is_reported_with_the_stored_versions(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match=r"vllm 0\.30\.0: the package index does not answer.*: 0\.26\.0, "):
        release_of("vllm", "0.30.0", tmp_path)


@pytest.mark.parametrize(("output", "words"), [
    ("/usr/bin/python: No module named pip", "has no pip for the download"),
    ("OSError: [Errno 28] No space left on device", "is full. A wheel needs up to 1 GB until it is read"),
    ("ERROR: something else", "pip cannot download the wheel: ERROR: something else. Try"),
])
def test_failed_download_is_one_sentence_with_its_reason(output, words, monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", output)
    monkeypatch.setattr(wheel.subprocess, "run", lambda *words, **options: failed)
    with pytest.raises(UsageError) as refused:
        release_of("vllm", "0.30.0", tmp_path)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_full_disk_while_unpacking_is_reported(make_wheel, index, monkeypatch):
    make_wheel()

    def full(*words, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(UsageError, match="is full"):
        release_of("lmcache", "9.1", index / "cache")


@pytest.mark.parametrize(("words", "text"), [
    (("vlm", "0.26.0", "0.33.0"), "the engine can be lmcache, sglang, vllm"),
    (("vllm", "0.33.0", "0.33.0"), "both versions are the same"),
    (("vllm", "newest", "0.33.0"), "vllm newest: write the version as numbers with dots, such as 0.33.0"),
    (("vllm", "0.26.0", "0.33.0", "nowhere"), "nowhere: not there"),
])
def test_wrong_arguments_are_refused_with_one_sentence(words, text, capsys):
    assert main(["engine-changes", *words]) == 2
    output = capsys.readouterr()
    assert text in output.err
    assert output.out == ""


def test_command_ends_with_1_only_where_a_test_uses_what_is_gone(tmp_path, capsys):
    (tmp_path / "test_a.py").write_text("def test_a(perf):\n    vllm('m', calculate_kv_scales=True)\n")
    (tmp_path / "test_b.py").write_text("def test_b(perf):\n    vllm('m')\n")
    assert main(["engine-changes", "vllm", "0.26.0", "0.33.0", str(tmp_path / "test_a.py")]) == 1
    first = capsys.readouterr().out
    assert "! The flag --calculate-kv-scales is gone. No replacement is known: leave it out. [all 1 tests]" in first
    assert main(["engine-changes", "vllm", "0.26.0", "0.33.0", str(tmp_path / "test_b.py")]) == 0
    assert "      --calculate-kv-scales\n" in capsys.readouterr().out


def test_other_engines_are_described_alone(capsys):
    check("vllm", "0.26.0", "0.33.0")
    with pytest.raises(UsageError):
        check("transformers", "1.0", "2.0")


def test_stored_file_holds_what_differs_from_the_version_before():
    older, newer = (release("vllm", version) for version in versions("vllm")[-2:])
    stored = json.loads(as_json(newer, older))
    assert stored["routes"] == {"POST /v1/decisions": {}}
    assert json.loads(as_json(newer, newer))["flags"] == {}
    assert stored["variables"]["VLLM_USE_RAY_WRAPPED_PP_COMM"] is None


def test_parser_reader_runs_without_any_package(tmp_path):
    program = wheel.parser_reader.__file__
    command = [sys.executable, "-I", "-S", program, str(tmp_path), "argparse:ArgumentParser", "no:one"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "none of no:one is there\n")


def test_release_without_facts_has_no_options():
    assert Release("vllm", "1", {}, {}, {}, {}, {}, {}).options() == {}
