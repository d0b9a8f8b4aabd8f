"""A session looks up the model and the environment of a server once."""

import pstats
import sys
from pathlib import Path

import pytest

from tests.conftest import BUSY_MACHINE, STEADY_AT_ONCE

SUITE = """
from pytest_llmperf import closed, random_tokens, vllm
SPEC = vllm("tiny", max_model_len=4096, env={"STUB_MODE": ""})
WORK = random_tokens(input=64, output=8, arrivals=closed(2), requests=12)

def test_first(perf):
    perf.check(perf.measure(SPEC, WORK), "error_rate == 0")
    perf.check(perf.measure(SPEC, WORK, fresh=True), "error_rate == 0")

def test_second(perf):
    perf.check(perf.measure(SPEC, WORK), "error_rate == 0")
"""
STUB = Path(__file__).parents[1] / "stubs" / "engine.py"


@pytest.fixture
def calls(pytester):
    """Runs a suite with a profiler; gives how often each function below `engines` was called."""

    def run(*options):
        pytester.makepyfile(test_it=SUITE)
        pytester.makeconftest(STEADY_AT_ONCE)
        Path(pytester.path, "llmperf.toml").write_text(BUSY_MACHINE)
        profile = Path(pytester.path, "calls.pstats")
        result = pytester.run(sys.executable, "-m", "cProfile", "-o", profile, "-m", "pytest", "-p", "no:cacheprovider",
                              *options)
        result.assert_outcomes(passed=2)
        stats = pstats.Stats(str(profile)).stats
        return {name: values[0] for (file, _, name), values in stats.items() if "/engines/" in file}

    return run


@pytest.mark.emulated
def test_session_resolves_model_of_emulated_server_once(calls):
    counts = calls("--emulate", "h200")
    assert counts["acquire"] > 2
    assert counts["resolve_model"] == 1
    assert counts["emulator_environment"] == counts["start"]


def test_session_resolves_model_and_environment_of_started_server_once(calls):
    counts = calls("--llmperf-engine", f"vllm={sys.executable} {STUB}")
    assert counts["acquire"] > 2
    assert counts["resolve_model"] == 1
    assert counts["find_environment"] == 3  # for the header's note, the digest of the tests' inputs, and the start
    assert counts["child_environment"] == counts["launched"] == 2
