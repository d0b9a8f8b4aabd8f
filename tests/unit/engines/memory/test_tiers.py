"""Which tiers of a cache can be kept while the others are emptied."""

import re

import pytest

from pytest_llmperf.engines.endpoint.spec import endpoint
from pytest_llmperf.engines.spec import sglang, vllm
from pytest_llmperf.errors import SpecError
from pytest_llmperf.session.arguments import CACHE_TIERS, check_keep

OFFLOADING = vllm("m", kv_offloading_size=8)
BY_HAND = vllm("m", kv_transfer_config={"kv_connector": "OffloadingConnector", "kv_role": "kv_both"})
HICACHE = sglang("m", enable_hierarchical_cache=True)


def refusal(spec, keep, *, fresh):
    """The sentence that refuses these tiers; "" where they are accepted."""
    try:
        check_keep(spec, keep, fresh=fresh)
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("spec", "keep", "complaint"),
    [
        (OFFLOADING, ["engine"], "vLLM empties offloaded KV cache only together"),
        (BY_HAND, ["engine", "l2"], r"keep=\('engine', 'l2'\)\): vLLM empties"),
        (HICACHE, ["engine"], "SGLang empties its own host memory"),
        (HICACHE, ["l1"], "SGLang empties its own host memory"),
        (sglang("m", enable_hicache=True), ["l1", "l2"], "SGLang empties its own host memory"),
    ],
)
def test_tiers_emptied_together_must_be_kept_together(spec, keep, complaint):
    assert re.search(complaint, refusal(spec, keep, fresh=False))
    assert refusal(spec, [], fresh=False) == refusal(spec, ["engine", "l1"], fresh=False) == ""


@pytest.mark.parametrize("spec", [vllm("m"), OFFLOADING, HICACHE, vllm("m").with_lmcache(in_process=True)])
def test_only_tiers_of_lmcache_server_survive_fresh_start(spec):
    complaint = r"fresh=True, keep=\('l1', 'l2'\)\): .* ends with it; only an LMCache server"
    assert re.search(complaint, refusal(spec, ["l1", "l2"], fresh=True))
    assert refusal(spec, [], fresh=True) == ""


@pytest.mark.parametrize("keep", [[tier] for tier in CACHE_TIERS])
@pytest.mark.parametrize(
    ("spec", "fresh"),
    [
        (vllm("m"), False),
        (sglang("m", enable_hierarchical_cache=False), False),
        (vllm("m", kv_offloading_size=8, kv_offloading_backend="lmcache"), False),
        (vllm("m").with_lmcache(), True),
        (sglang("m").with_lmcache(l2_path="kv"), True),
        (endpoint("http://h:1", model="m"), True),
    ],
)
def test_every_other_tier_can_be_kept_alone(spec, fresh, keep):
    assert refusal(spec, keep, fresh=fresh) == ""


def test_vllm_can_keep_offloaded_tier_and_empty_engine_cache():
    assert refusal(OFFLOADING, ["l1"], fresh=False) == ""
