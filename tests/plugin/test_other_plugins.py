"""Beside other plugins, in any order, or switched off: a run without performance tests does not notice us."""

import json
from pathlib import Path

import pytest

SUITE = """
import pytest
from pytest_llmperf import closed, random_tokens, vllm

TRAFFIC = random_tokens(input=64, output=8, arrivals=closed(2), requests=6)

@pytest.mark.parametrize("seqs", [4, 8])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_x(perf, seqs, n):
    run = perf.measure(vllm("llama-3.1-8b", max_num_seqs=seqs), TRAFFIC, runs=1)
    perf.check(run, "error_rate == 0", "prefix_cache_hit_rate == 0")
"""
SHUFFLE = """
import random

def pytest_collection_modifyitems(config, items):
    random.Random(SEED).shuffle(items)
"""


@pytest.mark.emulated
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (2, 3))])
def test_the_order_of_tests_does_not_matter(run, pytester, seed):
    """Fault 82: the same workload again and again on shared servers, and no prompt is cached."""
    pytester.makeconftest(SHUFFLE.replace("SEED", str(seed)))
    result, _ = run(SUITE, "--emulate", "h200")
    result.assert_outcomes(passed=6)
    files = [json.loads(path.read_text()) for path in Path(pytester.path).glob(".llmperf/runs/*/tests/*.json")]
    assert len({file["test"] for file in files}) == 6
    assert {len(file["measurements"][0]["runs"]) for file in files} == {1}


@pytest.mark.emulated
def test_selected_test_measures_same_values_as_whole_suite(run, pytester):
    """Fault 82: tests do not affect each other, so a test measures the same values in a selection as in the suite."""
    def values(*args):
        result, _ = run(SUITE, "--emulate", "h200", "--emulate-noise=none", *args)
        assert result.ret == 0, result.stdout.str()
        latest = max(Path(pytester.path, ".llmperf/runs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)
        paths = (json.loads(path.read_text()) for path in latest.glob("tests/*.json"))
        return {run_file["test"]: run_file["measurements"][0]["runs"][0]["metrics"]["ttft_p50"] for run_file in paths}

    everything = values()
    first = values("-k", "2-8")
    assert len(everything) == 6
    assert first.items() <= everything.items()


def test_disabled_plugin_has_no_fixture_and_no_run_folder(pytester):
    pytester.makepyfile(test_plain="def test_plain(): pass\n", test_it="def test_it(perf): pass\n")
    result = pytester.runpytest_subprocess("-p", "no:pytest_llmperf.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'perf' not found*"])
    assert not Path(pytester.path, ".llmperf").exists()


@pytest.mark.parametrize("name", ["llmperf", "pytest_llmperf", "pytest-llmperf"])
def test_disabling_under_another_name_is_refused_with_registered_name(pytester, name):
    result = pytester.runpytest_subprocess("-p", f"no:{name}", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*Write -p no:pytest_llmperf.plugin"])


@pytest.mark.parametrize("args", [[], ["-n", "2"], ["--reruns=1"], ["--timeout=60"], ["--count=2"]], ids=" ".join)
def test_a_run_without_performance_tests_is_left_alone(pytester, args):
    """No file, no line of output, no exit code of ours; a flaky test of somebody else's included."""
    pytester.makepyfile("SEEN = []\n\ndef test_a(): pass\n\ndef test_b():\n    SEEN.append(1)\n"
                        "    assert len(SEEN) > 1 or not FLAKY\n".replace("FLAKY", str("--reruns=1" in args)))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *args)
    assert result.ret == 0
    assert "llmperf:" not in result.stdout.str()
    assert not Path(pytester.path, ".llmperf").exists()
    assert not Path(pytester.path, "baselines").exists()


LISTING = """
import sys

import pytest

@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    ours = {name: module for name, module in sys.modules.items() if name.startswith("pytest_llmperf")}
    dataclasses = [f"{name} has {key}" for name, module in ours.items() for key, value in vars(module).items()
                   if hasattr(value, "__dataclass_fields__")]
    with open("modules.txt", "w") as file:
        file.write("\\n".join([*sys.modules, *dataclasses]))
"""


def test_unrelated_run_loads_only_seven_small_modules(pytester):
    """An unrelated run may cost 5 %: the installed plugin is part of every pytest run of its environment.

    The limit rules out heavy modules of any package, also of the standard library. It rules out dataclasses, too: each
    compiles its methods at import, which took 1 % of an unrelated run for one dataclass of 13 fields.
    """
    pytester.makeconftest(LISTING)
    pytester.makepyfile("import pytest\n\ndef test_passes(): pass\n\ndef test_skips(): pytest.skip('why')\n")

    def loaded(*args):
        assert pytester.runpytest_subprocess("-p", "no:cacheprovider", *args).ret == 0
        return set(Path(pytester.path, "modules.txt").read_text().splitlines())

    parts = ("", ".doors", ".kinds", ".plugin", ".plugin.hookspec", ".plugin.options", ".version")
    assert loaded() - loaded("-p", "no:pytest_llmperf.plugin") == {f"pytest_llmperf{part}" for part in parts}


FREEZING = """
import time
from contextlib import contextmanager

def fake_monotonic_ns():
    return 0

@contextmanager
def freeze():
    real, time.monotonic_ns = time.monotonic_ns, fake_monotonic_ns
    try:
        yield
    finally:
        time.monotonic_ns = real
"""
FROZEN = """
import pytest
from freezing import freeze
from pytest_llmperf import closed, random_tokens, vllm

SPEC = vllm("llama-3.1-8b", max_model_len=4096)

@pytest.fixture
def frozen():
    with freeze():
        yield

LOAD = random_tokens(input=8, output=4, arrivals=closed(1), requests=2)

def measure(perf, engine=SPEC):
    perf.check(perf.measure(engine, LOAD), "error_rate == 0")

@freeze()
def test_decorated(perf):
    measure(perf)

@pytest.mark.engine(SPEC)
def test_before(frozen, engine, perf):
    measure(perf, engine)

@pytest.mark.engine(SPEC)
def test_after(engine, perf, frozen):
    measure(perf, engine)
"""


@pytest.mark.emulated
def test_frozen_clock_is_refused_in_decorators_and_fixtures(run, pytester):
    pytester.makepyfile(freezing=FREEZING)
    result, _ = run(FROZEN, "--emulate", "h200", "--emulate-clock", "real")
    result.assert_outcomes(failed=2, errors=1)
    lines = [line for line in result.outlines if line.startswith("llmperf USAGE: freezing replaces time.monotonic_ns")]
    assert len(lines) == 3


BLOCKING = """
import socket
import pytest

class GuardedSocket(socket.socket):
    def __new__(cls, *args, **kwargs):
        raise RuntimeError("A test tried to use a socket.")

@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr(socket, "socket", GuardedSocket)
"""


@pytest.mark.emulated
def test_plugin_that_blocks_sockets_is_named(run, pytester):
    pytester.makepyfile(socket_guard=BLOCKING)
    result, _ = run(SUITE, "--emulate", "h200", "--emulate-clock", "real", "-p", "socket_guard", "-k", "1-4")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["llmperf USAGE: socket-guard blocks connections of this test*A test tried to use*"])
