"""Two real vLLM replicas behind vLLM's router and nginx: what each served, deaths and a restart. No times."""

import json
import shutil

import pytest

from tests.engine_cpu.conftest import ROOT

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]
ROUTERS = ROOT / ".engines" / "routers" / "bin" / "python"
if not ROUTERS.exists():
    pytest.skip(f"{ROUTERS} is missing: make routers", allow_module_level=True)

SUITE = """
import os, signal, threading
import pytest
from pytest_llmperf import closed, nginx, replicas, shared_prefix, sglang_router, vllm, vllm_router

pytestmark = pytest.mark.cpu
FLEET = replicas(vllm("tiny", max_model_len=4096), 2, router=vllm_router(policy="cache_aware"))
LOAD = shared_prefix(prefix=1024, suffix=64, output=8, groups=9, arrivals=closed(3), requests=45)


def test_prefixes(perf):
    run = perf.measure(FLEET, LOAD, runs=1)
    perf.check(run, "error_rate == 0", "replica_imbalance <= 2")


@pytest.mark.engine(FLEET.with_router({other}))
def test_turns(engine, perf):
    run = perf.measure(engine, LOAD, runs=1)
    perf.check(run, "error_rate == 0", "replica_imbalance <= 1.3")
    replica = engine._handle.parts["2"].unit.process  # its first process: that of the API
    killer = threading.Timer(1.0, os.kill, (replica.pid, signal.SIGKILL))
    killer.start()
    perf.measure(engine, shared_prefix(prefix=1024, suffix=64, output=64, groups=9, arrivals=closed(3), requests=900),
                 runs=1)
"""


# Random weights: 16 tokens of 2 in 450 answers had no text at all, which is an empty answer; 64 tokens have some.
DEATH = """
import pytest
from pytest_llmperf import constant, kill, random_tokens, replicas, restart, vllm, vllm_router

pytestmark = pytest.mark.cpu


def test_death(perf):
    fleet = replicas(vllm("tiny", max_model_len=4096), 2, router=vllm_router(policy="round_robin", retries=True))
    run = perf.measure(fleet, random_tokens(input=64, output=64, arrivals=constant(3), requests=450), runs=1,
                       events=[kill(replica=1, at_requests=0.1), restart(replica=1, at_requests=0.12)])
    perf.check(run, "error_rate(before) == 0", "error_rate(during) <= 20%", "error_rate(after) == 0",
               "hung_requests == 0")
"""


@pytest.mark.thorough  # 200 s
def test_killed_real_replica_serves_again_after_its_restart_and_the_router_retries(run_real, pytester):
    _, cases = run_real(DEATH, f"--llmperf-engine=vllm_router={ROUTERS.parents[1]}")
    assert cases == {"test_death": set()}
    (path,) = pytester.path.glob(".llmperf/runs/*/tests/*.json")
    (run,) = json.loads(path.read_text())["measurements"][0]["runs"]
    assert sum(run["failures"].values()) <= 3  # those that the killed replica was answering
    assert run["counters"]["disturbed_until_s"] < 145  # so requests came afterwards
    assert len(list(pytester.path.glob(".llmperf/runs/*/servers/**/replica-2/**/*-again/server.log"))) == 1


def test_replicas_behind_real_routers_are_counted_and_dead_replica_is_named(run_real, pytester):
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/bin")
    other = "nginx()" if nginx else 'policy="round_robin"'
    result, cases = run_real(SUITE.replace("{other}", other), f"--llmperf-engine=vllm_router={ROUTERS.parents[1]}")
    assert cases == {"test_prefixes": set(), "test_turns": {"error"}}
    result.stdout.re_match_lines([r".*Replica 2 of 2 \(vllm\('tiny'.* died: signal 9"])
    files = [json.loads(path.read_text()) for path in pytester.path.glob(".llmperf/runs/*/tests/*.json")]
    measured = {file["test"].split("::")[1]: file["measurements"][0] for file in files}
    for name, policy, computed_prefixes in (("test_prefixes", "cache_aware", 9), ("test_turns", "round_robin", 18)):
        conditions, (run,) = measured[name]["conditions"], measured[name]["runs"]
        assert (conditions["replicas"], conditions["router.policy"]) == ("2", policy)
        assert conditions["router.version"] != "unknown"
        assert sum(counters["requests_finished"] for counters in run["replicas"].values()) == 45
        assert run["counters"]["prompt_tokens_cached"] == (45 - computed_prefixes) * 1024
    assert measured["test_prefixes"]["conditions"]["router"] == "vllm_router"
    requests = [counters["requests_finished"] for counters in measured["test_turns"]["runs"][0]["replicas"].values()]
    assert sorted(requests) == [22, 23]
