"""What a check concluded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.model.verdict import Verdict


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the table that a user reads.

    Args:
        subject: the check as the user wrote it.
        verdict: the class.
        metric: its name, e.g. "ttft_p99".
        limit: the limit, with unit.
        measured: the value, with unit; "-" where there is none.
        interval: its confidence interval, with level and unit; "" where there is none.
        n: what it rests on, e.g. "4 of 1000 over, 3 runs on one server start".
        reason: one sentence where the verdict is not PASS: the cause, and what to do.
    """

    subject: str
    verdict: Verdict
    metric: str = ""
    limit: str = ""
    measured: str = "-"
    interval: str = ""
    n: str = ""
    reason: str = ""


#: How the subject of a comparison with a stored baseline begins.
BASELINE_COMPARISON = "baseline"


def worst(results: Sequence[CheckResult]) -> Verdict:
    """The verdict that speaks for all of them; PASS for none, and where figures were reported only."""
    return max((Verdict.PASS, *(result.verdict for result in results)), key=lambda verdict: verdict.severity)


def verdict_of_test(results: Sequence[CheckResult]) -> Verdict:
    """The worst verdict of a test's checks; REPORTED where no check decided anything."""
    return worst(results) if any(result.verdict is not Verdict.REPORTED for result in results) else Verdict.REPORTED
