"""Send times of the POSTs of a plan, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmperf.emulator.http.generation_request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Posted:
    """One POST of a plan.

    Args:
        index: its position in the plan.
        at_ns: intended send time after the start; None sends the request as soon as a slot is free.
        after: index of the predecessor, which must end first.
        think_ns: pause after the end of the predecessor.
        ask: the parsed body; None if the body is not parsed yet.
        continues: whether the prompt contains the predecessor's prompt and answer.
        after_tokens, after_ns: number of tokens and time after the send at which the client cancels; None for never.
        attempts: largest number of sends, if the server refuses the request with a status of `Patience`.
        backoff_ns: pause before the second send. Each further pause is twice as long.
        session: value of the header X-Session-Id; "" for no such header.
    """

    index: int
    path: str
    body: bytes
    at_ns: int | None = None
    after: int | None = None
    think_ns: int = 0
    ask: GenerationRequest | None = None
    continues: bool = False
    after_tokens: int | None = None
    after_ns: int | None = None
    attempts: int = 1
    backoff_ns: int = 0
    session: str = ""


class SendSchedule:
    """A request is due at its time, or a think time after the end of its predecessor, even if the predecessor failed.
    A due request is sent when a slot is free. Later turns of a conversation are sent before new conversations.

    Args:
        posts: requests by index. A request comes after its predecessor.
        concurrency: largest number of requests in flight (closed loop); None for no limit (open loop).

    Raises:
        ValueError: the plan cannot end.
    """

    def __init__(self, posts: List[Posted], concurrency: int | None, started_ns: int) -> None:
        self._posts = posts
        self._started_ns = started_ns
        self._followers: dict[int, list[Posted]] = {}
        for position, post in enumerate(posts):
            if post.index != position:
                raise ValueError(f"request {post.index} stands at position {position}")
            if post.after is not None and not 0 <= post.after < position:
                raise ValueError(f"request {position} waits for request {post.after}, which is not before it")
            if post.after is not None:
                self._followers.setdefault(post.after, []).append(post)
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency {concurrency} lets nothing go")
        self._due = [(started_ns + (post.at_ns or 0), post.index) for post in posts if post.after is None]
        heapify(self._due)
        self._ready: list[tuple[bool, int, int]] = []
        self._slots = None if concurrency is None else [started_ns] * concurrency

    @property
    def next_ns(self) -> int | None:
        """Send time of the next request; None if the next request waits for a request in flight."""
        if self._slots is None:
            return self._due[0][0] if self._due else None
        if not self._slots or not (self._ready or self._due):
            return None
        return self._slots[0] if self._ready else max(self._slots[0], self._due[0][0])

    def take_due(self, now_ns: int) -> list[tuple[Posted, int]]:
        """Removes and returns the requests to send now, each with its intended send time."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, index = heappop(self._due)
            heappush(self._ready, (self._posts[index].after is None, due_ns, index))
        due_requests = []
        while self._ready and (self._slots is None or (self._slots and self._slots[0] <= now_ns)):
            _, due_ns, index = heappop(self._ready)
            request = self._posts[index]
            free_ns = due_ns if self._slots is None else heappop(self._slots)
            due_requests.append((request, max(due_ns, free_ns)))
        return due_requests

    def ended(self, index: int, ended_ns: int, *, answered: bool = True) -> list[Posted]:
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
