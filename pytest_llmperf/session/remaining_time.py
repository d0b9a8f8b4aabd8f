"""Estimates when a run ends, from the requests that ended and from the reads of the requests in flight."""

from __future__ import annotations

import re
from heapq import heapify, heapreplace
from itertools import pairwise
from statistics import linear_regression

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan

NS_PER_S = 1e9
FITTED_REQUESTS = 8
QUIET_CONCURRENCY = 2  # of the warm-up
_OUTPUT_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')


class RemainingTime:
    """Estimates the remaining time of one run.

    An open loop ends when the last request of the schedule is answered. A closed loop ends when its slots have answered
    all requests: each request takes the slot that is free first. A slot generates a token in the mean time that the
    slots needed per token in the second half of the run so far. The first half holds the first prompts, which all
    arrive at once. After the last send fewer and fewer slots work, so each step takes less time. The time of a step is
    taken as linear in the number of working slots, between the warm-up and the full closed loop.

    Args:
        plan: the requests of the run.
        quiet_itl_s: median inter-token latency of the warm-up, in seconds; None if it is unknown.
    """

    def __init__(self, plan: LoadPlan, quiet_itl_s: float | None = None) -> None:
        self._send_times_s = _send_times_s(plan)
        self._tokens = [_output_tokens(request.body) for request in plan.requests]
        self._slots = _slots(plan)
        self._quiet_itl_s = quiet_itl_s
        self._history: list[tuple[float, float]] = []  # elapsed seconds, tokens
        self._slot_token_s: float | None = None

    @property
    def last_send_s(self) -> float | None:
        """Intended send time of the last request; None if send times depend on answers."""
        return max(self._send_times_s, default=None)

    def left_s(self, progress: Progress) -> float | None:
        """Estimated remaining seconds of the run; None if no estimate is possible.

        Conversations with pauses, and closed loops whose answers arrive whole, are extrapolated from ended requests.
        """
        elapsed_s, requests = progress.elapsed_ns / NS_PER_S, len(self._tokens)
        if progress.done >= requests:
            return 0.0
        ended_s = {index: duration_ns / NS_PER_S for index, duration_ns in progress.durations_ns.items()}
        if self._send_times_s:
            ends_s = zip(self._send_times_s, self._durations_s(ended_s), strict=True)
            return max(0.0, max(send_s + duration_s for send_s, duration_s in ends_s) - elapsed_s)
        pace_left_s = elapsed_s * (requests - progress.done) / progress.done if progress.done else None
        if self._slots is None:
            return pace_left_s
        left_s = self._streamed_s(progress, ended_s, self._slots)
        if left_s is None and ended_s:
            left_s = max(0.0, _end_s(self._durations_s(ended_s), self._slots) - elapsed_s)
        return left_s or pace_left_s

    def _streamed_s(self, progress: Progress, ended_s: dict[int, float], slots: int) -> float | None:
        """Remaining seconds of a closed loop of streamed answers; None before the slots have a pace."""
        elapsed_s = progress.elapsed_ns / NS_PER_S
        ended_tokens = sum(self._tokens[index] for index in ended_s)
        token_reads = progress.ended_reads / ended_tokens if ended_tokens else 1.0
        flying_tokens = (progress.reads - progress.ended_reads) / token_reads if token_reads else 0.0
        if progress.sent < len(self._tokens):
            self._note_pace(elapsed_s, ended_tokens + flying_tokens, slots)
        if self._slot_token_s is None:
            return None
        ages_s = self._ages_s(progress, ended_s, slots)
        share = flying_tokens / sum(ages_s.values()) if any(ages_s.values()) else 0.0
        rest = [max(self._tokens[index] - share * age_s, 0.0) for index, age_s in ages_s.items()]
        unsent = self._tokens[progress.sent:]
        if unsent:
            rest += [0.0] * (slots - len(rest))
        heapify(rest)
        for tokens in unsent:
            heapreplace(rest, rest[0] + tokens)
        return self._drained_s(sorted(rest), self._slot_token_s, progress.itl_ns, slots)

    def _note_pace(self, elapsed_s: float, tokens: float, slots: int) -> None:
        """Note seconds of a slot per token, over the second half of the run so far."""
        self._history.append((elapsed_s, tokens))
        half_s, half_tokens = max(point for point in [(0.0, 0.0), *self._history] if point[0] <= elapsed_s / 2)
        if tokens - half_tokens >= slots:
            self._slot_token_s = slots * (elapsed_s - half_s) / (tokens - half_tokens)

    def _ages_s(self, progress: Progress, ended_s: dict[int, float], slots: int) -> dict[int, float]:
        """Seconds since the send of each request in flight, where each request took the slot that was free first."""
        elapsed_s = progress.elapsed_ns / NS_PER_S
        free_s, ages_s = [0.0] * slots, dict[int, float]()
        for index in range(progress.sent):
            if index in ended_s:
                heapreplace(free_s, free_s[0] + ended_s[index])
            else:
                ages_s[index] = max(elapsed_s - heapreplace(free_s, elapsed_s), 0.0)
        return ages_s

    def _drained_s(self, ends: list[float], slot_token_s: float, itl_ns: int | None, slots: int) -> float:
        """Seconds until the last slot ends.

        Args:
            ends: tokens until each working slot has nothing to do, ascending.
            slot_token_s: seconds per token of a slot while all slots work.
            itl_ns: median inter-token latency so far.
            slots: number of slots.
        """
        full_s = slot_token_s if itl_ns is None else min(itl_ns / NS_PER_S, slot_token_s)
        quiet_s = full_s if self._quiet_itl_s is None else min(self._quiet_itl_s, full_s)
        slope_s = (full_s - quiet_s) / (slots - QUIET_CONCURRENCY) if slots > QUIET_CONCURRENCY else 0.0
        left_s = 0.0
        for ended, (begin, end) in enumerate(pairwise([0.0, *ends])):
            working = len(ends) - ended
            step_s = quiet_s + max(working - QUIET_CONCURRENCY, 0) * slope_s
            left_s += (end - begin) * (slot_token_s if working == slots else step_s)
        return left_s

    def _durations_s(self, ended_s: dict[int, float]) -> list[float]:
        """Seconds of every request: measured for an ended request, otherwise predicted from its output tokens.

        Before the first end a request is expected to take its tokens at the pace of the warm-up.
        """
        first_s, token_s = 0.0, self._quiet_itl_s or 0.0
        if ended_s:
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
    if plan.concurrency is None or any(request.after is not None for request in plan.requests):
        return None
    return min(plan.concurrency, len(plan.requests))


def _end_s(durations_s: list[float], slots: int) -> float:
    """Seconds until the last request ends, if each request takes the slot that is free first."""
    ends_s = [0.0] * slots
    for duration_s in durations_s:
        heapreplace(ends_s, ends_s[0] + duration_s)
    return max(ends_s)


def _send_times_s(plan: LoadPlan) -> list[float]:
    """Intended send times in seconds after the start; empty if some send times depend on answers."""
    due_ns = [request.at_ns for request in plan.requests]
    send_times_ns = [at_ns for at_ns in due_ns if at_ns is not None]
    if plan.concurrency is not None or len(send_times_ns) < len(due_ns):
        return []
    return [at_ns / NS_PER_S for at_ns in send_times_ns]
