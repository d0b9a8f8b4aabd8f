"""An installed engine is asked for its flags without a start."""

import os
import sys
from contextlib import nullcontext

import pytest

from pytest_llmperf import sglang, vllm
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.emulator.build import emulated_flags
from pytest_llmperf.engines.adapter import retired
from pytest_llmperf.engines.adapters import adapter_of
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.process.installed import check_flags, check_variables, known_flags
from pytest_llmperf.engines.process.resolution import Resolver
from pytest_llmperf.engines.sglang import adapter as sglang_adapter
from pytest_llmperf.engines.vllm import adapter as vllm_adapter
from pytest_llmperf.errors import SpecError

PROGRAM = adapter_of("vllm").program
MAIN = """
import argparse, os, pathlib, sys
pathlib.Path(os.environ["ASKED"]).open("a").write("x")
first = argparse.ArgumentParser(add_help=False)
first.add_argument("--omni", action="store_true")
first.parse_known_args()
parser = argparse.ArgumentParser()
subparsers = parser.add_subparsers()
serve = subparsers.add_parser("serve")
subparsers.add_parser("bench").add_argument("--dataset-name")
serve.add_argument("--served-model-name")
serve.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
for number in range(20):
    serve.add_argument(f"--x{number}")
serve.add_argument("--max-num-batched-tokens")
parser.parse_args()
sys.exit("a server would start now")
"""
KNOWN = frozenset({"--max-num-batched-tokens", "--enable-prefix-caching", "--no-enable-prefix-caching",
                   "--compilation-config"})


@pytest.fixture
def bundle(tmp_path):
    """A folder with a vLLM 9.9 whose program is given; gives its environment and a function that counts questions."""

    def bundle(main, version="9.9"):
        place = tmp_path / f"bundle-{version}"
        program = place / "vllm" / "entrypoints" / "cli" / "main.py"
        program.parent.mkdir(parents=True)
        program.write_text(main)
        metadata = place / f"vllm-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        return Environment((sys.executable,), True, place, str(place))

    return bundle


def ask(environment, tmp_path):
    env = {**os.environ, "ASKED": str(tmp_path / "asked")}
    return known_flags(environment, "vllm", PROGRAM, env, tmp_path / "cache")


def test_server_flags_are_read_from_the_parser_once_per_version(bundle, tmp_path):
    first = bundle(MAIN)
    flags = ask(first, tmp_path)
    assert {"--max-num-batched-tokens", "--no-enable-prefix-caching"} <= flags
    assert "--dataset-name" not in flags
    assert ask(first, tmp_path) == flags
    assert (tmp_path / "asked").read_text() == "x"
    assert ask(bundle(MAIN, "9.10"), tmp_path) == flags
    assert (tmp_path / "asked").read_text() == "xx"


def test_parser_is_asked_only_for_a_flag_that_the_stored_release_lacks(bundle, tmp_path, monkeypatch):
    asked = tmp_path / "asked"
    monkeypatch.setenv("ASKED", str(asked))
    place = bundle(MAIN, "0.33.0+cpu").pythonpath
    (place / "vllm" / "__init__.py").touch()
    resolver = Resolver(Settings(engines={"vllm": str(place)}, cache_dir="models"), tmp_path, emulated=False)
    resolver.of(vllm("tiny", max_num_seqs=4, enable_prefix_caching=False).on("cpu"))
    assert not asked.exists()
    resolver.of(vllm("tiny", x3=1).on("cpu"))  # a flag of a changed build
    assert asked.read_text() == "x"
    with pytest.raises(SpecError, match="has no flag --max-num-batched-token"):
        resolver.of(vllm("tiny", max_num_batched_token=4).on("cpu"))


def test_server_with_few_flags_tells_all_of_them(bundle, tmp_path):
    few = "import argparse; parser = argparse.ArgumentParser(); parser.add_argument('--step-ms'); parser.parse_args()"
    assert ask(bundle(few), tmp_path) == {"-h", "--help", "--step-ms"}


@pytest.mark.parametrize("main", [
    "raise SystemExit(3)", "print('no parser')", "print('[]')",
    "import argparse; argparse.ArgumentParser().parse_args(); print('a server would start now')",
])
def test_engine_that_cannot_be_asked_has_no_list(bundle, tmp_path, main):
    assert ask(bundle(main), tmp_path) is None
    assert not list(tmp_path.glob("cache/*"))


def test_command_without_interpreter_has_no_flag_list(tmp_path):
    assert ask(Environment((str(tmp_path / "vllm"),), False, None, "a command"), tmp_path) is None


@pytest.mark.parametrize(("flags", "words"), [
    ({"max_num_batched_token": 1}, "has no flag --max-num-batched-token. Did you mean max_num_batched_tokens?"),
    ({"enable_prefx_caching": False}, "Did you mean no_enable_prefix_caching?"),
    ({"something_else_entirely": 1}, "has no flag --something-else-entirely. Leave the flag out. No server"),
])
def test_unknown_flag_is_refused_with_the_one_that_may_be_meant(flags, words):
    with pytest.raises(SpecError) as refused:
        check_flags(vllm("m", **flags), KNOWN)
    assert words in str(refused.value)


@pytest.mark.parametrize(("make", "flags", "known", "words"), [
    (vllm, {"calculate_kv_scales": True}, {"--kv-cache-dtype"},
     "vllm 9.9 has no flag --calculate-kv-scales since 0.32.0 or earlier. No server was started."),
    (sglang, {"cuda_graph_max_bs": 8}, {"--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill"},
     "has no flag --cuda-graph-max-bs since 0.5.20 or earlier. Write cuda_graph_max_bs_decode=…. No server"),
    (sglang, {"enable_expert_distribution_metrics": True}, {"--enable-metrics"},
     'since 0.5.20 or earlier. Write expert_balancedness_report_mode="prometheus". No server'),
    (sglang, {"expert_balancedness_report_mode": "off"}, {"--enable-expert-distribution-metrics"},
     "sglang 9.9 has no flag --expert-balancedness-report-mode. Write enable_expert_distribution_metrics, its older"),
])
@pytest.mark.parametrize("near_only", [False, True])
def test_flag_that_a_version_lacks_is_refused_with_version_and_other_name(make, flags, known, words, near_only):
    with pytest.raises(SpecError) as refused:
        check_flags(make("m", **flags), known, "9.9", near_only=near_only)
    assert words in str(refused.value)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_emulator_accepts_no_removed_flag(engine):
    assert not {"--" + name.replace("_", "-") for name in retired(engine, "flags")} & emulated_flags(engine)


def test_adapters_write_no_removed_flag():
    written = {"sglang": sglang_adapter.CPU_FLAGS | sglang_adapter.WITHOUT_FLASHINFER,
               "vllm": vllm_adapter.CPU_FLAGS | vllm_adapter.LMCACHE_SERVER_FLAGS}
    for engine, flags in written.items():
        assert retired(engine, "flags")
        assert not flags.keys() & retired(engine, "flags").keys()


@pytest.mark.parametrize(("version", "refused"), [(None, True), ("0.5.23", True), ("0.5.18.post1", True),
                                                  ("0.5.15", False)])
def test_removed_variable_is_refused_in_later_versions(version, refused):
    spec = sglang("m", env={"SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC": "1"})
    with pytest.raises(SpecError, match="reads no variable SGLANG_") if refused else nullcontext():
        check_variables(spec, version)


def test_known_flags_are_accepted():
    check_flags(vllm("m", max_num_batched_tokens=1, enable_prefix_caching=False), KNOWN)
    check_flags(vllm("m").with_flags(**{"compilation_config.mode": 0}), KNOWN)
    unlisted = vllm("m", something_else_entirely=1)
    check_flags(unlisted, KNOWN, near_only=True)
    with pytest.raises(SpecError):
        check_flags(unlisted, KNOWN)


@pytest.mark.parametrize(("engine", "flag"), [
    ("vllm", "--max-num-batched-tokens"), ("sglang", "--chunked-prefill-size"),
])
def test_emulator_lists_known_flags(engine, flag):
    assert flag in emulated_flags(engine)
