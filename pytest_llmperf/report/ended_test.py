"""How a test ended, as the summary shows it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import BASELINE_COMPARISON

RATIO = " / "
SEEN = "(would have seen "
INTERVAL = re.compile(r" \d[\d.]* % CI .*")
CLAUSE = re.compile(r"; |\. ")
OPEN = Verdict.INCONCLUSIVE.value
UNDECIDED = (OPEN, Verdict.INCOMPARABLE.value)
NOT_COMPARED = (Verdict.NO_BASELINE.value, Verdict.INCOMPARABLE.value)
STORED = "STORED"


@dataclass(frozen=True, slots=True)
class EndedTest:
    """How one test ended.

    Args:
        test: its id.
        verdict: the worst of its checks, or "ERROR" or "USAGE" where it was cut short.
        checks: "FAIL: ttft_p99 <= 60ms: 61.2 ms 95 % CI 60.3–62 ms", in their order.
        reasons: of each check.
        error: what cut it short, with the evidence; "" where nothing did.
        run: the run folder, from where the user is; "" where nothing was measured.
        stored: the folder of baselines, from there, where this session has written this test's; "" where it has not.
    """

    test: str
    verdict: str
    checks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    error: str = ""
    run: str = ""
    stored: str = ""

    @property
    def outcome(self) -> str:
        """The verdict; STORED where this session has stored the baseline that the test was missing."""
        return STORED if self.stored and self.verdict in NOT_COMPARED else self.verdict

    @property
    def decided_by(self) -> str:
        """The number of the check that spoke, then the check, then why it could not be decided.

        A claim before the mechanisms around it; a comparison, which says what it would have seen, before SLOs. What is
        open beside a comparison that was none: it keeps the run from becoming a baseline.
        """
        if self.error:
            return self.error.partition("\n")[0]
        if self.verdict == Verdict.REPORTED.value and not self.checks:
            return "measured, nothing checked"
        if self.outcome == STORED:
            return "baseline stored; the next run is compared with it"
        if self.verdict in NOT_COMPARED and self.has_undecided_requirement:
            return f"{self._deciding_check_text}; {OPEN}: {replace(self, verdict=OPEN)._deciding_check_text}"
        return self._deciding_check_text

    @property
    def has_undecided_requirement(self) -> bool:
        """Whether an SLO or a claim is INCONCLUSIVE; a comparison may be, until enough sessions are stored."""
        undecided = (check.removeprefix(f"{OPEN}: ") for check in self.checks if check.startswith(f"{OPEN}: "))
        return any(check.partition(": ")[0].partition(" ")[0] != BASELINE_COMPARISON for check in undecided)

    @property
    def _deciding_check_text(self) -> str:
        start = f"{self.verdict}: "
        spoke = [check.removeprefix(start) for check in self.checks if check.startswith(start)]
        telling = [*(check for check in spoke if RATIO in check), *(check for check in spoke if SEEN in check), *spoke]
        chosen = telling[0] if telling else ""
        subject, _, details = chosen.partition(": ")
        number, why = INTERVAL.sub("", details), self._first_reason_clause(f"{start}{chosen}")
        label = f"{subject}: {why}" if why else subject
        return f"{number}  {label}" if number not in ("", "-") else label

    def _first_reason_clause(self, check: str) -> str:
        """The first clause of a reason: no number says that something was not decided."""
        reason_by_check = dict(zip(self.checks, self.reasons, strict=False))
        return CLAUSE.split(reason_by_check.get(check, ""))[0] if self.verdict in UNDECIDED else ""

    @property
    def log(self) -> str:
        """Where the server's whole log lies, as the evidence says; "" where there is none."""
        lines = self.error.splitlines()
        return next((line.removeprefix("log: ") for line in lines if line.startswith("log: ")), "")


def short_id(test: str) -> str:
    """A test's id without its file."""
    return test.partition("::")[2] or test
