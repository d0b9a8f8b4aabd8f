"""Converts the progress of a replay to a status for the display: rates, latencies so far, time left."""

from __future__ import annotations

from pytest_llmperf.load.transport import Progress
from pytest_llmperf.model.plan import LoadPlan
from pytest_llmperf.model.status import Measuring, SearchRest
from pytest_llmperf.session.remaining_time import NS_PER_S, RemainingTime


class RunProgress:
    """Makes the statuses of one unfinished run.

    Args:
        run, runs: number of the run, from 1, and number of runs.
        label: further name of the run, such as the side of a claim.
        quiet_itl_s: as in `RemainingTime`.
        search: the rest of the search after these runs; None outside a search.
    """

    def __init__(
        self, run: int, runs: int, label: str = "", quiet_itl_s: float | None = None, search: SearchRest | None = None
    ) -> None:
        self._run, self._runs, self._label = run, runs, label
        self._quiet_itl_s, self._search = quiet_itl_s, search
        self._plan: LoadPlan | None = None

    def status(self, progress: Progress, plan: LoadPlan) -> Measuring:
        """The status of this run now."""
        if plan is not self._plan:
            self._plan = plan
            self._remaining = RemainingTime(plan, self._quiet_itl_s)
        elapsed_s, last_send_s = progress.elapsed_ns / NS_PER_S, self._remaining.last_send_s
        left_s = self._remaining.left_s(progress)
        whole_s = None if left_s is None else elapsed_s + left_s
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
            left_s=None if left_s is None or whole_s is None else left_s + (self._runs - self._run) * whole_s,
            label=self._label,
            search=self._search,
        )


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else duration_ns / 1e6
