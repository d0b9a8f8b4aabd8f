"""Estimates when a run ends, from the requests that ended and from the reads of the requests in flight."""

from __future__ import annotations

import re
from bisect import bisect_left
from heapq import heapify, heapreplace
from itertools import pairwise
from math import floor
from statistics import fmean, linear_regression

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan

NS_PER_S = 1e9
FITTED_REQUESTS = 8
QUIET_CONCURRENCY = 2  # of the warm-up
_OUTPUT_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')


class RemainingTime:
    """Estimates the remaining time of one run.

    An open loop ends when the last request of the schedule is answered. A closed loop ends when its slots have answered
    all requests: each request takes the slot that is free first. A request takes a wait and a time per token. The time
    per token is measured on ended requests; the wait follows from the tokens that the slots generate in a whole number
    of request durations. After the last send fewer and fewer slots work, so each token takes less time. The time per
    token is taken as linear in the number of working slots, between the warm-up and the full closed loop.

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
        self._token_s: float | None = None
        self._wait_s = 0.0
        self._peak_requests = 0  # in flight at the last send of an open loop

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
            return self._scheduled_s(progress, ended_s, max(self._send_times_s))
        pace_left_s = elapsed_s * (requests - progress.done) / progress.done if progress.done else None
        if self._slots is None:
            return pace_left_s
        left_s = self._streamed_s(progress, ended_s, self._slots)
        if left_s is None and ended_s:
            left_s = max(0.0, _end_s(self._durations_s(ended_s), self._slots) - elapsed_s)
        return left_s or pace_left_s

    def _scheduled_s(self, progress: Progress, ended_s: dict[int, float], last_send_s: float) -> float:
        """Remaining seconds of an open loop."""
        elapsed_s = progress.elapsed_ns / NS_PER_S
        token_reads, in_flight_tokens = self._reads(progress, ended_s)
        token_s = (progress.itl_ns or 0) / NS_PER_S * token_reads
        if elapsed_s < last_send_s or not (in_flight_tokens and token_s):
            ends_s = zip(self._send_times_s, self._durations_s(ended_s), strict=True)
            begin_s = max(last_send_s, elapsed_s)
            rest_s = [send_s + duration_s - begin_s for send_s, duration_s in ends_s]
            self._peak_requests = sum(end_s > 0 for end_s in rest_s)
            return begin_s - elapsed_s + self._drained_s(rest_s, token_s, self._peak_requests)
        ages_s = {index: elapsed_s - send_s for index, send_s in enumerate(self._send_times_s) if index not in ended_s}
        rest_s = [tokens * token_s for tokens in self._rest_tokens(ages_s, in_flight_tokens)]
        return self._drained_s(rest_s, token_s, self._peak_requests)

    def _reads(self, progress: Progress, ended_s: dict[int, float]) -> tuple[float, float]:
        """Reads per token of the ended requests (1 before the first end), and tokens of the requests in flight."""
        ended_tokens = sum(self._tokens[index] for index in ended_s)
        token_reads = min(progress.ended_reads / ended_tokens, 1.0) if ended_tokens else 1.0
        return token_reads, (progress.reads - progress.ended_reads) / token_reads if token_reads else 0.0

    def _rest_tokens(self, ages_s: dict[int, float], in_flight_tokens: float) -> list[float]:
        """Further tokens of each request in flight, which share the generated tokens in proportion to their ages."""
        share = in_flight_tokens / total_s if (total_s := sum(ages_s.values())) else 0.0
        return [max(self._tokens[index] - share * age_s, 0.0) for index, age_s in ages_s.items()]

    def _streamed_s(self, progress: Progress, ended_s: dict[int, float], slots: int) -> float | None:
        """Remaining seconds of a closed loop of streamed answers; None before the slots have a pace."""
        elapsed_s = progress.elapsed_ns / NS_PER_S
        token_reads, in_flight_tokens = self._reads(progress, ended_s)
        if progress.sent < len(self._tokens) or self._token_s is None:
            ended_tokens = sum(self._tokens[index] for index in ended_s)
            self._history.append((elapsed_s, ended_tokens + in_flight_tokens))
            split = progress.itl_ns is not None and len(ended_s) >= FITTED_REQUESTS
            gap_s = (progress.itl_ns or 0) / NS_PER_S * token_reads if split else None
            self._note_pace(gap_s, fmean(ended_s.values()) if ended_s else None, slots)
        if self._token_s is None or (ended_s and progress.itl_ns is None):
            return None
        ages_s = self._ages_s(progress, ended_s, slots)
        answering_s = {index: max(age_s - self._wait_s, 0.0) for index, age_s in ages_s.items()}
        wait_tokens = self._wait_s / self._token_s
        rest_tokens = self._rest_tokens(answering_s, in_flight_tokens)
        rest = [tokens + max(wait_tokens - age_s / self._token_s, 0.0)
                for tokens, age_s in zip(rest_tokens, ages_s.values(), strict=True)]
        unsent = self._tokens[progress.sent:]
        if unsent:
            rest += [0.0] * (slots - len(rest))
        heapify(rest)
        for tokens in unsent:
            heapreplace(rest, rest[0] + tokens + wait_tokens)
        return self._drained_s([tokens * self._token_s for tokens in rest], self._token_s, slots)

    def _note_pace(self, gap_s: float | None, duration_s: float | None, slots: int) -> None:
        """Note the seconds of a slot per token, and the wait of a request before its first token.

        Requests of equal length end together, and the next prompts wait for each other again. So the tokens are counted
        over whole durations of a request, at least one and about half of the run so far. With different lengths only
        the first prompts wait for each other, and the count begins after them.

        Args:
            gap_s: median seconds per token of the ended requests; None before enough of them have ended.
            duration_s: mean duration of the ended requests; None before the first end.
            slots: number of slots.
        """
        elapsed_s, tokens = self._history[-1]
        window_s = elapsed_s / 2
        if duration_s is not None and duration_s <= elapsed_s:
            window_s = duration_s * max(floor(window_s / duration_s), 1)
        synchronous = min(self._tokens) == max(self._tokens)
        if not synchronous:
            # The head of an answer is a read of its own, long before the first token.
            answering_s = next((at_s for at_s, count in self._history if count >= 2 * slots), elapsed_s)
            window_s = min(window_s, elapsed_s - answering_s)
        window_tokens = tokens - self._tokens_at(elapsed_s - window_s)
        self._token_s = gap_s or self._token_s
        if window_s <= 0 or window_tokens < slots:
            return
        slot_token_s = slots * window_s / window_tokens
        if gap_s is not None:
            self._wait_s = max(slot_token_s - gap_s, 0.0) * fmean(self._tokens)
        else:
            self._token_s = slot_token_s
            self._wait_s = max(elapsed_s - slot_token_s * tokens / slots, 0.0) if synchronous else 0.0

    def _tokens_at(self, elapsed_s: float) -> float:
        """Tokens until then, interpolated between two reports."""
        if elapsed_s <= 0:
            return 0.0
        points = [(0.0, 0.0), *self._history]
        place = max(bisect_left(points, (elapsed_s, 0.0)), 1)
        (begin_s, begin), (end_s, end) = points[place - 1 : place + 1]
        return begin + (end - begin) * (elapsed_s - begin_s) / (end_s - begin_s)

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

    def _drained_s(self, rest_s: list[float], token_s: float, full: int) -> float:
        """Seconds until the last request ends, while no further request is sent.

        Args:
            rest_s: seconds that each request in flight would take at `token_s`.
            token_s: seconds per token while `full` requests are in flight; 0 if it is unknown.
            full: number of requests in flight before the last send.
        """
        quiet = min(self._quiet_itl_s / token_s, 1.0) if self._quiet_itl_s is not None and token_s else 1.0
        ends_s = sorted(end_s for end_s in rest_s if end_s > 0)
        slope = (1 - quiet) / (full - QUIET_CONCURRENCY) if full > QUIET_CONCURRENCY else 0.0
        left_s = 0.0
        for ended, (begin_s, end_s) in enumerate(pairwise([0.0, *ends_s])):
            left_s += (end_s - begin_s) * (quiet + max(len(ends_s) - ended - QUIET_CONCURRENCY, 0) * slope)
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
