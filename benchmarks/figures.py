"""Errors of a client under one load: the client's measurements against the server's actual timing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from timed import TimedServer


@dataclass(frozen=True)
class Measured:
    """What a client reports, in milliseconds, request by request.

    Args:
        ttft_ms: of every request that it calls successful.
        itl_ms: gaps between content chunks, pooled.
        late_ms: from the intended to the actual send, open loop only.
        notes: anything else to show.
    """

    ttft_ms: Sequence[float]
    itl_ms: Sequence[float]
    late_ms: Sequence[float] = ()
    notes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """Errors of one run, in milliseconds; `reached` is the most streams that the server saw at once."""

    reached: int
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    late_p99: float | None
    server_p50: float
    server_p99: float
    notes: dict[str, float]


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(measured: Measured, server: TimedServer) -> Figures:
    """Errors are distances from what the server was told to do, its own delay included."""
    stats = server.stats()
    ttft = [abs(value - server.ttft_ms) for value in measured.ttft_ms]
    itl = [abs(value - server.itl_ms) for value in measured.itl_ms]
    return Figures(
        reached=stats["peak"],
        ttft_p50=quantile(ttft, 0.5),
        ttft_p99=quantile(ttft, 0.99),
        itl_p50=quantile(itl, 0.5),
        itl_p99=quantile(itl, 0.99),
        late_p99=quantile(measured.late_ms, 0.99) if measured.late_ms else None,
        server_p50=stats["send_error"]["p50"],
        server_p99=stats["send_error"]["p99"],
        notes=measured.notes,
    )
