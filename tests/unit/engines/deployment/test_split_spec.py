"""What prefill servers and decode servers are made of, and what `prefill_decode` refuses before anything starts."""

import json

import pytest

from pytest_llmperf import nginx, nixl, prefill_decode, replicas, sglang, sglang_router, vllm, vllm_router
from pytest_llmperf.engines.connectors.adapter import connector_adapter_of
from pytest_llmperf.engines.deployment.emulated import emulated_words
from pytest_llmperf.engines.spec import flags_of
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.deployment import Connector

SPEC = vllm("tiny")


def apart(prefill=SPEC, decode=SPEC, sizes=(1, 1), connector=None, router=None):
    return prefill_decode(prefill=replicas(prefill, sizes[0]), decode=replicas(decode, sizes[1]),
                          connector=connector or nixl(), router=router or vllm_router())


def test_pools_have_servers_flags_and_gpus_of_their_own():
    split = apart(SPEC.with_flags(max_num_batched_tokens=8192, max_num_seqs=4),
                  SPEC.with_flags(tensor_parallel_size=2, max_num_seqs=4), sizes=(2, 3))
    assert list(split.parts) == ["prefill-1", "prefill-2", "decode-1", "decode-2", "decode-3"]
    assert (split.servers, split.gpus) == (5, 8)
    assert flags_of(split) == {"max_num_seqs": 4}
    changed = split.with_flags(max_num_seqs=16).with_installation("old").on("h100")
    assert flags_of(changed.parts["decode-3"]) == {"max_num_seqs": 16, "tensor_parallel_size": 2}
    assert changed.parts["prefill-1"].installation == "old"
    assert changed.parts["decode-1"].kind == "h100"
    assert str(apart()) == ("prefill_decode(prefill=replicas(vllm('tiny'), 1), decode=replicas(vllm('tiny'), 1), "
                            "connector=nixl(), router=vllm_router(policy='cache_aware'))")
    assert len({apart(), apart(), apart(sizes=(1, 2))}) == 2


def test_emulator_gets_the_flags_that_only_one_pool_has():
    split = apart(SPEC.with_flags(max_num_batched_tokens=8192, max_num_seqs=4), SPEC.with_flags(max_num_seqs=4), (1, 2))
    words = emulated_words(split.on("l4"))
    assert words[words.index("--split") + 1] == "32000000000.0"  # PCIe is slower than the connector
    assert json.loads(words[words.index("--pools") + 1]) == [[1, ["--max-num-batched-tokens", "8192"]], [2, []]]


@pytest.mark.parametrize(("pool", "kind", "config"), [
    ("prefill", "h100", {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}),
    ("decode", "cpu", {"kv_connector": "NixlConnector", "kv_role": "kv_consumer", "kv_buffer_device": "cpu"}),
])
def test_nixl_gives_each_pool_its_role_and_each_server_its_side_channel(pool, kind, config):
    adapter = connector_adapter_of(nixl())
    assert adapter.flags(pool, kind) == {"kv_transfer_config": config}
    assert adapter.variables(5601) == {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                                       "VLLM_NIXL_SIDE_CHANNEL_PORT": "5601"}


@pytest.mark.parametrize(("make", "message"), [
    (lambda: prefill_decode(prefill=SPEC, decode=replicas(SPEC, 1), connector=nixl(), router=vllm_router()),
     r"Write prefill=replicas\(vllm\('tiny'\), 1\)"),
    (lambda: apart(sizes=(0, 1)), "a whole number from 1 to 1024"),
    (lambda: prefill_decode(prefill=replicas(SPEC, 1), decode=replicas(SPEC, 2, router=nginx()), connector=nixl(),
                            router=vllm_router()), "decode=replicas.*equal servers without a router"),
    (lambda: apart(connector="nixl"), r"write connector=nixl\(\)"),
    (lambda: apart(connector=Connector("nixel")), "no connector 'nixel'. Did you mean 'nixl'"),
    (lambda: apart(router=nginx()), "nginx sends a request to one server only"),
    (lambda: apart(router=sglang_router()), r"sglang_router sends a request to one server only.*router=vllm_router"),
    (lambda: apart(sglang("tiny"), sglang("tiny")), "nixl is started here for vllm alone, and not for sglang.*endpo"),
    (lambda: apart(decode=sglang("tiny")), "different engines, 'vllm' and 'sglang'"),
    (lambda: apart(decode=vllm("llama-3.1-8b")), "different models, 'tiny' and 'llama-3.1-8b'"),
    (lambda: apart(decode=SPEC.with_flags(block_size=32)), "block_size=None and the decode servers have block_s"),
    (lambda: apart(SPEC.with_flags(kv_cache_dtype="fp8")), "kv_cache_dtype='fp8'.*nixl copies blocks as they are"),
    (lambda: apart(SPEC.with_flags(pipeline_parallel_size=2)), "prefill servers are pipeline parallel"),
    (lambda: apart(decode=SPEC.with_flags(data_parallel_size=2)), "decode servers are data parallel"),
    (lambda: apart(decode=SPEC.with_flags(enable_dp_attention=True)), "decode servers have DP attention"),
    (lambda: apart(SPEC.with_flags(kv_transfer_config={"kv_connector": "X"})), "the connector sets this flag"),
    (lambda: apart(vllm("tiny", env={"VLLM_NIXL_SIDE_CHANNEL_PORT": 5600})), "two servers with the same side channel"),
    (lambda: apart(SPEC.with_lmcache()), "LMCache below replicas is not started yet"),
    (apart().with_lmcache, "LMCache below replicas is not started yet"),
])
def test_wrong_split_is_refused_with_one_sentence(make, message):
    with pytest.raises(SpecError, match=message):
        make()
