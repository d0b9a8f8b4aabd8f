"""A real prefill server and a real decode server, NIXL between them and vLLM's router before them. No times."""

import json

import pytest

from tests.engine_cpu.conftest import ROOT

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]
ROUTERS, NIXL = (ROOT / ".engines" / name / "bin" / "python" for name in ("routers", "vllm-cpu-nixl"))
for needed, command in ((ROUTERS, "routers"), (NIXL, "engine-vllm-nixl")):
    if not needed.exists():
        pytest.skip(f"{needed} is missing: make {command}", allow_module_level=True)

SUITE = """
import pytest
from pytest_llmperf import closed, nixl, prefill_decode, random_tokens, replicas, vllm, vllm_router

pytestmark = pytest.mark.cpu
ENGINE = vllm("tiny", max_model_len=4096)
SPLIT = prefill_decode(prefill=replicas(ENGINE, 1), decode=replicas(ENGINE, 1), connector=nixl(),
                       router=vllm_router(policy="round_robin"))


def test_split(perf):
    run = perf.measure(SPLIT, random_tokens(input=(200, 1500), output=16, arrivals=closed(2), requests=30), runs=1)
    perf.check(run, "error_rate == 0", "prefill_tokens(decode) == 0", "transferred_bytes >= 0.95 * expected",
               "failed_transfers == 0", "prefix_cache_hit_rate == 0")
"""
BLOCK_TOKENS, BYTES_PER_TOKEN = 128, 2048


def test_transferred_bytes_equal_whole_blocks_of_every_prompt(run_real, pytester):
    _, cases = run_real(SUITE, f"--llmperf-engine=vllm={NIXL.parents[1]}",
                        f"--llmperf-engine=vllm_router={ROUTERS.parents[1]}")
    assert cases == {"test_split": set()}
    (file,) = (json.loads(path.read_text()) for path in pytester.path.glob(".llmperf/runs/*/tests/*.json"))
    (run,) = file["measurements"][0]["runs"]
    prefill, decode = run["replicas"]["prefill-1"], run["replicas"]["decode-1"]
    assert (prefill["requests_finished"], decode["requests_finished"], decode["transfers"]) == (30, 30, 30)
    assert prefill["prompt_tokens_computed"] == decode["cached_tokens_p2p"] == decode["prompt_tokens"]
    assert decode["prompt_tokens_computed"] == prefill["transferred_bytes"] == 0
    blocks, rest = divmod(decode["transferred_bytes"], BLOCK_TOKENS * BYTES_PER_TOKEN)
    assert rest == 0
    assert 0 <= blocks * BLOCK_TOKENS - decode["prompt_tokens"] < 30 * BLOCK_TOKENS
