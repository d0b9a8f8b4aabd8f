"""What replays a plan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pytest_llmperf.model.exchange import Replay
from pytest_llmperf.model.plan import LoadPlan


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a replay, reported about four times a second.

    Args:
        sent: requests handed to a socket.
        done: ended requests, whether successful or failed.
        failed: ended requests with an incomplete HTTP message.
        elapsed_ns: since time zero of the schedule.
        ttft_ns, itl_ns: running medians as `RunningMedians` has them; None before the first answer.
        durations_ns: time from send to end of each ended request, by the index of the request.
        reads: number of reads of all answers, those of requests in flight included; 0 in virtual time.
        ended_reads: number of reads of the requests in `durations_ns`.
    """

    sent: int
    done: int
    failed: int
    elapsed_ns: int
    ttft_ns: int | None = None
    itl_ns: int | None = None
    durations_ns: Mapping[int, int] = field(default_factory=dict)
    reads: int = 0
    ended_reads: int = 0


class Transport(Protocol):
    """Anything that can replay a plan against a server, or pretend to."""

    def replay(
        self,
        plan: LoadPlan,
        *,
        cancel: threading.Event,
        progress: Callable[[Progress], None] | None = None,
    ) -> Replay:
        """Send every request of the plan and return one exchange for each.

        Once `cancel` is set, what is in flight ends as CANCELLED and what was not sent as NOT_SENT.

        Raises:
            LoadError: the load generator itself failed.
        """
        ...
