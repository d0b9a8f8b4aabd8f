"""Converts the progress of a replay to a status for the display: rates, latencies so far, time left."""

from __future__ import annotations

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.model.status import Measuring, SearchRest

NS_PER_S = 1e9


class RunProgress:
    """Makes the statuses of one unfinished run.

    Args:
        run, runs: number of the run, from 1, and number of runs.
        label: further name of the run, such as the side of a claim.
        search: the rest of the search after these runs; None outside a search.
    """

    def __init__(self, run: int, runs: int, label: str = "", search: SearchRest | None = None) -> None:
        self._run, self._runs, self._label, self._search = run, runs, label, search

    def status(self, progress: Progress, plan: LoadPlan) -> Measuring:
        """The status of this run now."""
        elapsed_s, last_send_s = progress.elapsed_ns / NS_PER_S, max(_send_times_s(plan), default=None)
        left_s = remaining_s(progress, plan)
        return Measuring(
            run=self._run,
            runs=self._runs,
            requests=len(plan.requests),
            done=progress.done,
            failed=progress.failed,
            elapsed_s=elapsed_s,
            requested_rate=(len(plan.requests) - 1) / last_send_s if last_send_s else None,
            rate=progress.done / elapsed_s if progress.done and elapsed_s else None,
            ttft_ms=_ms(progress.ttft_ns),
            itl_ms=_ms(progress.itl_ns),
            left_s=None if left_s is None else left_s + (self._runs - self._run) * (elapsed_s + left_s),
            label=self._label,
            search=self._search,
        )


def remaining_s(progress: Progress, plan: LoadPlan) -> float | None:
    """Estimated seconds until the last request of a run ends; None before the first token.

    An open loop ends when the requests in flight and those of its schedule are answered, each after its output tokens
    at the mean time per token of the ended requests. A closed loop generates the remaining output tokens at the mean
    rate of the run. After the last send each request in flight generates at most one token per inter-token latency.
    """
    elapsed_s = progress.elapsed_ns / NS_PER_S
    if progress.done >= len(plan.requests):
        return 0.0
    tokens = [request.output_tokens * request.answers for request in plan.requests]
    ended_tokens = sum(tokens[index] for index in progress.durations_ns)
    if send_times_s := _send_times_s(plan):
        token_s = sum(progress.durations_ns.values()) / NS_PER_S / ended_tokens if ended_tokens else 0.0
        ends_s = (send_s + tokens[index] * token_s for index, send_s in enumerate(send_times_s)
                  if index not in progress.durations_ns)
        return max(max(ends_s, default=0.0) - elapsed_s, 0.0)
    read_tokens = max(ended_tokens / progress.ended_reads, 1.0) if progress.ended_reads else 1.0
    generated_tokens = ended_tokens + (progress.reads - progress.ended_reads) * read_tokens
    if not generated_tokens:
        return None
    token_s, in_flight = elapsed_s / generated_tokens, progress.sent - progress.done
    if progress.sent == len(plan.requests) and in_flight:
        token_s = max(token_s, (progress.itl_ns or 0) / NS_PER_S / read_tokens / in_flight)
    return max(sum(tokens) - generated_tokens, 0.0) * token_s


def _send_times_s(plan: LoadPlan) -> list[float]:
    """Intended send times in seconds after the start; empty if some send times depend on answers."""
    send_times_ns = [request.at_ns for request in plan.requests if request.at_ns is not None]
    if plan.concurrency is not None or len(send_times_ns) < len(plan.requests):
        return []
    return [at_ns / NS_PER_S for at_ns in send_times_ns]


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e6
