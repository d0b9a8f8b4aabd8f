"""The link between a prefill engine and a decode engine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.emulator.cluster.split import TransferredKv
from pytest_llmperf.emulator.config import Link
from pytest_llmperf.emulator.core.sequence import Sequence


def pull(handed: TransferredKv, number: int, tokens: int, now_ns: int) -> int:
    seq = Sequence(number, (number,) * (tokens + 1), 4, 0)
    handed.offer(seq)
    return handed.load(seq, 1, tokens, now_ns)


def test_transfers_on_link_are_serialised() -> None:
    handed = TransferredKv(Link(bytes_per_s=1e6, latency_s=1e-3), 10.0)
    assert pull(handed, 1, 100, 0) == 2_000_000
    assert pull(handed, 2, 100, 500_000) == 4_000_000
    assert pull(handed, 3, 100, 10_000_000) == 12_000_000


@given(sends=st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**4)), max_size=20), rate=st.floats(1e3, 1e12))
def test_transfer_link_never_exceeds_bandwidth(sends: list[tuple[int, int]], rate: float) -> None:
    handed = TransferredKv(Link(rate, 1e-4), 100.0)
    arrivals = [(now, 100 * size, pull(handed, i, size, now)) for i, (now, size) in enumerate(sorted(sends))]
    for first in range(len(arrivals)):
        for last in range(first, len(arrivals)):
            span_s = (arrivals[last][2] - arrivals[first][0] + 20) / 1e9
            assert sum(size for _, size, _ in arrivals[first : last + 1]) <= span_s * rate * (1 + 1e-6)


def test_transferred_kv_cache_is_available_once_after_offer() -> None:
    handed = TransferredKv(Link(1e6, 0.0), 10.0)
    seq = Sequence(0, tuple(range(101)), 4, 0)
    assert handed.matched(seq, 0, 0) == 0
    handed.offer(seq)
    assert (handed.matched(seq, 0, 0), handed.matched(seq, 96, 0)) == (100, 4)
    assert handed.load(seq, 1, 99, 0) == 1_000_000
    assert handed.matched(seq, 0, 0) == 0


def test_a_forgotten_sequence_is_not_offered() -> None:
    handed = TransferredKv(Link(1e6, 0.0), 10.0)
    seq = Sequence(0, (1, 2, 3), 4, 0)
    handed.offer(seq)
    handed.forget(seq)
    assert handed.matched(seq, 0, 0) == 0
