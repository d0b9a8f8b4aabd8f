"""Latencies of a replay that still goes on: good enough to watch, never judged."""

from __future__ import annotations

from array import array
from bisect import insort

from pytest_llmperf.model.exchange import EmulatedExchange, Exchange

CONTENT = b"data:"


class RunningMedians:
    """Running medians over the exchanges that ended, from the stamps of their reads. Nothing is parsed."""

    def __init__(self) -> None:
        self._ttfts_ns = array("q")
        self._gaps_ns = array("d")
        self.durations_ns: dict[int, int] = {}  # index of the request → time from send to end
        self.ended_reads = 0

    def add(self, exchange: Exchange | EmulatedExchange) -> None:
        """Take in one exchange; one without content does not change the medians."""
        if exchange.sent_ns is not None:
            self.durations_ns[exchange.index] = exchange.ended_ns - exchange.sent_ns
            self.ended_reads += 0 if isinstance(exchange, EmulatedExchange) else len(exchange.read_ns)
        stamps = exchange.token_ns if isinstance(exchange, EmulatedExchange) else _content_stamps(exchange)
        if not stamps:
            return
        insort(self._ttfts_ns, stamps[0] - exchange.intended_ns)
        if len(stamps) > 1:
            insort(self._gaps_ns, (stamps[-1] - stamps[0]) / (len(stamps) - 1))

    @property
    def ttft_ns(self) -> int | None:
        """Median time from the intended send to the first content."""
        return self._ttfts_ns[len(self._ttfts_ns) // 2] if self._ttfts_ns else None

    @property
    def itl_ns(self) -> int | None:
        """Median over requests of their mean gap between reads."""
        return round(self._gaps_ns[len(self._gaps_ns) // 2]) if self._gaps_ns else None


def _content_stamps(exchange: Exchange) -> array[int]:
    """Stamps of the reads from the first event of the stream on: the HTTP head may come long before."""
    first, seen = exchange.data.find(CONTENT), 0
    if first < 0:
        return array("q")
    for read, size in enumerate(exchange.read_bytes):
        seen += size
        if seen > first:
            return exchange.read_ns[read:]
    return array("q")
