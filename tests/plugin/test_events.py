"""Deaths and restarts of replicas that a test asks for, under `--emulate`, and events that cannot happen."""

import json

import pytest

pytestmark = pytest.mark.emulated

SUITE = """
import pytest
from pytest_llmperf import (closed, endpoint, kill, nginx, nixl, poisson, prefill_decode, random_tokens, replicas,
                            restart, stop, vllm, vllm_router)

ENGINE = vllm("llama-3.1-8b")
LOAD = random_tokens(input=512, output=64, arrivals=poisson(8), requests=640)
EVENTS = [kill(replica=1, at_requests=0.25), restart(replica=1, at_requests=0.3)]

def fleet(**options):
    return replicas(ENGINE, 2, router=vllm_router(**options))

def split(each=2, **options):
    pool = replicas(ENGINE, each)
    router = vllm_router(policy="round_robin", **options)
    return prefill_decode(prefill=pool, decode=pool, connector=nixl(), router=router)
"""
CHECKS = """
@pytest.mark.h100
@pytest.mark.parametrize("policy", ["round_robin", "cache_aware"])
@pytest.mark.parametrize("options", [{}, {"retries": True}, {"circuit_breaker": True},
                                     {"retries": True, "circuit_breaker": True}],
                         ids=["", "retries", "breaker", "both"])
def test_x(perf, policy, options):
    run = perf.measure(fleet(policy=policy, **options), LOAD, events=EVENTS, runs=2)
    perf.check(run, "error_rate(before) == 0", "error_rate(during) <= 99%", "error_rate(after) == 0",
               "hung_requests == 0")
"""


def test_router_decides_how_many_requests_fail_while_a_replica_is_dead(run, pytester):
    result, _ = run(SUITE + CHECKS, "--emulate", "h100")
    result.assert_outcomes(passed=8)
    shares = {}
    for path in pytester.path.glob(".llmperf/runs/*/tests/*.json"):
        file = json.loads(path.read_text())
        (check,) = [check for check in file["checks"] if check["metric"] == "error_rate(during)"]
        shares[file["test"].partition("[")[2].rstrip("]")] = check["estimate"]
        for measured in file["measurements"][0]["runs"]:
            assert measured["counters"]["disturbed_until_s"] - measured["counters"]["disturbed_from_s"] > 40
            assert measured["metrics"]["recovery_time"] is not None
            assert set(measured["replicas"]["2"].values()) == {None}
    assert shares["-round_robin"] == pytest.approx(0.5, abs=0.05)
    assert shares["-cache_aware"] > 0.6  # the dead replica always has the fewest requests
    assert shares["retries-round_robin"] < 0.05
    assert shares["retries-cache_aware"] > 0.6  # the router sends each retry to the dead replica again
    assert shares["breaker-round_robin"] < 0.1
    assert shares["breaker-cache_aware"] < 0.1
    assert shares["both-cache_aware"] < 0.02


SPLITS = """
@pytest.mark.h100
@pytest.mark.parametrize(("end", "pool", "each", "limit"), [
    (kill, "prefill", 2, "(during) <= 60%"), (stop, "prefill", 1, " <= 70%"), (kill, "decode", 2, "(during) <= 60%"),
    (kill, "decode", 1, " <= 70%")])
def test_x(perf, end, pool, each, limit):
    events = [end(pool, replica=each - 1, at_requests=0.25), restart(pool, replica=each - 1, at_requests=0.3)]
    run = perf.measure(split(each), LOAD, events=events, runs=2)
    perf.check(run, "error_rate(before) == 0", "error_rate" + limit, "error_rate(after) == 0",
               "hung_requests == 0")
    after = perf.measure(split(each), LOAD, runs=1)
    perf.check(after, "error_rate == 0", "prefill_tokens(decode) == 0", "transfers == 640", "failed_transfers == 0")
"""


def test_dead_server_of_a_split_fails_its_share_of_requests_until_its_restart(run, pytester):
    result, _ = run(SUITE + SPLITS, "--emulate", "h100")
    result.assert_outcomes(passed=4)
    shares = {}
    for path in pytester.path.glob(".llmperf/runs/*/tests/*.json"):
        file = json.loads(path.read_text())
        end, pool, each, _ = file["test"].partition("[")[2].split("-")
        measured = file["measurements"][0]["runs"][0]
        shares[f"{end} {pool} {each}"] = sum(measured["failures"].values()) / 640
        assert {name for name, counters in measured["replicas"].items() if set(counters.values()) == {None}} == {
            f"{pool}-{each}"}
        assert measured["counters"]["disturbed_until_s"] - measured["counters"]["disturbed_from_s"] > 40
    away = 0.05 + 40 * 8 / 640  # from the death to the end of the restart, as a share of the requests
    assert shares == pytest.approx({"kill prefill 2": away / 2, "stop prefill 1": away, "kill decode 2": away / 2,
                                    "kill decode 1": away}, abs=0.03)


REFUSED = {
    "after_last": ("fleet(), LOAD, events=[kill(replica=1, at_requests=1)]", "*after the last request*Write 0.25*"),
    "rounded": ("fleet(), FEW, events=[kill(replica=1, at_requests=0.1)]",
                "*has 4 requests, so the event would come before the first of them*"),
    "unknown": ("fleet(), LOAD, events=[kill(replica=2, at_requests=0.5)]", "*has 2 replicas, 0 to 1*"),
    "pool": ("fleet(), LOAD, events=[kill('decode', replica=1, at_requests=0.5)]", "*has no pools*"),
    "no_pool": ("split(), LOAD, events=[kill(replica=1, at_requests=0.5)]",
                "*has the pools prefill and decode. Name the pool and the replica: kill('prefill', replica=1, at*"),
    "of_pool": ("split(1), LOAD, events=[kill('decode', replica=1, at_requests=0.5)]", "*has one replica, 0. Name*"),
    "pool_dead": ("split(), LOAD, events=[kill('decode', replica=0, at_requests=0.5), "
                  "restart('prefill', replica=0, at_requests=0.6)]", "*replica 0 still runs then*"),
    "idle": ("split(retries=True), LOAD",
             "*before prefill and decode servers, vllm_router accepts retries and does not use it*Leave retries out*"),
    "restart": ("fleet(), LOAD, events=[restart(replica=1, at_requests=0.5)]", "*replica 1 still runs then*"),
    "dead": ("fleet(), LOAD, events=[kill(replica=1, at_requests=0.5), stop(replica=1, at_requests=0.6)]",
             "*replica 1 has ended before*"),
    "same": ("fleet(), LOAD, events=[kill(replica=1, at_requests=0.5), restart(replica=1, at_requests=0.5)]",
             "*change one replica at the same moment, after 320 of 640*"),
    "single": ("ENGINE, LOAD, events=EVENTS", "*is one server*Measure replicas behind a router*"),
    "no_list": ("fleet(), LOAD, events=EVENTS[0]", "*write a list of events*"),
}


def test_event_that_cannot_happen_is_refused_before_a_start(run, pytester):
    tests = "".join(f"""
@pytest.mark.h100
def test_{name}(perf):
    perf.measure({arguments})
""" for name, (arguments, _) in REFUSED.items())
    few = "FEW = random_tokens(input=8, output=8, arrivals=closed(2), requests=4)\n"
    _, junit = run(SUITE + few + tests, "--emulate", "h100")
    messages = {case.get("name"): "".join(node.text or "" for node in case) for case in junit.iter("testcase")}
    for name, (_, pattern) in REFUSED.items():
        words = [word for word in pattern.split("*") if word]
        assert all(word in " ".join(messages[f"test_{name}"].split()) for word in words), messages[f"test_{name}"]
    assert not list(pytester.path.glob(".llmperf/runs/*/servers/*"))


def test_emulator_in_real_time_refuses_events(run):
    result, junit = run(SUITE + CHECKS, "--emulate", "h100", "--emulate-clock", "real", "-k", "both-round_robin")
    assert result.ret == 1
    assert "Leave --emulate-clock real out" in "".join(node.text or "" for node in junit.iter("failure"))


def test_phase_of_a_measurement_without_events_is_refused(run):
    text = SUITE + """
@pytest.mark.h100
def test_x(perf):
    run = perf.measure(ENGINE, random_tokens(input=8, output=8, arrivals=closed(2), requests=12), runs=1)
    perf.check(run, "error_rate(during) <= 5%")
"""
    _, junit = run(text, "--emulate", "h100")
    assert "had no events, so it has no phases" in "".join(node.text or "" for node in junit.iter("failure"))
