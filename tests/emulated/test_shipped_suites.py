"""The shipped suites on the emulator: green on every kind, red for every planted fault, with the cause named.

These tests take minutes, so `make test-emulated` runs them separately from the fast tests.
"""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# fault, suite, -k, words that name the cause, class: docs/planted_faults.md has the same rows.
FAULTS = [
    ("prefix_cache=off", "prefix_caching", "shared_prefixes", "prefix_cache_hit_rate(a)", "FAIL"),
    ("answer_cache=off", "conversations", "later_turns and vllm", "hit_rate_turn2plus", "FAIL"),
    ("chunk_budget=/4", "chunked_prefill", "small_chunks", "max_num_batched_tokens", "ERROR"),
    ("acceptance=-0.5", "speculative_decoding", "ngram", "spec_acceptance_rate(a)", "FAIL"),
    # This needs the ten stored sessions.
    ("tp_link=/2", "tensor_parallel", "four_gpus_prefill", "ttft_p50 changed", "FAIL"),
    ("throttle", "serving", "answers_come_in_time", "not steady: tpot_mean", "ERROR"),
    ("kv=-50%", "kv_cache", "memory_becomes", "kv_blocks", "FAIL"),
    ("offload_bandwidth=/4", "kv_cache", "evicted", "ttft_mean changed", "FAIL"),
    ("stalls=1%", "serving", "answers_come_in_time", "largest_stall_p75", "FAIL"),
    ("leak", "serving", "answers_come_in_time", "blocks are still held", "ERROR"),
    ("step_time=+10%", "serving", "answers_come_in_time", "itl_p50 changed", "FAIL"),
    ("errors=2%", "serving", "answers_come_in_time", "error_rate", "FAIL"),
    ("hangs=2%", "serving", "answers_come_in_time", "error_rate", "FAIL"),
    ("truncated=2%", "serving", "answers_come_in_time", "error_rate", "FAIL"),
    ("limited=2%", "serving", "answers_come_in_time", "rate limited", "ERROR"),
    ("disconnects=ignored", "cancellations", "cancelled", "blocks are still held", "ERROR"),
    ("router=round_robin", "replicas", "sooner and 2-", "prefix_cache_hit_rate(a)", "FAIL"),
    ("starved_replica=2", "replicas", "nothing and 2-", "replica 2 of 2 served none", "ERROR"),
    ("slow_replica=+20%:2", "replicas", "nothing and 2-", "replica_slowdown", "FAIL"),
]
# flag, suite, -k, words that name the cause: docs/gpu_runners.md has the same rows, for hardware.
PLANTED = [
    ("vllm:enforce-eager", "cuda_graphs", "graphs_decode", "eager(a)"),
    ("vllm:no-enable-prefix-caching", "prefix_caching", "shared_prefixes_come_from_the_cache",
     "prefix_cache_hit_rate(a)"),
    ("vllm:max-num-batched-tokens=8192", "chunked_prefill", "small_chunks", "chunk_budget(a)"),
    ("vllm:num-gpu-blocks-override=5749", "kv_cache", "memory_becomes_blocks", "kv_blocks"),
    ("vllm:speculative-config.synthetic_acceptance_length=2.0", "synthetic_acceptance", "follows and 2.5-1.5",
     "spec_acceptance_length(a)"),
    ("vllm:max-num-seqs=1024", "kv_pressure", "flowing", "preemptions(a)"),
    ("vllm:max-num-seqs=1", "batch_limits", "few", "tokens_per_step"),
    ("vllm:tensor-parallel-size=1", "tensor_parallel", "two_gpus_decode", "tensor_parallel(a)"),
    ("vllm:quantization=fp8", "fp8", "weights", "kv_blocks(b)"),
    ("vllm:kv-cache-dtype=fp8", "fp8", "cache_holds", "kv_blocks(b)"),
    ("vllm:max-model-len=1024", "refusals", "beyond_the_kv_cache", "the engine started"),
    ("vllm:kv-cache-dtype=auto", "l4_report", "step_3", "kv_blocks"),
    ("vllm:max-num-seqs=8", "capacity_plan", "few_seats", "queue_time_mean(a)"),
]
#: Rows whose kind of cause another row has, too.
THOROUGH = {
    "answer_cache=off", "hangs=2%", "truncated=2%", "throttle", "kv=-50%", "disconnects=ignored",
    "vllm:no-enable-prefix-caching", "vllm:num-gpu-blocks-override=5749", "vllm:max-num-seqs=1024",
    "vllm:kv-cache-dtype=fp8", "vllm:kv-cache-dtype=auto", "vllm:max-num-seqs=8",
}
EXIT_CODES = {"FAIL": 1, "ERROR": 10}

pytestmark = pytest.mark.emulated


def cases(rows):
    return [pytest.param(*row, id=row[0], marks=pytest.mark.thorough if row[0] in THOROUGH else ()) for row in rows]


@pytest.fixture
def suites(tmp_path):
    def suites(*args):
        junit = tmp_path / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-q", f"--junitxml={junit}",
                   f"--llmperf-runs={tmp_path / 'runs'}", "--llmperf-missing-baseline", "fail", *args]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
        return done, ET.parse(junit).getroot()

    return suites


@pytest.mark.parametrize("third", [0, 1, 2])  # so that several workers share what takes minutes
@pytest.mark.parametrize("kind", [
    *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("l4", "a100", "h100")), "h200",
])
def test_shipped_suites_pass_on_every_kind(suites, kind, third):
    files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("suites/test_*.py"))
    done, junit = suites(*files[third::3], "--emulate", kind, "-k", kind, "--emulate-seed", "7")
    ran = [case for case in junit.iter("testcase") if case.find("skipped") is None]
    assert done.returncode == 0, done.stdout[-3000:]
    assert len(ran) >= 4


@pytest.mark.parametrize(("fault", "suite", "selected", "cause", "verdict"), cases(FAULTS))
def test_shipped_suite_fails_for_every_planted_fault_with_cause(suites, fault, suite, selected, cause, verdict):
    done, junit = suites(f"suites/test_{suite}.py", "--emulate", "h200", "-k", f"h200 and {selected}",
                         "--emulate-seed", "8", "--emulate-fault", fault)
    failure_texts = [node.text or "" for tag in ("failure", "error") for node in junit.iter(tag)]
    assert done.returncode == EXIT_CODES[verdict], done.stdout[-3000:]
    assert any(cause in text for text in failure_texts), failure_texts


@pytest.mark.parametrize(("fault", "cause"), [
    ("stalls=2%", "largest_stall_p50"), ("answer_cache=off", "hit_rate_turn2plus"),
])
def test_capacity_plan_fails_for_planted_fault_with_cause(suites, fault, cause):
    """The limits of the plan's 99th percentiles hold under both faults."""
    done, junit = suites("suites/test_capacity_plan.py", "--emulate", "h200", "-k", "h200 and plan_serves",
                         "--emulate-seed", "8", "--emulate-fault", fault)
    (failure,) = junit.iter("failure")
    assert done.returncode == EXIT_CODES["FAIL"], done.stdout[-3000:]
    assert cause in failure.text


@pytest.mark.parametrize(("flag", "suite", "selected", "cause"), cases(PLANTED))
def test_shipped_suite_fails_for_every_planted_flag_with_mechanism(suites, flag, suite, selected, cause):
    done, junit = suites(f"suites/test_{suite}.py", "--emulate", "h200", "-k", f"h200 and {selected}",
                         "--emulate-seed", "8", "--plant-flag", flag)
    failure_texts = [node.text or "" for node in junit.iter("failure")]
    assert done.returncode == EXIT_CODES["FAIL"], done.stdout[-3000:]
    assert any(cause in text for text in failure_texts), failure_texts


def test_gpu_runners_page_lists_same_planted_flags():
    page = (ROOT / "docs" / "gpu_runners.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(vllm:[^`]+)` \| `([^`]+)` \|", page, re.MULTILINE)
    assert rows
    assert set(rows) <= {(flag, selected) for flag, _, selected, _ in PLANTED}
