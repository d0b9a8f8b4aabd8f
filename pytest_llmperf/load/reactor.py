"""The event loop of a load process. Between any two reads it looks whether a request is due.

asyncio runs every callback that is ready before it looks at the clock again, its timers count milliseconds, and it
reads by itself, without the kernel's timestamps. This reactor reads nothing and reports the readable connections.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic_ns

from pytest_llmperf.load.arrivals import ReadStamps

Handler = Callable[[], None]

NEVER = 1 << 62
_MOST_EVENTS = 64
_SPIN_NS = 200_000  # a sleeping CPU wakes about 0.1 ms late: sleep until so long before an alarm, and spin the rest
READ = 1   # EPOLLIN
WRITE = 4  # EPOLLOUT


class Reactor:
    """Runs handlers of descriptors, timers (coarse), and one alarm (exact).

    Args:
        arrivals: notified before each poll, so that it can stamp the reads after the poll.

    Attributes:
        alarm_ns: when `on_alarm` is wanted; setting it to 0 means as soon as the handler that runs has returned.
        on_alarm: resets `alarm_ns` itself.
        spare_work: the next piece of work that can wait until nothing is ready; None: there is none.
    """

    def __init__(self, arrivals: ReadStamps) -> None:
        self._arrivals = arrivals
        self._poller = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[tuple[int, int, Handler]] = []
        self._order = count()
        self._stopped = False
        self._full = False
        self.alarm_ns = NEVER
        self.on_alarm: Handler = self._silence
        self.spare_work: Callable[[], Handler | None] = lambda: None

    def watch(self, fd: int, handler: Handler, events: int = READ) -> None:
        """Call `handler` whenever the descriptor is ready; replaces what was said of it before."""
        if fd in self._handlers:
            self._poller.modify(fd, events)
        else:
            self._poller.register(fd, events)
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """No longer watch it; to be called before it is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def call_at(self, due_ns: int, handler: Handler) -> None:
        """Call once, no earlier than `due_ns` (CLOCK_MONOTONIC), after reads that are under way."""
        heappush(self._timers, (due_ns, next(self._order), handler))

    def stop(self) -> None:
        """Let `run` return once the handler that runs has."""
        self._stopped = True

    def run(self) -> None:
        """Run the event loop until `stop`."""
        self._stopped = False
        while not self._stopped:
            self._keep_time()
            work = self.spare_work()
            events = self._poll(0 if work or self._stopped else self._time_to_due_ns())
            if not events:
                if work:
                    work()
                continue
            self._arrivals.synchronise()
            for fd, _ in events:
                handler = self._handlers.get(fd)
                if handler is not None:  # else an earlier one of this batch closed it
                    handler()
                if monotonic_ns() >= self.alarm_ns:
                    self.on_alarm()

    def close(self) -> None:
        self._poller.close()

    def _keep_time(self) -> None:
        now_ns = monotonic_ns()
        if now_ns >= self.alarm_ns:
            self.on_alarm()
        while self._timers and self._timers[0][0] <= now_ns and not self._stopped:
            heappop(self._timers)[2]()

    def _time_to_due_ns(self) -> int:
        """Time until the alarm or a timer is nearly due; negative for a timer that is late."""
        due_ns = self.alarm_ns - _SPIN_NS
        if self._timers and self._timers[0][0] < due_ns:
            due_ns = self._timers[0][0]
        return due_ns - monotonic_ns()

    def _poll(self, most_ns: int) -> list[tuple[int, int]]:
        """The descriptors that are ready now or within `most_ns`.

        The wait is a select on the poller itself, because epoll_wait counts milliseconds. A poll follows the wait, so
        that the stamp of an unstamped read has the smallest error bound.
        """
        if most_ns > 0 and not select.select([self._poller], [], [], min(most_ns / 1e9, 1.0))[0]:
            return []
        self._arrivals.polling(more=self._full)
        events = self._poller.poll(0, _MOST_EVENTS)
        self._full = len(events) == _MOST_EVENTS
        return events

    def _silence(self) -> None:
        self.alarm_ns = NEVER
