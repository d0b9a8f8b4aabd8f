"""The class of a conclusion."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """Ordered by how much it matters: the verdict of a test is the worst verdict of its checks.

    REPORTED is a figure without a limit, and the verdict of a test that measures and checks nothing.
    """

    REPORTED = "REPORTED"
    PASS = "PASS"
    IMPROVED = "IMPROVED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    INCOMPARABLE = "INCOMPARABLE"
    FAIL = "FAIL"
    ERROR = "ERROR"

    @property
    def severity(self) -> int:
        return list(Verdict).index(self)
