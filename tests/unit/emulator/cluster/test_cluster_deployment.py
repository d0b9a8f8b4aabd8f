"""Several engines behind one door, with step times that are a plain sum."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.emulator.cluster.deployment import Deployment
from pytest_llmperf.emulator.cluster.routing import Unreachable
from pytest_llmperf.emulator.config import EngineConfig, Link, Tier
from pytest_llmperf.emulator.core.sequence import Sequence
from pytest_llmperf.emulator.core.sglang_scheduler import SglangScheduler
from pytest_llmperf.emulator.cost.step_time import StepLoad
from pytest_llmperf.kinds import GPU_KINDS
from pytest_llmperf.shapes import SHAPES

sys.path.insert(0, str(Path(__file__).parents[3] / "stubs"))

from virtual_client import Answer, Plan, Request, replay

MS = 1_000_000
CONFIG = EngineConfig(
    engine="vllm",
    shape=SHAPES["tiny"],
    gpu=GPU_KINDS["h200"],
    max_model_len=4096,
    max_num_batched_tokens=512,
    max_num_seqs=16,
    block_size=16,
    num_blocks=1001,
)
SGLANG = replace(CONFIG, engine="sglang", block_size=1, num_blocks=16_000)
KV_BYTES = SHAPES["tiny"].kv_bytes_per_token("bfloat16")


class Stub:
    """1 ms a step, 20 µs a token, 1 ns a token of context."""

    def seconds(self, load: StepLoad) -> float | npt.NDArray[np.float64]:
        return 1e-3 + 20e-6 * load.tokens + 1e-9 * load.kv_tokens

    def ingress_s(self, prompt_tokens: int) -> float:
        return 0.5e-3


def deployment(config: EngineConfig = CONFIG, **changes: Any) -> Deployment:
    return Deployment(replace(config, **changes), Stub())


def prompt(number: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(number).randrange(1000) for _ in range(length))


def plan(*requests: tuple[tuple[int, ...], int, float | None], concurrency: int | None = None) -> Plan:
    made = (
        Request(index, tokens, new, None if at_ms is None else round(at_ms * MS))
        for index, (tokens, new, at_ms) in enumerate(requests)
    )
    return Plan(tuple(made), concurrency)


def ttft_ms(answer: Answer) -> float:
    return (answer.token_ns[0] - answer.sent_ns) / MS


def gaps_ms(answers: list[Answer]) -> list[float]:
    return [gap / MS for answer in answers for gap in np.diff(answer.token_ns).tolist()]


def held(server: Deployment) -> list[float]:
    """Share of the KV cache that is not free, by engine."""
    return [engine.gauges.kv_usage for engine in server.engines]


TIERS = (Tier("cpu", 10**9, 50e9, 50e-6), Tier("disk", 10**10, 5e9, 300e-6))
KINDS: dict[str, dict[str, Any]] = {
    "one": {},
    "two": {"data_parallel": 2},
    "three": {"data_parallel": 3},
    "split": {"transfer": Link(1e9, 1e-4)},
    "tiers": {"tiers": TIERS},
    "two with tiers": {"data_parallel": 2, "tiers": TIERS},
    "two with a server": {"data_parallel": 2, "tiers": tuple(replace(tier, server=True) for tier in TIERS)},
    "split with tiers": {"transfer": Link(1e9, 1e-4), "tiers": TIERS},
    "small": {"num_blocks": 0},
    "two small": {"num_blocks": 0, "data_parallel": 2},
    "split small": {"num_blocks": 0, "transfer": Link(1e9, 1e-4)},
}
REQUEST = st.tuples(
    st.tuples(st.integers(0, 3), st.integers(1, 300)).map(lambda pair: prompt(*pair)),
    st.integers(1, 60),
    st.integers(0, 40),
)


@pytest.mark.parametrize("engine", [CONFIG, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=20),
    concurrency=st.sampled_from([None, None, 3]),
    ahead=st.booleans(),
)
def test_every_request_ends_once_and_everything_is_given_back(
    engine: EngineConfig, kind: str, requests: list[Any], concurrency: int | None, ahead: bool
) -> None:
    changes = dict(KINDS[kind], async_scheduling=ahead)
    if "num_blocks" in changes:
        changes["num_blocks"] = 30 if engine.engine == "vllm" else 450
    server = deployment(engine, **changes)
    answers = replay(server, plan(*requests, concurrency=concurrency))
    assert [sum(a.token_counts) for a in answers] == [new for _, new, _ in requests]
    assert all(a.refusal is None for a in answers)
    assert all(a.token_ns == sorted(a.token_ns) for a in answers)
    assert all(a.token_ns[0] > a.sent_ns and a.ended_ns == a.token_ns[-1] for a in answers)
    assert server.counters.finished_length == len(requests)
    assert server.counters.generation_tokens == sum(new for _, new, _ in requests)
    assert held(server) == [0] * len(server.engines)
    assert server.next_ns() is None
    assert server.reset_prefix_cache()


def ratios(server: Deployment) -> list[float]:
    """What SGLang has learnt of how much is generated."""
    schedulers = [engine.scheduler for engine in server.engines]
    return [scheduler.ratio.current for scheduler in schedulers if isinstance(scheduler, SglangScheduler)]


class Stepwise:
    """The same deployment that never leaps."""

    def __init__(self, server: Deployment) -> None:
        self.server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    def advance(self, until_ns: int | None, fast_forwarding: bool) -> Any:
        del fast_forwarding
        return self.server.advance(until_ns, fast_forwarding=False)


@pytest.mark.parametrize("engine", [CONFIG, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=12),
    concurrency=st.sampled_from([None, None, 3]),
    ahead=st.booleans(),
)
def test_fast_forward_gives_same_answers_as_single_steps(
    engine: EngineConfig, kind: str, requests: list[Any], concurrency: int | None, ahead: bool
) -> None:
    changes = dict(KINDS[kind], async_scheduling=ahead)
    if "num_blocks" in changes:
        changes["num_blocks"] = 30 if engine.engine == "vllm" else 450
    whole, single = deployment(engine, **changes), deployment(engine, **changes)
    made = plan(*requests, concurrency=concurrency)
    assert replay(whole, made) == replay(Stepwise(single), made)
    assert whole.counters == single.counters
    assert whole.tier_hits == single.tier_hits
    assert ratios(whole) == ratios(single)


def test_fast_forward_stops_before_request_triggered_by_other_engine() -> None:
    long = [Request(i, prompt(i, 40), 200, 0) for i in range(2)]
    short = [Request(i, prompt(i, 40), 5, 20 * MS if i == 2 else None, i - 1 if i > 2 else None) for i in range(2, 12)]
    made = Plan((*long, *short))
    servers = [deployment(data_parallel=2) for _ in range(2)]
    assert replay(servers[0], made) == replay(Stepwise(servers[1]), made)


def test_independent_engines_need_few_fast_forward_steps() -> None:
    server = deployment(data_parallel=2)
    for number in range(4):
        server.submit(Sequence(number, prompt(number, 40), 500, 0), 0)
    calls = 0
    while server.advance(None) is not None:
        calls += 1
    assert calls < 20


def test_two_engines_compute_side_by_side() -> None:
    requests = [(prompt(i, 500), 20, 0.0) for i in range(8)]
    first, two = (replay(deployment(data_parallel=n), plan(*requests)) for n in (1, 2))
    assert max(a.ended_ns or 0 for a in two) < 0.7 * max(a.ended_ns or 0 for a in first)


def test_the_decode_engine_gives_the_first_token_after_the_transfer() -> None:
    tokens = prompt(0, 400)
    link = Link(bytes_per_s=1e9, latency_s=2e-3)
    transfer_ms = 2 + 400 * KV_BYTES / 1e9 * 1e3
    server = deployment(transfer=link)
    (answer,) = replay(server, plan((tokens, 10, 0.0)))
    prefill_ms = 1 + 0.020 * 400 + 1e-6 * 400
    decode_ms = 1 + 0.020 + 1e-6 * 400
    assert ttft_ms(answer) == pytest.approx(0.5 + prefill_ms + transfer_ms + decode_ms, abs=0.01)


def test_decoding_is_not_disturbed_by_prompts_on_the_other_engine() -> None:
    requests = [(prompt(i, 400), 50, 10.0 * i) for i in range(30)]
    together = gaps_ms(replay(deployment(), plan(*requests)))
    apart = gaps_ms(replay(deployment(transfer=Link(1e18, 0.0)), plan(*requests)))
    assert max(apart) < 3 < max(together)
    assert np.mean(apart) < np.mean(together)


@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("engine", [CONFIG, SGLANG], ids=["vllm", "sglang"])
@given(requests=st.lists(REQUEST.filter(lambda r: r[1] > 1), min_size=2, max_size=16))
def test_decode_gap_with_infinite_link_never_exceeds_full_decode_step(
    engine: EngineConfig, requests: list[Any]
) -> None:
    apart = gaps_ms(replay(deployment(engine, transfer=Link(1e18, 0.0)), plan(*requests)))
    assert max(apart) <= 1 + (0.020 + 1e-6 * 360) * len(requests)


def test_client_sees_cached_tokens_of_prefill_engine() -> None:
    tokens = prompt(0, 321)
    server = deployment(transfer=Link(1e9, 1e-4))
    answers = replay(server, plan((tokens, 4, 0.0), (tokens, 4, 100.0)))
    assert [a.cached_tokens for a in answers] == [0, 320]
    assert (server.counters.prefix_cache_queries, server.counters.prefix_cache_hits) == (642, 320)
    assert server.counters.finished_length == 2


def test_request_too_large_for_decode_engine_is_refused_immediately() -> None:
    (answer,) = replay(deployment(transfer=Link(1e9, 1e-4)), plan((prompt(0, 4000), 200, 0.0)))
    assert answer.refusal is not None


@pytest.mark.parametrize("engine", [CONFIG, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("kind", ["two", "split", "tiers"])
def test_an_aborted_request_gives_everything_back(engine: EngineConfig, kind: str) -> None:
    for steps in range(12):
        server = deployment(engine, **KINDS[kind])
        pair = [Sequence(i, prompt(i, 900), 20, 0) for i in range(2)]
        for member in pair:
            server.submit(member, 0)
        for _ in range(steps):
            server.advance(None, fast_forwarding=False)
        server.abort(pair[0])
        server.abort(pair[0])
        while server.advance(None) is not None:
            pass
        assert held(server) == [0] * len(server.engines)
        assert pair[1].generated == 20


def second_ttft_ms(tiers: tuple[Tier, ...], clear: str | None = None, engine: EngineConfig = CONFIG) -> float:
    """Of a prompt that was there before; the GPU's own cache is emptied in between if `clear` says so."""
    tokens = prompt(0, 2048)
    server = deployment(engine, tiers=tiers, shape=SHAPES["llama-3.1-8b"])
    replay(server, plan((tokens, 2, 0.0)))
    if clear is not None:
        assert server.reset_prefix_cache()
    if clear == "cpu":
        server.clear_tiers("cpu")
    (answer,) = replay(server, plan((tokens, 2, 0.0)))
    return ttft_ms(answer)


@pytest.mark.parametrize("engine", [CONFIG, SGLANG], ids=["vllm", "sglang"])
def test_ttft_increases_from_gpu_to_cpu_to_disk_to_recomputation(engine: EngineConfig) -> None:
    cpu, disk = Tier("cpu", 10**10, 50e9, 50e-6), Tier("disk", 10**11, 10e9, 300e-6)
    times = [
        second_ttft_ms((cpu, disk), None, engine),
        second_ttft_ms((cpu, disk), "gpu", engine),
        second_ttft_ms((cpu, disk), "cpu", engine),
        second_ttft_ms((), "gpu", engine),
    ]
    assert times == sorted(times)
    loading_ms = 2048 * SHAPES["llama-3.1-8b"].kv_bytes_per_token("bfloat16") / 50e9 * 1e3 + 0.05
    assert times[1] == pytest.approx(0.5 + loading_ms + 1 + 0.020, abs=0.01)


def test_stores_increase_ttft_by_transfer_time() -> None:
    tokens, shape = prompt(0, 512), SHAPES["llama-3.1-8b"]
    (without,) = replay(deployment(shape=shape), plan((tokens, 2, 0.0)))
    (stored,) = replay(deployment(shape=shape, tiers=TIERS), plan((tokens, 2, 0.0)))
    bytes_ms = 512 * shape.kv_bytes_per_token("bfloat16") / 50e9 * 1e3
    assert ttft_ms(stored) - ttft_ms(without) == pytest.approx(bytes_ms, abs=0.001)


def test_others_decode_while_one_loads() -> None:
    slow = (Tier("cpu", 10**10, 1e8, 0.0),)
    tokens = prompt(0, 2048)
    server = deployment(tiers=slow)
    replay(server, plan((tokens, 1, 0.0)))
    assert server.reset_prefix_cache()
    loading_ms = 2048 * KV_BYTES / 1e8 * 1e3
    first, second = replay(server, plan((prompt(1, 16), 200, 0.0), (tokens, 1, 5.0)))
    assert ttft_ms(second) > loading_ms
    assert max(gaps_ms([first])) < 2.5
    assert server.tier_hits == {"cpu": 2048}
    assert server.counters.external_hits == 2047


@pytest.mark.parametrize("engine", [CONFIG, SGLANG], ids=["vllm", "sglang"])
def test_sequence_counts_as_waiting_during_kv_cache_load(engine: EngineConfig) -> None:
    tokens = prompt(0, 2048)
    server = deployment(engine, tiers=(Tier("cpu", 10**10, 1e8, 0.0),))
    replay(server, plan((tokens, 1, 0.0)))
    assert server.reset_prefix_cache()
    server.submit(Sequence(1, tokens, 1, server.now_ns), server.now_ns)
    gauges = server.engines[0].gauges
    assert (gauges.running, gauges.waiting) == (0, 1)
    assert server.advance(server.now_ns + 1) is None
    gauges = server.engines[0].gauges
    assert (gauges.running, gauges.waiting) == (0, 1)
    assert gauges.kv_usage > 0
    while server.advance(None) is not None:
        pass
    gauges = server.engines[0].gauges
    assert (gauges.running, gauges.waiting) == (0, 0)


def test_tensor_parallel_gpus_share_kv_cache_load() -> None:
    cpu = (Tier("cpu", 10**10, 1e9, 0.0),)
    tokens = prompt(0, 2048)
    times = []
    for gpus in (1, 2):
        server = deployment(tiers=cpu, tensor_parallel=gpus, shape=SHAPES["llama-3.1-8b"])
        replay(server, plan((tokens, 1, 0.0)))
        server.reset_prefix_cache()
        times.append(ttft_ms(replay(server, plan((tokens, 1, 0.0)))[0]))
    assert times[0] == pytest.approx(2 * times[1], rel=0.05)


def test_replicas_share_lmcache_server_but_load_in_parallel() -> None:
    tokens, shape = prompt(0, 2048), SHAPES["llama-3.1-8b"]
    loading_ms = 2048 * shape.kv_bytes_per_token("bfloat16") / 1e10 * 1e3
    for beside in (True, False):
        cpu = Tier("cpu", 10**9, 1e10, 0.0, server=beside)
        server = deployment(tiers=(cpu,), shape=shape, data_parallel=2)
        assert [store.tier.capacity_bytes for store in server.stores] == ([10**9] if beside else [10**9 // 2] * 2)
        replay(server, plan((tokens, 1, 0.0)))
        assert server.reset_prefix_cache()
        answers = replay(server, plan((tokens, 1, 0.0), (tokens, 1, 0.0)))
        assert sorted(answer.cached_tokens or 0 for answer in answers) == ([2048, 2048] if beside else [0, 2047])
        assert min(ttft_ms(answer) for answer in answers) < 1.1 * loading_ms
        assert not beside or max(ttft_ms(answer) for answer in answers) < 1.1 * loading_ms


@pytest.mark.parametrize(("engine", "engine_owned"), [(CONFIG, False), (CONFIG, True), (SGLANG, False), (SGLANG, True)])
def test_vllm_takes_last_token_of_whole_chunks_from_lmcache_server(engine: EngineConfig, engine_owned: bool) -> None:
    tokens = prompt(0, 2048)
    for beside in (True, False):
        server = deployment(engine, tiers=(Tier("cpu", 10**9, 1e10, 0.0, server=beside),), prefix_caching=engine_owned)
        replay(server, plan((tokens, 4, 0.0)))
        assert server.reset_prefix_cache()
        (answer,) = replay(server, plan((tokens, 4, 0.0)))
        all_of_them = beside and engine is CONFIG
        assert (answer.cached_tokens, sum(answer.token_counts)) == (2048 if all_of_them else 2047, 4)
        assert server.counters.external_hits == answer.cached_tokens
        assert held(server) == [0]


def test_cache_reset_empties_only_tiers_owned_by_engine() -> None:
    tokens = prompt(0, 2048)
    for engine_owned in (True, False):
        server = deployment(tiers=(Tier("cpu", 10**10, 1e9, 0.0, owned=engine_owned),))
        replay(server, plan((tokens, 1, 0.0)))
        assert server.reset_prefix_cache()
        server.clear_own_tiers()
        replay(server, plan((tokens, 1, 0.0)))
        assert server.tier_hits == {"cpu": 0 if engine_owned else 2048}


@pytest.mark.parametrize("engine", [CONFIG, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("ahead", [False, True])
def test_replica_finds_only_finished_chunks_of_other_replica(
    engine: EngineConfig, ahead: bool
) -> None:
    cpu = Tier("cpu", 10**12, 1e12, 0.0, server=True)
    server = deployment(engine, tiers=(cpu,), data_parallel=3, max_num_batched_tokens=4096,
                        async_scheduling=ahead)
    seq = prompt(0, 2049)
    first, early, late = replay(server, plan((seq, 1, 0), (seq, 1, 5), (seq, 1, 600)))
    assert [first.cached_tokens, early.cached_tokens] == [0, 0]
    assert ttft_ms(first) == pytest.approx(ttft_ms(early), abs=0.1)
    assert late.cached_tokens == 2048


@pytest.mark.parametrize("engine", [CONFIG, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("dead", [0, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("steps", range(12))
def test_death_in_a_split_loses_what_the_server_still_held_and_nothing_else(
    engine: EngineConfig, dead: int, steps: int
) -> None:
    server = deployment(engine, transfer=Link(1e7, 1e-4))
    pair = [Sequence(i, prompt(i, 900), 20, 0) for i in range(2)]
    for member in pair:
        server.submit(member, 0)
    for _ in range(steps):
        server.advance(None, fast_forwarding=False)
    generating = [member for member in pair if member.generated]
    lost = server.kill(dead)
    for sequence in lost:
        server.abort(sequence)
    if dead == 0:
        assert not set(lost) & set(generating)
        assert server.engines[1].counters.failed_transfers <= len(lost)
    else:
        assert {member for member in generating if not member.finished} <= set(lost)
    for _ in range(2):  # a prompt that is computed after the death of its decode server
        with suppress(Unreachable):
            while server.advance(None) is not None:
                pass
    assert held(server) == [0, 0]
    finished = {member for member in pair if member.finished}
    assert dead == 1 or finished == set(pair) - set(lost)
    server.begin_run()
    third = Sequence(3, prompt(3, 900), 20, server.now_ns)
    server.submit(third, server.now_ns)
    while server.advance(None) is not None:
        pass
    assert third.finished


def test_transfer_from_a_dead_prefill_server_is_counted_as_failed() -> None:
    server = deployment(transfer=Link(1e6, 1e-4))
    sequence = Sequence(0, prompt(0, 400), 20, 0)
    server.submit(sequence, 0)
    while not server.engines[1].scheduler.loading:  # the link needs 0.8 s
        server.advance(server.now_ns + MS)
        server.sleep_until(server.now_ns + MS)
    assert server.kill(0) == [sequence]
    assert server.counters.failed_transfers == 1
