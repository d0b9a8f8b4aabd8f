"""The shipped suites on the emulator: green on every kind, red for every planted fault, with the cause named.

They take minutes, so they run apart from the fast tests: `make test-emulated`.
"""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# fault, suite, words that name the cause, class: docs/verdicts.md has the same rows.
FAULTS = [
    ("prefix_cache=off", "prefix_caching", "prefix_cache_hit_rate(a)", "FAIL"),
    ("chunk_budget=/4", "chunked_prefill", "max_num_batched_tokens", "ERROR"),
    ("acceptance=-0.2", "speculative_decoding", "spec_acceptance_rate(a)", "FAIL"),
    ("tp_link=/2", "tensor_parallel", "ttft_p50 is", "FAIL"),   # this needs the ten stored sessions
    ("throttle", "serving", "not steady: tpot_mean", "ERROR"),
    ("kv=-50%", "kv_cache", "kv_blocks", "FAIL"),
    ("offload_bandwidth=/4", "kv_cache", "ttft_p50 is", "FAIL"),
    ("stalls=1%", "serving", "largest_stall_p75", "FAIL"),
    ("leak", "serving", "blocks are still held", "ERROR"),
    ("step_time=+10%", "serving", "tpot_mean is", "FAIL"),
    ("errors=2%", "serving", "error_rate", "FAIL"),
    ("hangs=2%", "serving", "error_rate", "FAIL"),
    ("truncated=2%", "serving", "error_rate", "FAIL"),
]
EXIT_CODES = {"FAIL": 1, "ERROR": 10}

pytestmark = pytest.mark.emulated


@pytest.fixture
def suites(tmp_path):
    def suites(*args):
        junit = tmp_path / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-q", f"--junitxml={junit}",
                   "--llmperf-runs", str(tmp_path / "runs"), "--missing-baseline", "fail", *args]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
        return done, ET.parse(junit).getroot()

    return suites


@pytest.mark.parametrize("kind", ["l4", "a100", "h100", "h200"])
def test_green_on_every_kind(suites, kind):
    done, junit = suites("suites", "--emulate", kind, "-k", kind, "--emulate-seed", "7")
    ran = [case for case in junit.iter("testcase") if case.find("skipped") is None]
    assert done.returncode == 0, done.stdout[-3000:]
    assert len(ran) >= 4


@pytest.mark.parametrize(("fault", "suite", "cause", "verdict"), FAULTS, ids=[fault for fault, *_ in FAULTS])
def test_red_for_every_planted_fault(suites, fault, suite, cause, verdict):
    done, junit = suites(f"suites/test_{suite}.py", "--emulate", "h200", "-k", "h200", "--emulate-seed", "8",
                         "--emulate-fault", fault)
    told = [node.text or "" for tag in ("failure", "error") for node in junit.iter(tag)]
    assert done.returncode == EXIT_CODES[verdict], done.stdout[-3000:]
    assert any(cause in text for text in told), told
