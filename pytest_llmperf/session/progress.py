"""Converts the progress of a replay to a status for the display: rates, latencies so far, time left."""

from __future__ import annotations

import re
from heapq import heapreplace

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.model.status import Measuring

NS_PER_S = 1e9
_OUTPUT_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')


class RunProgress:
    """Makes the statuses of one unfinished run.

    Args:
        run, runs: number of the run, from 1, and number of runs.
        label: further name of the run, such as the side of a claim.
    """

    def __init__(self, run: int, runs: int, label: str = "") -> None:
        self._run, self._runs, self._label = run, runs, label
        self._plan: LoadPlan | None = None

    def status(self, progress: Progress, plan: LoadPlan) -> Measuring:
        """The status of this run now."""
        if plan is not self._plan:
            self._plan = plan
            self._last_send_s = _last_send_s(plan)
            self._tokens = [_output_tokens(request.body) for request in plan.requests]
            self._slot_tokens = _slot_tokens(plan, self._tokens)
        elapsed_s = progress.elapsed_ns / NS_PER_S
        left_s = self._left_s(progress)
        whole_s = None if left_s is None else elapsed_s + left_s
        return Measuring(
            run=self._run,
            runs=self._runs,
            asked=len(plan.requests),
            done=progress.done,
            failed=progress.failed,
            elapsed_s=elapsed_s,
            rate_asked=(len(plan.requests) - 1) / self._last_send_s if self._last_send_s else None,
            rate=progress.done / elapsed_s if progress.done and elapsed_s else None,
            ttft_ms=_ms(progress.ttft_ns),
            itl_ms=_ms(progress.itl_ns),
            left_s=None if left_s is None or whole_s is None else left_s + (self._runs - self._run) * whole_s,
            label=self._label,
        )

    def _left_s(self, progress: Progress) -> float | None:
        """Estimated remaining seconds of the run.

        An open loop ends when the last request of the schedule is answered. A closed loop ends when its slots have
        generated all output tokens at the speed of the requests that ended. Otherwise the pace so far is extrapolated.
        """
        elapsed_s, asked = progress.elapsed_ns / NS_PER_S, len(self._tokens)
        if progress.done >= asked:
            return 0.0
        token_s = self._token_s(progress)
        if self._last_send_s is not None and elapsed_s < self._last_send_s:
            return self._last_send_s - elapsed_s + (token_s or 0.0) * self._tokens[-1]
        pace_left_s = elapsed_s * (asked - progress.done) / progress.done if progress.done else None
        if self._slot_tokens is None or token_s is None:
            return pace_left_s
        return max(self._slot_tokens * token_s - elapsed_s, 0.0) or pace_left_s

    def _token_s(self, progress: Progress) -> float | None:
        """Seconds of a request per output token, over the ended requests."""
        tokens = sum(self._tokens[index] for index in progress.durations_ns)
        return sum(progress.durations_ns.values()) / NS_PER_S / tokens if tokens else None


def _output_tokens(body: bytes) -> int:
    """Output tokens that a request asks for; 1 if the body does not say, so that all requests count the same."""
    tokens = _OUTPUT_TOKENS.search(body)
    return int(tokens[1]) if tokens else 1


def _slot_tokens(plan: LoadPlan, tokens: list[int]) -> int | None:
    """Output tokens of the slot that ends last, if each request takes the slot that is free first.

    None without slots, and for conversations, which pause between their requests.
    """
    if plan.concurrency is None or any(request.after is not None for request in plan.requests):
        return None
    slots = [0] * plan.concurrency
    for request_tokens in tokens:
        heapreplace(slots, slots[0] + request_tokens)
    return max(slots)


def _last_send_s(plan: LoadPlan) -> float | None:
    """Intended send time of the last request, in seconds after the start; None if send times depend on answers."""
    due_ns = [request.at_ns for request in plan.requests]
    send_times_ns = [at_ns for at_ns in due_ns if at_ns is not None]
    return max(send_times_ns) / NS_PER_S if send_times_ns and len(send_times_ns) == len(due_ns) else None


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e6
