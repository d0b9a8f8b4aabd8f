"""Send times of the requests of a plan, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a plan.

    Args:
        index: its position in the plan.
        prompt: token ids.
        max_tokens: number of tokens to generate.
        at_ns: intended send time after the start; None sends the request as soon as a slot is free.
        after: index of the predecessor, which must end first.
        think_ns: pause after the end of the predecessor.
        salt: separates prefix caches.
        continues: whether the prompt contains the predecessor's answer.
    """

    index: int
    prompt: tuple[int, ...]
    max_tokens: int
    at_ns: int | None = None
    after: int | None = None
    think_ns: int = 0
    salt: str = ""
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests of a client.

    Args:
        requests: requests by index. A request comes after its predecessor.
        concurrency: largest number of requests in flight (closed loop); None for no limit (open loop).
    """

    requests: tuple[Request, ...]
    concurrency: int | None = None

    def __post_init__(self) -> None:
        for position, request in enumerate(self.requests):
            if request.index != position:
                raise ValueError(f"request {request.index} stands at position {position}")
            if request.after is not None and not 0 <= request.after < position:
                raise ValueError(f"request {position} waits for request {request.after}, which is not before it")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency {self.concurrency} lets nothing go")


class SendSchedule:
    """A request is due at its time, or a think time after the end of its predecessor, even if the predecessor failed.
    A due request is sent when a slot is free. Later turns of a conversation are sent before new conversations."""

    def __init__(self, plan: Plan, started_ns: int) -> None:
        self._requests = plan.requests
        self._started_ns = started_ns
        self._due = [(started_ns + (r.at_ns or 0), r.index) for r in plan.requests if r.after is None]
        heapify(self._due)
        self._ready: list[tuple[bool, int, int]] = []
        self._slots = None if plan.concurrency is None else [started_ns] * plan.concurrency
        self._followers: dict[int, list[Request]] = {}
        for request in plan.requests:
            if request.after is not None:
                self._followers.setdefault(request.after, []).append(request)

    @property
    def next_ns(self) -> int | None:
        """Send time of the next request; None if the next request waits for a request in flight."""
        if self._slots is None:
            return self._due[0][0] if self._due else None
        if not self._slots or not (self._ready or self._due):
            return None
        return self._slots[0] if self._ready else max(self._slots[0], self._due[0][0])

    def take_timed(self) -> list[tuple[Request, int]]:
        """Open loop: removes and returns all requests whose send time is known, each with this time."""
        if self._slots is not None or not self._due:
            return []
        due = sorted(self._due)
        self._due = []
        return [(self._requests[index], due_ns) for due_ns, index in due]

    def take_due(self, now_ns: int) -> list[tuple[Request, int]]:
        """Removes and returns the requests to send now, each with its intended send time."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, index = heappop(self._due)
            heappush(self._ready, (self._requests[index].after is None, due_ns, index))
        due_requests = []
        while self._ready and (self._slots is None or (self._slots and self._slots[0] <= now_ns)):
            _, due_ns, index = heappop(self._ready)
            request = self._requests[index]
            free_ns = due_ns if self._slots is None else heappop(self._slots)
            due_requests.append((request, max(due_ns, free_ns)))
        return due_requests

    def ended(self, index: int, ended_ns: int, *, answered: bool = True) -> list[Request]:
        """Records that a request ends at this time. Without an answer, returns the turns that would contain the answer
        and all later turns: these turns are never sent."""
        if self._slots is not None:
            heappush(self._slots, ended_ns)
        dropped = [] if answered else [request for request in self._followers.get(index, ()) if request.continues]
        for request in dropped:
            dropped += self._followers.get(request.index, ())
        for request in self._followers.get(index, ()):
            if request in dropped:
                continue
            due_ns = ended_ns + request.think_ns
            if request.at_ns is not None:
                due_ns = max(due_ns, self._started_ns + request.at_ns)
            heappush(self._due, (due_ns, request.index))
        return dropped
