"""How the error that a whole suite run may make is shared out: among its metrics, and over successive looks.

A comparison begins with 3 runs and measures more runs only while it is undecided, so it has up to three looks.
Each look spends a part of the comparison's α. The parts add up to α (Bonferroni over looks).

A re-run of a test pools its runs with the runs of earlier executions and is a further look. Its new verdicts use half
the α of the execution before (`alpha_of_execution`). An earlier FAIL has spent its α already. It stands while the
pooled runs still show the regression at the α of the first execution.
"""

from __future__ import annotations

from math import ldexp

#: Runs at each look, and the share of α that is spent by then.
LOOKS = (3, 5, 8)
SPENT = (0.5, 0.75, 1.0)
#: One suite run in a hundred may raise a false alarm.
SUITE_ALPHA = 0.01
#: Error of one SLO, on either side, over all looks at its measurement.
SLO_ALPHA = 0.05
#: Stored sessions from which their spread says something of its own.
ENOUGH_SESSIONS = 3


def spent_share(runs: int) -> float:
    """Share of α that may be spent once there are so many runs: 0…1."""
    return max((share for look, share in zip(LOOKS, SPENT, strict=True) if runs >= look), default=0.0)


def alpha_of_execution(alpha: float, executions: int) -> float:
    """α of one decision when so many executions of its test are pooled: all together spend less than twice α."""
    return ldexp(alpha, 1 - executions)


def alpha_at(
    runs: int, looked_at: int, *, primaries: int, suite_primaries: int, suite_alpha: float = SUITE_ALPHA
) -> float:
    """α of one test's family of primary metrics at this look.

    Args:
        runs: of today's, at this look.
        looked_at: runs at the look before, 0 at the first.
        primaries: metrics that this test judges.
        suite_primaries: metrics that the whole suite judges, at least `primaries`.
        suite_alpha: share of suite runs that may raise a false alarm.

    Raises:
        ValueError: the suite has fewer metrics than the test, or the test has none.
    """
    if not 0 < primaries <= suite_primaries:
        raise ValueError(f"a test of {primaries} primary metrics in a suite of {suite_primaries}")
    share = spent_share(runs) - spent_share(looked_at)
    return suite_alpha * primaries / suite_primaries * max(0.0, share)
