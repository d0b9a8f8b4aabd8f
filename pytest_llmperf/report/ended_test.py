"""How a test ended, as the summary shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.cause import Cause, NoFurtherRuns
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.sentences import builds_text, cause_text, estimate_text, limit_text

NOT_COMPARED = (Verdict.NO_BASELINE.value, Verdict.INCOMPARABLE.value)
STORED = "STORED"
#: Verdicts whose number alone does not say why.
EXPLAINED = (Verdict.INCONCLUSIVE, Verdict.INCOMPARABLE, Verdict.ERROR)


@dataclass(frozen=True, slots=True)
class EndedTest:
    """How one test ended.

    Args:
        test: its id.
        verdict: the worst verdict of its checks, or "ERROR" or "USAGE" if an error ended the test early.
        checks: in the order in which the test made them.
        error: the error that ended the test early, with the evidence; "" where there was none.
        run: the run folder, from where the user is; "" where nothing was measured.
        stored: the folder of baselines, from there, if this session has written this test's baseline; "" if not.
    """

    test: str
    verdict: str
    checks: tuple[CheckResult, ...] = ()
    error: str = ""
    run: str = ""
    stored: str = ""

    @property
    def outcome(self) -> str:
        """The verdict; STORED where this session has stored the baseline that the test was missing."""
        return STORED if self.stored and self.verdict in NOT_COMPARED else self.verdict

    @property
    def decided_by(self) -> str:
        """The deciding check with its number, and the cause where the number alone does not say why.

        An SLO or a claim that is INCONCLUSIVE beside a missing baseline is named too: it keeps the run from becoming a
        baseline.
        """
        if self.error:
            return self.error.partition("\n")[0]
        if self.verdict == Verdict.REPORTED.value and not self.checks:
            return "measured, nothing checked"
        if self.outcome == STORED:
            return "baseline stored; the next run is compared with it"
        text = _decision([check for check in self.checks if check.verdict.value == self.verdict])
        if self.verdict in NOT_COMPARED and self.undecided_requirements:
            return f"{text}; {Verdict.INCONCLUSIVE.value}: {_decision(self.undecided_requirements)}"
        return text

    @property
    def builds(self) -> str:
        """Which builds and hosts its comparison with a baseline crosses; "" where host and build are stored."""
        return next(filter(None, map(builds_text, self.checks)), "")

    @property
    def undecided_requirements(self) -> list[CheckResult]:
        """SLOs and claims that are INCONCLUSIVE; a comparison may be, until enough sessions are stored."""
        return [check for check in self.checks
                if check.verdict is Verdict.INCONCLUSIVE and not check.compares_with_baseline]

    @property
    def needs_sessions(self) -> bool:
        """Whether only comparisons with a baseline are open, and the suite has too few sessions to know its noise."""
        open_checks = [check for check in self.checks if check.verdict is Verdict.INCONCLUSIVE]
        return bool(open_checks) and all("deciding_sessions" in check.facts for check in open_checks)

    @property
    def ran_out_of_time(self) -> bool:
        """Whether more time would let an INCONCLUSIVE check measure more runs."""
        return any(check.facts.get("no_further_runs") == NoFurtherRuns.OUT_OF_TIME
                   or check.cause is Cause.MACHINE_DRIFTS
                   for check in self.checks if check.verdict is Verdict.INCONCLUSIVE)

    @property
    def log(self) -> str:
        """The path of the server's whole log, as the evidence names it; "" where there is none."""
        lines = self.error.splitlines()
        return next((line.removeprefix("log: ") for line in lines if line.startswith("log: ")), "")


def short_id(test: str) -> str:
    """A test's id without its file."""
    return test.partition("::")[2] or test


def _decision(checks: Sequence[CheckResult]) -> str:
    """"14.6 ms  tpot_mean <= 12ms" or "6.4× (≥ 2×)  itl_p99(b) / itl_p99(a)", with the cause where one is needed."""
    if not checks:
        return ""
    check = min(checks, key=precedence)
    if check.cause is Cause.RUNS_INVALID:
        return cause_text(check)
    label = check.subject
    if check.compares_with_baseline and check.limit is not None:
        label += f" ({limit_text(check)})"
    if check.verdict in EXPLAINED:
        label += f": {cause_text(check)}"
    number = estimate_text(check)
    if number not in ("", "-"):
        if check.unit is Unit.RATIO and check.limit is not None:  # a narrow terminal cuts the end of the line
            number, label = f"{number} ({limit_text(check)})", label.replace(check.subject, check.metric)
        return f"{number}  {label}"
    return f"{label}: {check.facts['text']}" if check.cause is Cause.STATED and check.verdict is Verdict.FAIL else label


def precedence(check: CheckResult) -> int:
    """Order of checks of one verdict in the summary: what explains the others first."""
    if check.verdict is Verdict.FAIL:
        if check.metric.startswith("error_rate") or check.cause is Cause.NO_REQUEST_SERVED:
            return 0  # failed requests make every latency worse
        if "(" in check.metric and " / " not in check.metric and check.cause is Cause.RUNS_MISS_LIMIT:
            return 1  # a mechanism that does not work explains the ratio
    if " / " in check.metric:
        return 2
    return 3 if check.compares_with_baseline else 4
