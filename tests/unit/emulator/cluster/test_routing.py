"""Which replica gets a request, by policy, and the planted faults of replicas and router."""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.emulator.build import build_service
from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.cluster.routing import POLICIES, RoutedTimeline, Routing
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.faults import parse_faults
from pytest_llmperf.emulator.noise import Disturbance
from pytest_llmperf.emulator.options import read_options
from pytest_llmperf.emulator.quantities import UsageError

sys.path.insert(0, str(Path(__file__).parent))

from test_cluster_deployment import CONFIG, MS, SGLANG, Stub, prompt

SHARED = prompt(0, 320)


def deployment(policy: str, replicas: int = 3, config: Any = CONFIG, **changes: Any) -> Deployment:
    routing = Routing(replicas, policy, **changes)
    return Deployment(config, Stub(), [Disturbance() for _ in range(replicas)], routing)


def run(fleet: Deployment, prompts: list[tuple[int, ...]], gap_ns: int = 3 * MS, tokens: int = 8) -> list[int]:
    """Send a prompt every gap; gives the index of the replica of each, from 0."""
    sequences = []
    for number, ids in enumerate(prompts):
        now_ns = number * gap_ns
        while fleet.advance(now_ns):
            pass
        fleet.sleep_until(now_ns)
        sequences.append(Sequence(number, ids, tokens, now_ns))
        fleet.submit(sequences[-1], now_ns)
    while fleet.advance(None):
        pass
    assert all(sequence.finished for sequence in sequences)
    return [sequence.engine for sequence in sequences]


def different(count: int, length: int = 200) -> list[tuple[int, ...]]:
    return [prompt(number + 1, length) for number in range(count)]


def in_groups(groups: int, count: int) -> list[tuple[int, ...]]:
    """Prompts of which four fifths are the prefix of a group; groups come in random order."""
    rng = random.Random(0)
    return [prompt(1000 + rng.randrange(groups), 320) + prompt(number + 1, 80) for number in range(count)]


def test_round_robin_takes_replicas_in_turn():
    assert run(deployment("round_robin"), different(6)) == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("policy", ["random", "power_of_two"])
def test_random_policies_use_all_replicas_and_repeat_with_their_seed(policy):
    chosen = run(deployment(policy), different(60))
    assert set(chosen) == {0, 1, 2}
    assert chosen == run(deployment(policy), different(60))
    assert chosen != run(deployment(policy, seed=1), different(60))


def test_power_of_two_never_takes_the_busier_of_two():
    chosen = run(deployment("power_of_two", 2), [prompt(0, 2000), *different(3, 8)], gap_ns=MS, tokens=2)
    assert chosen[1:] == [1 - chosen[0]] * 3 or Counter(chosen[1:])[1 - chosen[0]] >= 2


@pytest.mark.parametrize("policy", ["cache_aware", "kv_aware"])
@pytest.mark.parametrize("config", [CONFIG, SGLANG], ids=["vllm", "sglang"])
def test_prefix_policies_send_a_group_to_one_replica(policy, config):
    fleet = deployment(policy, config=config)
    prompts = in_groups(5, 60)
    chosen = run(fleet, prompts)
    homes = {ids[:320]: index for ids, index in zip(prompts, chosen, strict=True)}
    assert sum(homes[ids[:320]] == index for ids, index in zip(prompts, chosen, strict=True)) >= 55
    by_turn = deployment("round_robin", config=config)
    run(by_turn, prompts)
    assert fleet.counters.prefix_cache_hits > 1.1 * by_turn.counters.prefix_cache_hits


def test_cache_aware_router_leaves_the_prefix_when_the_load_is_unbalanced():
    prompts = [SHARED + prompt(number + 1, 40) for number in range(40)]
    assert set(run(deployment("cache_aware"), prompts, gap_ns=0)) == {0}
    thresholds = {"balance_abs_threshold": 4, "balance_rel_threshold": 1.1}
    assert set(run(deployment("cache_aware", thresholds=thresholds), prompts, gap_ns=0)) == {0, 1, 2}


def test_kv_aware_router_knows_an_emptied_cache_and_cache_aware_does_not():
    for policy, expected in (("kv_aware", 0), ("cache_aware", 2)):
        fleet = deployment(policy)
        timeline = fleet._timeline
        assert isinstance(timeline, RoutedTimeline)
        timeline.open_to = [2]
        run(fleet, [SHARED])
        timeline.open_to = [0, 1, 2]
        assert fleet.reset_prefix_cache()
        sequence = Sequence(9, SHARED, 4, fleet.now_ns)
        fleet.submit(sequence, fleet.now_ns)
        assert sequence.engine == expected, policy


@pytest.mark.parametrize("policy", ["consistent_hash", "sticky_least_loaded"])
def test_session_policies_send_requests_without_a_session_to_one_replica(policy):
    assert len(set(run(deployment(policy), different(12)))) == 1


@pytest.mark.parametrize("policy", ["consistent_hash", "sticky_least_loaded"])
def test_session_policies_keep_a_session_at_its_replica_and_use_all_replicas(policy):
    fleet = deployment(policy)
    chosen = {}
    for number in range(60):
        sequence = Sequence(number, prompt(number, 100), 1, 0, session=str(number % 12))
        fleet.submit(sequence, 0)
        chosen.setdefault(sequence.session, set()).add(sequence.engine)
    assert all(len(engines) == 1 for engines in chosen.values())
    assert len(set.union(*chosen.values())) == 3


def test_router_counts_an_answer_until_its_last_token_is_out():
    fleet = deployment("least_loaded", 2)
    first, second = Sequence(0, prompt(1, 100), 1, 0), Sequence(1, prompt(2, 100), 1, MS)
    fleet.submit(first, 0)
    step = fleet.advance(MS)
    assert step is not None
    assert step.finished == [first]
    assert step.ended_ns > MS
    fleet.submit(second, MS)
    assert (first.engine, second.engine) == (0, 1)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_starved_replica_gets_nothing(policy):
    assert 1 not in run(deployment(policy, starved=2), in_groups(4, 30))


def test_replicas_with_one_policy_equal_their_steps_run_one_by_one():
    """Skipping ahead in one replica leaves the steps of other replicas unchanged."""
    stepped = deployment("least_loaded")
    advance = stepped._timeline.advance
    stepped._timeline.advance = lambda until_ns, fast_forwarding: advance(until_ns, False)  # type: ignore[method-assign]
    fleet = deployment("least_loaded")
    assert run(stepped, in_groups(4, 40)) == run(fleet, in_groups(4, 40))
    assert replace(stepped.counters) == replace(fleet.counters)


LINE = ("--hardware", "h200", "--gpus", "8", "--noise", "none", "--replicas", "2", "--router", "cache_aware")


def service(*words: str) -> Any:
    return build_service(read_options([*LINE, *words, "--", "serve", "tiny"]))


def page(served: Any, path: str) -> str:
    return str(served.reply("GET", path).body.decode())


def test_each_replica_has_a_metrics_page():
    served = service()
    sequence = Sequence(0, prompt(1, 50), 4, 0)
    served.submit([sequence], 0)
    while served.deployment.advance(None):
        pass
    served.finished(sequence, sequence.first_token_ns, sequence.ended_ns)
    finished = 'vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"} '
    assert f"{finished}1" in page(served, "/replicas/1/metrics")
    assert "vllm:request_queue_time_seconds_count" in page(served, "/replicas/1/metrics")
    assert f"{finished}0" in page(served, "/replicas/2/metrics")
    assert served.reply("GET", "/replicas/3/metrics").status == 404


def test_faults_of_replicas_change_router_and_one_step_time():
    timeline = service("--fault", "router=round_robin", "--fault", "starved_replica=1").deployment._timeline
    assert timeline.open_to == [1]
    faults = parse_faults(["slow_replica=+20%:1", "step_time=+10%"])
    assert faults.of_replica(1).step_time == pytest.approx(0.32)
    assert faults.of_replica(2).step_time == pytest.approx(0.1)


@pytest.mark.parametrize(("words", "message"), [
    (("--replicas", "9"), "9 replicas of 1 GPUs need 9, and the emulated machine has 8"),
    (("--replicas", "0"), "--replicas 0: write a number of at least 1"),
    (("--router-threshold", "cache=1"), "write NAME=NUMBER, with cache_threshold"),
    (("--router-threshold", "cache_threshold=x"), "write NAME=NUMBER"),
    (("--router", "fastest"), "invalid choice: 'fastest'"),
    (("--split", "50e9"), "with a prefill/decode split cannot be emulated"),
])
def test_wrong_replicas_are_refused(words, message):
    with pytest.raises(UsageError, match=message):
        service(*words)
