"""Each part of a split dies at each moment: the cause names the part, and no process is left."""

import re
import sys
from pathlib import Path

import pytest

from tests.faults.test_deployments import failures

ROUTER = Path(__file__).parents[1] / "stubs" / "faulty_split_router.py"
DOOR = f"""
from pytest_llmperf.extending import RouterAdapter

class Stub(RouterAdapter):
    api, name, program, splits = 1, "stub_router", {sys.executable!r}, True
    policies = {{"round_robin": "round_robin"}}

    def arguments(self, router, placement):
        return [{str(ROUTER)!r}, str(placement.port), "none", *placement.workers, *placement.decoders]

def pytest_llmperf_routers(config):
    return [Stub()]
"""
SUITE = """
import threading
import pytest_llmperf.engines.deployment.launcher as launcher
import pytest_llmperf.session.series as series
from pytest_llmperf import nixl, prefill_decode, replicas
from pytest_llmperf.engines.connectors.adapter import NIXL
from pytest_llmperf.engines.deployment.unit import DeploymentUnit
from pytest_llmperf.extending import Router

type(NIXL).package = ""  # the stub server needs none
ask, warm_up, stop = launcher.generate_one_token, series.warm_up, DeploymentUnit.stop

def kill(unit):
    process = unit.router if {part!r} == "router" else unit.parts[{part!r}].process
    os.kill(process.pid, signal.SIGKILL)

def start_dying(server, timeout_s):
    launcher.generate_one_token = ask
    kill(server.unit)
    ask(server, timeout_s)

def warm_up_dying(server, workload, replayer):
    kill(server.unit)
    warm_up(server, workload, replayer)

def run_dying(server, workload, replayer):
    warm_up(server, workload, replayer)
    threading.Timer(0.5, kill, [server.unit]).start()

def stop_dying(unit, grace_s):
    kill(unit)
    stop(unit, grace_s)

match {moment!r}:
    case "start":
        launcher.generate_one_token = start_dying
    case "warm-up":
        series.warm_up = warm_up_dying
    case "run":
        series.warm_up = run_dying
    case "stop":
        DeploymentUnit.stop = stop_dying

SPLIT = prefill_decode(prefill=replicas(stub(), 1), decode=replicas(stub(), 1), connector=nixl(),
                       router=Router("stub_router", "round_robin"))
LONG = random_tokens(input=8, output=200, arrivals=closed(2), requests=400)

def test_x(perf):
    run = perf.measure(SPLIT, LONG if {moment!r} == "run" else FEW, runs=1)
    perf.check(run, "error_rate == 0")
"""
NAMES = {"prefill-1": r"Server prefill-1 \(vllm", "decode-1": r"Server decode-1 \(vllm",
         "router": r"The router (of prefill_decode|.*faulty_split_router|.*python)"}


@pytest.mark.parametrize("moment", ["start", "warm-up", "run"])
@pytest.mark.parametrize("part", NAMES)
def test_dead_part_of_a_split_is_named_and_leaves_no_process(suite, part, moment):
    suite.pytester.makeconftest(DOOR)
    result, junit = suite.run(SUITE.format(part=part, moment=moment))
    assert result.ret == 10
    assert re.search(f"{NAMES[part]}.*signal 9", failures(junit), re.DOTALL)
    suite.nothing_left()


@pytest.mark.parametrize("part", NAMES)
def test_part_of_a_split_that_dies_at_the_stop_leaves_the_verdict_and_no_process(suite, part):
    suite.pytester.makeconftest(DOOR)
    result, _ = suite.run(SUITE.format(part=part, moment="stop"))
    assert result.ret == 0
    suite.nothing_left()
