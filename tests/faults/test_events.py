"""Deaths and restarts that a test asks for, on real processes behind nginx."""

import os
import re
import shutil

import pytest

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
if shutil.which("nginx", path=PATH) is None and not os.environ.get("CI"):
    pytest.skip("nginx is missing. Run: sh scripts/install_test_packages.sh", allow_module_level=True)

SUITE = """
from pytest_llmperf import constant, kill, nginx, replicas, restart, stop

FLEET = replicas(stub(), 2, router=nginx({options}))
LOAD = random_tokens(input=8, output=5, arrivals=constant(40), requests=400)

def test_x(perf):
    run = perf.measure(FLEET, LOAD, runs=2, events=[{events}])
    perf.check(run, "error_rate(before) == 0", "error_rate(after) == 0", "error_rate(during) <= 70%",
               "hung_requests == 0")
    after = perf.measure(FLEET, FEW, runs=1)
    perf.check(after, "error_rate == 0")
"""
#: Early, so that the server has started again long before the last request, on a busy machine, too.
KILLED = "kill(replica=1, at_requests=0.1), restart(replica=1, at_requests=0.12)"


def test_run_with_a_killed_and_restarted_replica_has_phases_and_no_error(suite):
    result, _ = suite.run(SUITE.format(options="", events=KILLED))
    assert result.ret == 0
    measured, _ = suite.run_files()["test_x"]["measurements"]
    assert "kill(replica=1, at_requests=0.1); restart(replica=1" in measured["conditions"]["treatment"]
    for run in measured["runs"]:
        assert 0.9 < run["counters"]["disturbed_from_s"] < run["counters"]["disturbed_until_s"] < 9.9
        assert set(run["replicas"]["2"].values()) == {None}
        assert run["failures"]
    suite.nothing_left()


def test_router_that_retries_loses_only_streams_of_the_killed_replica(suite):
    text = SUITE.format(options="retries=True", events="stop(replica=0, at_requests=0.3)")
    text = text.replace("runs=2", "runs=1").replace("error_rate(during) <= 70%", "error_rate <= 50%")
    result, _ = suite.run(text)
    assert result.ret == 0
    measured, after = suite.run_files()["test_x"]["measurements"]
    assert {kind for run in measured["runs"] for kind in run["failures"]} <= {"truncated"}  # and no HTTP 502
    assert {name: counters["requests_finished"] for name, counters in after["runs"][0]["replicas"].items()} == {
        "1": 6, "2": 6}  # the stopped replica was started again for the next measurement
    suite.nothing_left()


def test_death_that_no_event_asks_for_is_an_error_beside_events(suite):
    text = SUITE.format(options="", events=KILLED).replace("def test_x(perf):", """
def test_x(perf):
    import threading
    perf.measure(FLEET, FEW, runs=1)
    part = perf._execution.session.pool._servers[FLEET].parts["1"].unit.process
    threading.Timer(5, os.kill, (part.pid, signal.SIGKILL)).start()
""").replace("runs=2, events", "runs=3, events")
    result, junit = suite.run(text)
    assert result.ret == 10
    assert "Replica 1 of 2" in "".join(node.text or "" for node in junit.iter("error"))
    suite.nothing_left()


def test_replica_that_does_not_start_again_is_an_error(suite):
    text = SUITE.format(options="", events=KILLED)
    text = text.replace("stub()", 'stub("starts-twice", STUB_ONCE=os.path.abspath("up"))')
    result, junit = suite.run(text)
    assert result.ret == 10
    text = "".join(node.text or "" for node in junit.iter("error"))
    assert re.search(r"Replica 2 of 2 .* died: exit code 3|ended before it was ready: exit code 3", text, re.DOTALL)
    suite.nothing_left()
