"""Real vLLM that must refuse to start."""

import pytest

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

SUITE = """
from pytest_llmperf import by_kind, vllm

@by_kind(cpu={{}})
def test_it(case, perf):
    perf.refuses(vllm("tiny", {flags}), "{reason}")
"""
BEYOND_MODEL = "max_model_len=32_769"
WITHIN_CACHE = "max_model_len=1_024, num_gpu_blocks_override=9"


@pytest.mark.parametrize(("reason", "tag", "line"), [
    ("max_model_len", None, "*refuses max_model_len*PASS*User-specified max_model_len (32769) is greater than*"),
    pytest.param("max_num_seqs", "error",
                 "*none of its error messages names max_num_seqs. Its log says: “*User-specified*",
                 marks=pytest.mark.thorough),
])
def test_real_engine_refuses_for_the_named_reason_alone(run_real, reason, tag, line):
    result, tags = run_real(SUITE.format(flags=BEYOND_MODEL, reason=reason), "-rA")
    assert tags == {"test_it[cpu]": {tag} if tag else set()}
    result.stdout.fnmatch_lines([line])


@pytest.mark.thorough
def test_real_engine_that_starts_is_a_fail(run_real):
    result, tags = run_real(SUITE.format(flags=WITHIN_CACHE, reason="max_model_len"))
    assert tags == {"test_it[cpu]": {"failure"}}
    result.stdout.fnmatch_lines(["*refuses max_model_len: the engine started, and the test expects*"])
