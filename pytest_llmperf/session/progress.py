"""Converts the progress of a replay to a status for the display: rates, latencies so far, time left."""

from __future__ import annotations

import re
from heapq import heapreplace
from statistics import linear_regression

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.model.status import Measuring

NS_PER_S = 1e9
FITTED_REQUESTS = 8
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
            self._slots = _slots(plan)
        elapsed_s = progress.elapsed_ns / NS_PER_S
        left_s = self._left_s(progress)
        whole_s = None if left_s is None else elapsed_s + left_s
        return Measuring(
            run=self._run,
            runs=self._runs,
            requests=len(plan.requests),
            done=progress.done,
            failed=progress.failed,
            elapsed_s=elapsed_s,
            requested_rate=(len(plan.requests) - 1) / self._last_send_s if self._last_send_s else None,
            rate=progress.done / elapsed_s if progress.done and elapsed_s else None,
            ttft_ms=_ms(progress.ttft_ns),
            itl_ms=_ms(progress.itl_ns),
            left_s=None if left_s is None or whole_s is None else left_s + (self._runs - self._run) * whole_s,
            label=self._label,
        )

    def _left_s(self, progress: Progress) -> float | None:
        """Estimated remaining seconds of the run.

        An open loop ends when the last request of the schedule is answered. A closed loop ends when its slots have
        answered all requests. Otherwise the pace so far is extrapolated.
        """
        elapsed_s, requests = progress.elapsed_ns / NS_PER_S, len(self._tokens)
        if progress.done >= requests:
            return 0.0
        durations_s = self._durations_s(progress)
        if self._last_send_s is not None and elapsed_s < self._last_send_s:
            return self._last_send_s - elapsed_s + (durations_s[-1] if durations_s else 0.0)
        pace_left_s = elapsed_s * (requests - progress.done) / progress.done if progress.done else None
        if self._slots is None or not durations_s:
            return pace_left_s
        return max(_end_s(durations_s, self._slots) - elapsed_s, 0.0) or pace_left_s

    def _durations_s(self, progress: Progress) -> list[float]:
        """Seconds of every request: measured for an ended request, otherwise predicted from its output tokens.

        Empty before the first end.
        """
        ended_s = {index: duration_ns / NS_PER_S for index, duration_ns in progress.durations_ns.items()}
        if not ended_s:
            return []
        first_s, token_s = _duration_line([self._tokens[index] for index in ended_s], list(ended_s.values()))
        return [ended_s.get(index, first_s + token_s * tokens) for index, tokens in enumerate(self._tokens)]


def _duration_line(tokens: list[int], durations_s: list[float]) -> tuple[float, float]:
    """Seconds of a request before its tokens, and seconds per output token.

    The short requests of a closed loop end first, and their wait before the first token is a larger part of their
    duration. The line takes this wait apart, where enough requests of different lengths have ended.
    """
    if len(tokens) >= FITTED_REQUESTS and min(tokens) < max(tokens):
        token_s, first_s = linear_regression(tokens, durations_s)
        if token_s > 0 and first_s > 0:
            return first_s, token_s
    return 0.0, sum(durations_s) / sum(tokens)


def _output_tokens(body: bytes) -> int:
    """Output tokens that a request asks for; 1 if the body does not say, so that all requests count the same."""
    tokens = _OUTPUT_TOKENS.search(body)
    return int(tokens[1]) if tokens else 1


def _slots(plan: LoadPlan) -> int | None:
    """The limit of requests in flight; None without a limit and for conversations with pauses."""
    return None if any(request.after is not None for request in plan.requests) else plan.concurrency


def _end_s(durations_s: list[float], slots: int) -> float:
    """Seconds until the last request ends, if each request takes the slot that is free first."""
    ends_s = [0.0] * slots
    for duration_s in durations_s:
        heapreplace(ends_s, ends_s[0] + duration_s)
    return max(ends_s)


def _last_send_s(plan: LoadPlan) -> float | None:
    """Intended send time of the last request, in seconds after the start; None if send times depend on answers."""
    if plan.concurrency is not None:
        return None
    due_ns = [request.at_ns for request in plan.requests]
    send_times_ns = [at_ns for at_ns in due_ns if at_ns is not None]
    return max(send_times_ns) / NS_PER_S if send_times_ns and len(send_times_ns) == len(due_ns) else None


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e6
