"""What a deployment is made of, and what `replicas` refuses before anything starts."""

from types import SimpleNamespace

import pytest

from pytest_llmperf import endpoint, nginx, replicas, sglang_router, vllm, vllm_router
from pytest_llmperf.cli.target import spec_of
from pytest_llmperf.engines.routers.adapter import router_adapter_of
from pytest_llmperf.errors import SpecError
from pytest_llmperf.model.deployment import Router
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.session.arguments import check_engine

SPEC = vllm("tiny", max_num_seqs=8)
FLEET = replicas(SPEC, 4, router=vllm_router(cache_threshold=0.5))


def test_deployment_is_a_spec_of_its_replicas():
    assert isinstance(FLEET, EngineSpec)
    assert FLEET.servers == 4
    assert SPEC.servers == 1
    assert FLEET.replica == SPEC
    assert FLEET != SPEC
    assert str(FLEET) == ("replicas(vllm('tiny', max_num_seqs=8), 4, "
                          "router=vllm_router(policy='cache_aware', cache_threshold=0.5))")


def test_changed_flags_installation_and_kind_are_those_of_each_replica():
    changed = FLEET.with_flags(max_num_seqs=16).with_installation("old").on("h100")
    assert changed.replica == vllm("tiny", max_num_seqs=16).with_installation("old")
    assert changed.replica.kind == "h100"
    assert (changed.servers, changed.router) == (4, FLEET.router)


def test_other_policy_keeps_the_options_of_the_router():
    other = FLEET.with_router(policy="round_robin", cache_threshold=None, retries=True)
    assert other.router == vllm_router(policy="round_robin", retries=True)
    assert other.replica == FLEET.replica
    assert FLEET.with_router(nginx()).router == nginx()
    assert len({FLEET, other, FLEET.with_router(policy="cache_aware")}) == 2


@pytest.mark.parametrize(("make", "message"), [
    (lambda: replicas(SPEC, 4, router=None), r"write vllm\('tiny', data_parallel_size=4\), or name a router"),
    (lambda: replicas(SPEC, 1, router=nginx()), "a whole number from 2 to 1024"),
    (lambda: replicas(SPEC, 10**9, router=nginx()), "a whole number from 2 to 1024"),
    (lambda: nginx(policy=["random"]), "write the policy as text"),
    (lambda: replicas(SPEC, 2, router=Router("nginx", "random", (("polcy", "1"),))), "no option polcy"),
    (lambda: SPEC.with_router(policy="random"), "only replicas that a test starts have a router"),
    (lambda: endpoint("http://h:1", model="m").with_router(policy="random"), "only replicas that a test starts"),
    (lambda: replicas(SPEC, True, router=nginx()), "a whole number from 2 to 1024"),
    (lambda: replicas("tiny", 2, router=nginx()), 'the spec of one server, such as vllm'),
    (lambda: replicas(FLEET, 2, router=nginx()), "the spec of one server, such as vllm"),
    (lambda: replicas(endpoint("http://h:1", model="m"), 2, router=nginx()), r"as one endpoint: endpoint"),
    (lambda: replicas([SPEC, vllm("llama-3.1-8b")], router=nginx()), "serve different models, tiny and llama-3.1-8b"),
    (lambda: replicas([SPEC, SPEC], router=nginx()), "Give the spec of one server, and their number"),
    (lambda: replicas(SPEC, 2, router="nginx"), r"give vllm_router\(\), sglang_router\(\) or nginx\(\)"),
    (lambda: replicas(SPEC.with_flags(device_ids=[0, 1]), 2, router=nginx()), "device_ids would give all replicas"),
    (lambda: replicas(SPEC.with_lmcache(), 2, router=nginx()), "LMCache below replicas is not started yet"),
    (FLEET.with_lmcache, "LMCache below replicas is not started yet"),
    (lambda: replicas(SPEC, 2, router=Router("ngnix", "random")), "no router 'ngnix'. Did you mean 'nginx'"),
    (lambda: replicas(SPEC, 2, router=sglang_router(policy="kv_aware")), "sglang_router has no policy 'kv_aware'; its"),
    (lambda: FLEET.with_router(nginx(), policy="random"), "give a router, .* or a policy"),
    (lambda: vllm_router(cache_threshold=float("nan")), "write an option as text"),
    (lambda: replicas(SPEC, 2, router=vllm_router(retries=3)), "write retries=True or retries=False"),
    (lambda: router_adapter_of(FLEET.with_router(circuit_breaker="on").router), "write circuit_breaker=True or"),
    (lambda: replicas(SPEC, 2, router=vllm_router(host="0.0.0.0")), "host is set by the launcher"),
    (lambda: router_adapter_of(sglang_router(disable_retries=True)), "disable_retries is set by the launcher"),
    (lambda: check_engine(replicas(SPEC, 2), "perf.measure(…, workload)"), r"no router. Write replicas\(…, router="),
])
def test_wrong_deployment_is_refused_with_one_sentence(make, message):
    with pytest.raises(SpecError, match=message):
        make()


def test_command_line_refuses_a_deployment_and_names_the_search_in_a_suite():
    with pytest.raises(SpecError, match=r"tune and capacity start one server, .*perf\.max_rate\(replicas"):
        spec_of(SimpleNamespace(engine="replicas(vllm:tiny,2)", flag=[], model_alias=[]))


