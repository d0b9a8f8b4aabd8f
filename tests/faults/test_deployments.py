"""Deployments at the user's door: parts that die, machines with too few GPUs, a router of the project itself."""

import os
import re
import shutil
import signal

import pytest

from pytest_llmperf.testing.waiting import until
from tests.faults.test_gpu_faults import FAKE

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
if shutil.which("nginx", path=PATH) is None and not os.environ.get("CI"):
    pytest.skip("nginx is missing. Run: sh scripts/install_test_packages.sh", allow_module_level=True)

SUITE = """
from pytest_llmperf import nginx, replicas

LONG = random_tokens(input=8, output=200, arrivals=closed(4), requests=4000)
FLEET = replicas(stub(), 2, router=nginx())

def test_x(perf):
    run = perf.measure(FLEET, {load}, runs=1)
    perf.check(run, "error_rate == 0")
"""
DOOR = """
from pytest_llmperf.extending import RouterAdapter
from pytest_llmperf.engines.routers.nginx import Nginx

class Own(Nginx):
    name = "own_router"

def pytest_llmperf_routers(config):
    return [Own()]
"""


def failures(junit):
    return "".join(node.text or "" for kind in ("error", "failure") for node in junit.iter(kind))


def test_replicas_share_the_load_and_conditions_name_the_router(suite):
    result, _ = suite.run(SUITE.format(load="FEW"))
    assert result.ret == 0
    (measurement,) = suite.run_files()["test_x"]["measurements"]
    (run,) = measurement["runs"]
    assert {name: counters["requests_finished"] for name, counters in run["replicas"].items()} == {"1": 6, "2": 6}
    conditions = measurement["conditions"]
    assert (conditions["replicas"], conditions["router"], conditions["router.policy"]) == ("2", "nginx", "round_robin")
    assert conditions["router.version"].count(".") == 2
    assert conditions["engine.version"] == "stub-1"
    suite.nothing_left()


def pids(suite, word):
    """Processes of the suite whose command line has this word."""
    return [pid for pid, command in suite.living().items() if any(part.endswith(word) for part in command.split())]


def is_measuring(suite):
    return suite.note.exists() and len(pids(suite, "serve")) == 2 and len(pids(suite, "nginx.conf")) == 1


@pytest.mark.parametrize(("part", "name"), [
    ("replica", r"Replica \d of 2 \(vllm"), ("router", "The router of repl"),
])
def test_dead_part_ends_the_measurement_and_is_named(suite, part, name):
    process = suite.start(SUITE.format(load="LONG"))
    until(lambda: is_measuring(suite))
    os.kill(pids(suite, "serve" if part == "replica" else "nginx.conf")[0], signal.SIGKILL)
    assert process.wait(60) == 10  # the load would take minutes
    assert re.search(f"{name}.*signal 9", failures(suite.junit()), re.DOTALL)
    suite.nothing_left()


def test_replica_that_dies_at_its_start_is_named_before_the_router_starts(suite):
    text = SUITE.format(load="FEW").replace("stub()", 'stub("exit-2")')
    result, junit = suite.run(text)
    assert result.ret == 10
    assert "Replica 1 of 2 did not start: The vllm server ended before it was ready" in failures(junit)
    assert not list(suite.folder.glob(".llmperf/runs/*/servers/*/router"))
    suite.nothing_left()


def test_killed_session_leaves_no_part(suite):
    process = suite.start(SUITE.format(load="LONG"))
    until(lambda: is_measuring(suite))
    process.kill()
    process.wait()
    suite.nothing_left()


def test_router_of_conftest_is_started(suite):
    suite.pytester.makeconftest(DOOR)
    text = SUITE.replace("from pytest_llmperf import nginx, replicas",
                         "from pytest_llmperf import replicas\nfrom pytest_llmperf.extending import Router")
    result, _ = suite.run(text.format(load="FEW").replace("nginx()", "Router('own_router', 'round_robin')"))
    assert result.ret == 0
    assert suite.run_files()["test_x"]["measurements"][0]["conditions"]["router"] == "own_router"


@pytest.fixture
def gpus(suite, monkeypatch):
    """Shows so many GPUs to the session."""
    (suite.folder / "pynvml.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(suite.folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    suite.settings(gpu_interval_s=0.01, gpu_free_timeout_s=0.2)
    return lambda count: monkeypatch.setenv("FAKE_GPUS", str(count))


MARKED = SUITE.replace("def test_x(perf):", "@pytest.mark.h200\ndef test_x(perf):")


def test_machine_with_fewer_gpus_than_replicas_starts_nothing_and_is_not_green(suite, gpus):
    gpus(1)
    result, junit = suite.run(MARKED.format(load="FEW"), "-m", "h200")
    assert result.ret != 0
    assert "needs 2 GPUs, 1 for each replica, and this machine shows 1. Nothing was started" in failures(junit)
    assert not list(suite.folder.glob(".llmperf/runs/*/servers"))


def test_engine_marker_of_deployment_counts_its_gpus(suite, gpus):
    gpus(1)
    text = MARKED.replace("def test_x(perf):", "@pytest.mark.engine(FLEET)\ndef test_x(engine, perf):")
    result, _ = suite.run(text.format(load="FEW"), "-m", "h200")
    assert result.ret not in (0, 5)
    result.stdout.fnmatch_lines(["NOTHING MEASURED: *run it on a machine with 2 × h200, or --emulate h200"])


def test_each_replica_sees_gpus_of_its_own(suite, gpus):
    gpus(3)
    text = MARKED.format(load="FEW").replace("stub()", "stub().with_flags(tensor_parallel_size=1)") + """
    pids = [part.unit.process.pid for part in perf._execution.session.pool._servers[FLEET].parts.values()]
    shown = [open(f"/proc/{pid}/environ").read().split("\\0") for pid in pids]
    print("GPUS", [next(word for word in words if word.startswith("CUDA_V")) for words in shown])
"""
    result, _ = suite.run(text, "-m", "h200", "-s")
    result.stdout.fnmatch_lines(["*'CUDA_VISIBLE_DEVICES=0', 'CUDA_VISIBLE_DEVICES=1'*"])
    assert suite.run_files()["test_x"]["measurements"][0]["conditions"]["gpu_count"] == "2"


SWAPPED = SUITE.replace("def test_x(perf):", """
def test_x(perf):
    other = FLEET.with_router(policy="random")
    pool = perf._execution.session.pool
    def pids(spec):
        server = pool.acquire(spec)
        return [part.unit.process.pid for part in server.parts.values()], server.unit.process.pid
    replicas, router = pids(FLEET)
    kept, second = pids(other)
    assert kept == replicas and second != router
    claim = perf.claim(FLEET, other, FEW, "ttft_p50(a) / ttft_p50(b) <= 100")
    assert pids(other)[0] == replicas
    assert not [number for number in [router, second] if os.path.exists("/proc/" + str(number))]
    assert claim.a.conditions["router.policy"] == "round_robin" and claim.b.conditions["router.policy"] == "random"
    print("CLAIM", claim.results[0].facts)
    pool.acquire(replicas_of_three)
    assert not [number for number in replicas if os.path.exists("/proc/" + str(number))]

replicas_of_three = replicas(stub(), 3, router=nginx())

def test_y(perf):
""").replace("from pytest_llmperf import nginx, replicas", "import os\nfrom pytest_llmperf import nginx, replicas")


def test_sides_that_differ_in_the_router_alone_keep_the_replicas(suite):
    result, _ = suite.run(SWAPPED.format(load="FEW"), "-s", "-k", "test_x", "--llmperf-extension-limit=0")
    assert result.ret in (0, 11)  # on a busy machine three pairs may decide nothing
    result.stdout.fnmatch_lines(["*CLAIM {'pairs': 3, 'starts_a': 1, 'starts_b': 1}*"])
    suite.nothing_left()


@pytest.mark.parametrize("spec", ["vllm_router(policy='kv_aware')"])
def test_policy_that_needs_kv_events_is_refused_before_a_start(suite, spec):
    text = SUITE.replace("nginx, replicas", "vllm_router, replicas").replace("nginx()", spec)
    result, junit = suite.run(text.format(load="FEW"))
    assert result.ret == 1
    assert "without KV events of the servers the router chooses by load alone" in failures(junit)
    assert not list(suite.folder.glob(".llmperf/runs/*/servers"))


DYING = """
import os, signal, time
import pytest_llmperf.session.series as series
from pytest_llmperf.engines.deployment.unit import DeploymentUnit

def kill(unit):
    part = unit.router if {part!r} == "router" else unit.parts["2"].process
    os.kill(part.pid, signal.SIGKILL)

if {moment!r} == "warm-up":
    warm_up = series.warm_up
    def dying(server, workload, replayer):
        kill(server.unit)
        warm_up(server, workload, replayer)
    series.warm_up = dying
else:
    stop = DeploymentUnit.stop
    def dying(unit, grace_s):
        kill(unit)
        stop(unit, grace_s)
    DeploymentUnit.stop = dying
"""


@pytest.mark.parametrize(("part", "name"), [
    ("replica", r"Replica 2 of 2 \(vllm"), ("router", "The router of repl"),
])
def test_part_that_dies_in_the_warm_up_is_named(suite, part, name):
    result, junit = suite.run(DYING.format(part=part, moment="warm-up") + SUITE.format(load="FEW"))
    assert result.ret == 10
    assert re.search(f"{name}.*signal 9", failures(junit), re.DOTALL)
    suite.nothing_left()


@pytest.mark.parametrize("part", ["replica", "router"])
def test_part_that_dies_at_the_stop_leaves_the_verdict_and_no_process(suite, part):
    result, _ = suite.run(DYING.format(part=part, moment="stop") + SUITE.format(load="FEW"))
    assert result.ret == 0
    suite.nothing_left()


def test_sticky_router_keeps_the_turns_of_a_conversation_at_one_replica(suite):
    """nginx hashes the header X-Session-Id. Without the header one replica would get all requests."""
    text = SUITE.replace("nginx()", "nginx(policy='consistent_hash')").replace(
        "from pytest_llmperf import nginx, replicas", "from pytest_llmperf import multi_turn, nginx, replicas")
    load = "multi_turn(turns=4, input=8, output=4, conversations=24, arrivals=closed(4))"
    result, _ = suite.run(text.format(load=load))
    assert result.ret == 0
    (run,) = suite.run_files()["test_x"]["measurements"][0]["runs"]
    finished = [counters["requests_finished"] for counters in run["replicas"].values()]
    assert sum(finished) == 96
    assert min(finished) > 0
    assert all(count % 4 == 0 for count in finished)
