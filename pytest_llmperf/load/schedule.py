"""When which request goes out. Pure: time comes in as an argument."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from pytest_llmperf.model.plan import LoadPlan, PlannedRequest


@dataclass(frozen=True, slots=True)
class DueRequest:
    """A request to send now. Times are CLOCK_MONOTONIC nanoseconds.

    Args:
        intended_ns: intended send time; None in a closed loop, which has no intended send times.
        possible_ns: earliest possible send time: the time at which the request is due and a slot is free.
    """

    request: PlannedRequest
    intended_ns: int | None
    possible_ns: int


class Schedule:
    """Open loop by absolute times, closed loop by slots, conversations by their predecessors.

    The intended send time of a request is `at_ns` after the start. The intended send time of the next turn of a
    conversation is the end of its predecessor plus `think_ns`, even if the predecessor failed. A turn that contains
    the answer of its predecessor is never sent without that answer. If a request has to wait for a slot, its
    intended send time is the time at which the slot became free. In a closed loop a request without `at_ns` has no
    intended send time, so latency counts from the actual send time. The time in which a slot was empty is a delay
    of the load generator, not of the server. Next turns are served before new conversations. A late request is sent
    late and never skipped.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self._requests = {request.index: request for request in plan.requests}
        self._concurrency = plan.concurrency
        self._followers: dict[int, list[PlannedRequest]] = {}
        for request in plan.requests:
            if request.after is not None:
                self._followers.setdefault(request.after, []).append(request)
        self._unfinished = len(plan.requests)
        self._started_ns = 0
        self._due: list[tuple[int, int]] = []
        self._ready: list[tuple[bool, int, int]] = []
        self._slots: deque[int] | None = None
        self._times: list[int] = []
        self._timed_sends = 0
        self._turn_times: list[int] = []

    def start(self, started_ns: int) -> None:
        """Set the start of the schedule. No request is due before the start."""
        first = [r for r in self._requests.values() if r.after is None]
        self._started_ns = started_ns
        self._due = [(started_ns + (r.at_ns or 0), r.index) for r in first]
        heapify(self._due)
        self._times = sorted(started_ns + r.at_ns for r in first if r.at_ns is not None)
        if self._concurrency is not None:
            self._slots = deque([started_ns] * self._concurrency)

    @property
    def done(self) -> bool:
        return self._unfinished == 0

    @property
    def next_due_ns(self) -> int | None:
        """Earliest send time of the next request; None if the next request waits for a request in flight."""
        if self._ready and (self._slots is None or self._slots):
            return self._started_ns
        return self._due[0][0] if self._due else None

    def upcoming(self, until_ns: int) -> int:
        """Number of unsent requests with a known send time until `until_ns`, which is the number of connections needed.

        With a limit, these requests can only use the slots that are free now. A slot that becomes free later brings a
        connection with it.
        """
        timed = bisect_right(self._times, until_ns) - self._timed_sends
        requests = timed + bisect_right(self._turn_times, until_ns)
        return requests if self._slots is None else min(requests, len(self._slots))

    def take_due(self, now_ns: int, most: int) -> list[DueRequest]:
        """Remove and return the requests to send now, in order, at most `most` of them."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, index = heappop(self._due)
            heappush(self._ready, (self._requests[index].after is None, due_ns, index))
        due_requests: list[DueRequest] = []
        while len(due_requests) < most and self._ready and (self._slots is None or self._slots):
            _, due_ns, index = heappop(self._ready)
            free_ns = due_ns if self._slots is None else self._slots.popleft()
            request = self._requests[index]
            if request.at_ns is not None and request.after is None:
                self._timed_sends += 1
            if request.after is not None:
                del self._turn_times[bisect_left(self._turn_times, due_ns)]
            due_requests.append(self._due_request(request, due_ns, free_ns))
        return due_requests

    def _due_request(self, request: PlannedRequest, due_ns: int, free_ns: int) -> DueRequest:
        possible_ns = max(due_ns, free_ns)
        unscheduled = request.at_ns is None and request.after is None and self._slots is not None
        return DueRequest(request, None if unscheduled else possible_ns, possible_ns)

    def finished(self, index: int, ended_ns: int, *, answered: bool = True) -> list[PlannedRequest]:
        """Free the slot of the request that ended at `ended_ns`, and make the requests due that waited for its end.

        Returns the requests that can never be sent: without an answer, the turns that would contain it.
        """
        self._unfinished -= 1
        if self._slots is not None:
            self._slots.append(ended_ns)
        followers = self._followers.get(index, ())
        dropped = [] if answered else [r for r in followers if r.part is not None and r.part.continues]
        for request in dropped:  # grows by the turns after each of them
            dropped += self._followers.get(request.index, ())
        self._unfinished -= len(dropped)
        dropped_indices = {request.index for request in dropped}
        for request in followers:
            if request.index in dropped_indices:
                continue
            due_ns = ended_ns + request.think_ns
            if request.at_ns is not None:
                due_ns = max(due_ns, self._started_ns + request.at_ns)
            heappush(self._due, (due_ns, request.index))
            insort(self._turn_times, due_ns)
        return dropped


def problem_of(requests: Sequence[PlannedRequest]) -> str | None:
    """Why this plan could never end; None if it can."""
    for position, request in enumerate(requests):
        if request.index != position:
            return f"request {request.index} stands at position {position}"
        if request.after is not None and not 0 <= request.after < position:
            return f"request {position} waits for request {request.after}, which does not come before it"
    return None
