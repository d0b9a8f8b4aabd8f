"""A transport without sockets, processes or waiting: exchanges with exact stamps."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable, Sequence

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.exchange import Ending, Exchange, Replay
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.testing.streams import LAST_CHUNK, STREAM_HEAD, StreamShape, http_chunk


def make_exchange(
    reads: Iterable[tuple[int, bytes]],
    *,
    index: int = 0,
    intended_ns: int = 0,
    sent_ns: int | None = 0,
    ended_ns: int | None = None,
    ending: Ending = Ending.COMPLETE,
    reused: bool = False,
    error: str | None = None,
) -> Exchange:
    """An exchange from (stamp_ns, bytes) reads. If `ended_ns` is None, the exchange ends with the last read."""
    remaining_reads = list(reads)
    last_ns = remaining_reads[-1][0] if remaining_reads else intended_ns
    return Exchange(
        index=index,
        intended_ns=intended_ns,
        sent_ns=sent_ns,
        ended_ns=last_ns if ended_ns is None else ended_ns,
        ending=ending,
        read_ns=array("q", [stamp_ns for stamp_ns, _ in remaining_reads]),
        read_bytes=array("q", [len(data) for _, data in remaining_reads]),
        data=b"".join(data for _, data in remaining_reads),
        reused=reused,
        error=error,
    )


def stream_exchange(
    shape: StreamShape,
    *,
    index: int = 0,
    intended_ns: int = 0,
    sent_ns: int | None = None,
    ttft_ns: int = 50_000_000,
    itl_ns: int = 10_000_000,
) -> Exchange:
    """A correct stream: the first content `ttft_ns` after the intended time, one read per content chunk."""
    sent = intended_ns if sent_ns is None else sent_ns
    events = shape.events()
    head, contents, tail = events[: int(shape.chat)], events[int(shape.chat) : -2], events[-2:]
    reads = [(sent + 1, STREAM_HEAD)]
    for position, data in enumerate(contents):
        opening = b"".join(map(http_chunk, head)) if position == 0 else b""
        reads.append((intended_ns + ttft_ns + position * itl_ns, opening + http_chunk(data)))
    reads.append((reads[-1][0], b"".join(map(http_chunk, tail)) + LAST_CHUNK))
    return make_exchange(reads, index=index, intended_ns=intended_ns, sent_ns=sent)


class ScriptedTransport:
    """Implements `Transport` with exchanges that were made before, or are made from the plan.

    Args:
        exchanges: one per planned request, or a function of the plan that returns them.
    """

    def __init__(self, exchanges: Sequence[Exchange] | Callable[[LoadPlan], Sequence[Exchange]]) -> None:
        self._exchanges = exchanges
        self.plans: list[LoadPlan] = []

    def replay(
        self,
        plan: LoadPlan,
        *,
        cancel: threading.Event,
        progress: Callable[[Progress], None] | None = None,
    ) -> Replay:
        """See `Transport.replay`. A set `cancel` makes every exchange NOT_SENT."""
        self.plans.append(plan)
        exchanges = self._exchanges(plan) if callable(self._exchanges) else self._exchanges
        if cancel.is_set():
            exchanges = [make_exchange([], index=r.index, sent_ns=None, ending=Ending.NOT_SENT) for r in plan.requests]
        ended_ns = max((e.ended_ns for e in exchanges), default=0)
        if progress is not None:
            failed = sum(e.ending is not Ending.COMPLETE for e in exchanges)
            sent = sum(e.sent_ns is not None for e in exchanges)
            progress(Progress(sent=sent, done=len(exchanges), failed=failed, elapsed_ns=ended_ns))
        return Replay(started_ns=0, ended_ns=ended_ns, exchanges=tuple(exchanges))
