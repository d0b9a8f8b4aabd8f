"""LMCache's tiers: hits per tier, load times and eviction."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmperf.emulator.cache.tiers import ChunkStore, Tiers
from pytest_llmperf.emulator.config import Tier
from pytest_llmperf.emulator.core.batch import End
from pytest_llmperf.emulator.core.sequence import Sequence

CHUNK, TOKEN_BYTES = 4, 10.0
CHUNK_BYTES = 40
DONE = End(0)


def tiers(cpu_chunks: int = 100, disk_chunks: int | None = None) -> Tiers:
    made = [Tier("cpu", cpu_chunks * CHUNK_BYTES, 40e3, 0.5e-3, CHUNK)]
    if disk_chunks is not None:
        made.append(Tier("disk", disk_chunks * CHUNK_BYTES, 4e3, 1e-3, CHUNK))
    return Tiers(tuple(made), TOKEN_BYTES)


def sequence(prompt: tuple[int, ...], salt: str = "", generated: int = 0) -> Sequence:
    return Sequence(0, prompt, 100, 0, salt, generated=generated)


def prefill(store: Tiers, *prompts: tuple[int, ...]) -> None:
    for prompt in prompts:
        store.store_s(sequence(prompt), 0, len(prompt), DONE)


def span(start: int, length: int) -> tuple[int, ...]:
    return tuple(range(start, start + length))


def hits(store: Tiers) -> dict[str, int]:
    return {level.tier.name: level.hits for level in store.stores}



def test_whole_chunks_are_found_and_a_token_is_left_to_compute() -> None:
    store = tiers()
    prefill(store, span(0, 14))
    assert store.matched(sequence(span(0, 14)), 0, 0) == 12
    assert store.matched(sequence(span(0, 12)), 0, 0) == 11
    assert store.matched(sequence(span(0, 14)), 5, 0) == 7
    assert store.matched(sequence(span(0, 14)), 13, 0) == 0
    assert store.matched(sequence(span(0, 14), salt="other"), 0, 0) == 0
    assert store.matched(sequence((*span(0, 8), *span(50, 8))), 0, 0) == 8


@pytest.mark.parametrize("vllm_server", [True, False])
def test_only_vllm_beside_a_server_computes_a_preempted_prompt_again(vllm_server: bool) -> None:
    store = Tiers((Tier("cpu", 100 * CHUNK_BYTES, 40e3, 0.5e-3, CHUNK),), TOKEN_BYTES, vllm_server=vllm_server)
    prefill(store, span(0, 12))
    seq = sequence(span(0, 14))
    assert store.matched(seq, 0, 0) == 12
    seq.preemptions = 1
    assert store.matched(seq, 0, 0) == (0 if vllm_server else 12)


def test_stored_chunk_is_found_from_end_of_computing_step() -> None:
    store, end = tiers(), End()
    store.store_s(sequence(span(0, 8)), 0, 8, end)
    assert store.matched(sequence(span(0, 9)), 0, 50) == 0
    end.ns = 60
    assert [store.matched(sequence(span(0, 9)), 0, now_ns) for now_ns in (59, 60)] == [0, 8]


def test_less_than_a_chunk_is_never_kept() -> None:
    store = tiers()
    prefill(store, span(0, 3))
    assert len(store.stores[0].chunks) == 0


def test_generated_tokens_are_not_kept() -> None:
    store = tiers()
    seq = sequence(span(0, 6), generated=10)
    store.store_s(seq, 0, 16, DONE)
    assert len(store.stores[0].chunks) == 1


def test_loads_of_whole_chunks_happen_in_sequence_with_tier_latency() -> None:
    store = tiers()
    prefill(store, span(0, 16))
    seq = sequence(span(0, 17))
    assert store.load(seq, 0, 16, 0) == 4_500_000
    assert store.load(seq, 6, 10, 0) == 4_000_000 + 3_000_000 + 500_000
    assert store.load(seq, 0, 4, 10_000_000) == 11_500_000


def test_chunk_is_loaded_from_fastest_tier_and_copied_to_faster_tiers() -> None:
    store = tiers(disk_chunks=100)
    prefill(store, span(0, 8))
    store.clear("cpu")
    seq = sequence(span(0, 9))
    assert store.load(seq, 0, 8, 0) == 21_000_000
    assert store.load(seq, 0, 8, 50_000_000) == 52_500_000


def test_lookup_hit_is_counted_once_per_sequence() -> None:
    store = tiers()
    prefill(store, span(0, 12))
    assert (store.looked_up_tokens, hits(store)) == (0, {"cpu": 0})
    seq = sequence((*span(0, 8), *span(50, 10)))
    for _ in range(2):
        assert store.matched(seq, 8, 0) == 0
        assert (store.looked_up_tokens, hits(store)) == (16, {"cpu": 8})
    seq.preemptions = 1
    store.load(seq, 0, store.matched(seq, 0, 0), 0)
    assert hits(store) == {"cpu": 8}


def test_lower_tier_counts_only_tokens_missing_in_upper_tiers() -> None:
    store = tiers(cpu_chunks=3, disk_chunks=100)
    prefill(store, span(0, 16))
    store.clear("cpu")
    store.stores[0].put([store._chunk_keys(sequence(span(0, 16)))[index] for index in (0, 2, 3)], DONE)
    assert store.matched(sequence(span(0, 17)), 0, 0) == 16
    assert hits(store) == {"cpu": 4, "disk": 12}


def test_each_stored_chunk_takes_time_once() -> None:
    store = tiers(disk_chunks=100)
    seq = sequence(span(0, 20))
    assert store.store_s(seq, 0, 3, DONE) == 0
    assert store.store_s(seq, 3, 9, DONE) == pytest.approx(2 * CHUNK_BYTES / 40e3)
    assert store.store_s(seq, 9, 20, DONE) == pytest.approx(3 * CHUNK_BYTES / 40e3)
    assert store.store_s(sequence(span(0, 20)), 0, 20, DONE) == 0
    assert len(store.stores[0].chunks) == 5


def test_dropped_chunk_is_not_stored_again_by_same_sequence() -> None:
    store = tiers(cpu_chunks=1)
    seq = sequence(span(0, 12))
    assert store.store_s(seq, 0, 8, DONE) == pytest.approx(2 * CHUNK_BYTES / 40e3)
    assert store.store_s(seq, 8, 12, DONE) == pytest.approx(CHUNK_BYTES / 40e3)


def test_least_recently_used_chunk_is_evicted_from_end_of_prompt() -> None:
    store = tiers(cpu_chunks=4)
    prefill(store, span(0, 8), span(100, 8))
    assert store.matched(sequence(span(0, 9)), 0, 0) == 8
    prefill(store, span(200, 4))
    assert store.matched(sequence(span(0, 9)), 0, 0) == 8
    assert store.matched(sequence(span(100, 9)), 0, 0) == 0
    prefill(store, span(300, 4), span(400, 8))
    assert store.matched(sequence(span(0, 9)), 0, 0) == 4


def test_full_lmcache_server_evicts_configured_share_at_watermark() -> None:
    tier = Tier("cpu", 10 * CHUNK_BYTES, 40e3, 0.5e-3, CHUNK, watermark=0.8, evicted_share=0.25)
    store = ChunkStore(tier, CHUNK_BYTES)
    store.put(range(8), DONE)
    assert (len(store.chunks), store.evictions) == (8, 0)
    store.put([8], DONE)
    assert (len(store.chunks), store.evictions) == (7, 1)
    assert 1 not in store
    assert 2 in store


def test_disk_tier_keeps_chunks_evicted_from_cpu() -> None:
    store = tiers(cpu_chunks=1, disk_chunks=100)
    prefill(store, span(0, 16))
    assert store.matched(sequence(span(0, 17)), 0, 0) == 16


def test_cleared_tier_is_empty_and_other_tier_keeps_chunks() -> None:
    store = tiers(disk_chunks=100)
    prefill(store, span(0, 8))
    store.clear("cpu")
    assert [len(level.chunks) for level in store.stores] == [0, 2]


def test_tier_smaller_than_chunk_keeps_no_chunk() -> None:
    store = ChunkStore(Tier("cpu", 39, 1.0, 0.0, CHUNK), CHUNK_BYTES)
    store.put([1], DONE)
    assert len(store.chunks) == 0


PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=24).map(tuple)


@settings(max_examples=200, deadline=None)
@given(
    prompts=st.lists(PROMPT, max_size=30),
    cpu=st.integers(0, 6),
    disk=st.none() | st.integers(0, 12),
    local=st.integers(0, 20),
)
def test_stored_bytes_stay_within_capacity_and_matched_chunks_load(
    prompts: list[tuple[int, ...]], cpu: int, disk: int | None, local: int
) -> None:
    store = tiers(cpu, disk)
    now = 0
    for prompt in prompts:
        seq = sequence(prompt)
        local_tokens = min(local, len(prompt) - 1)
        matched = store.matched(seq, local_tokens, now)
        assert local_tokens + matched < len(prompt)
        if matched:
            ready = store.load(seq, local_tokens, matched, now)
            assert ready > now
            now = ready
        store.store_s(seq, local_tokens + matched, len(prompt), DONE)
        store.forget(seq)
        for level in store.stores:
            assert len(level.chunks) * level.chunk_bytes <= level.tier.capacity_bytes
    assert not store._keys
    assert not store._stored_chunks


def test_tier_may_have_different_store_and_load_bandwidth() -> None:
    tier = Tier("cpu", 10**9, 10.0, 0.0, 4, store_bytes_per_s=20.0)
    store = Tiers((tier,), TOKEN_BYTES)
    assert store.store_s(sequence(span(0, 8)), 0, 8, DONE) == pytest.approx(8 * TOKEN_BYTES / 20.0)
    assert store.load(sequence(span(0, 9)), 0, 8, 0) == pytest.approx(1e9 * 8 * TOKEN_BYTES / 10.0)
    assert tier.faster(2) == Tier("cpu", 10**9, 20.0, 0.0, 4, store_bytes_per_s=40.0)
