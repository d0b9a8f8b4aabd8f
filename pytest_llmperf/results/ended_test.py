"""How a test ended, by one execution and in every report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import copysign, inf
from pathlib import Path

from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.baseline import YOUNG_BELOW
from pytest_llmperf.results.causes.comparisons import MachineDrifts, PairsTooFew, SpreadTooLarge, StartsTooFew
from pytest_llmperf.results.causes.limits import (
    LimitInInterval,
    NoInterval,
    NoRequestServed,
    ObservationsTooFew,
    RequestsConcurrent,
    RequestsDependent,
    RunsMissLimit,
    StartsDiffer,
)
from pytest_llmperf.results.check import CheckResult, NoFurtherRuns, Stated
from pytest_llmperf.results.sentences import builds_text, cause_text, estimate_text, limit_text, reason_text
from pytest_llmperf.slo.model import Comparison

#: The end of a test that asks for what does not exist, beside the verdicts.
USAGE = "USAGE"
NOT_COMPARED = (Verdict.NO_BASELINE.value, Verdict.INCOMPARABLE.value)
#: Outcomes beside the verdicts: the session stored the missing baseline; an exception of the test, of a fixture or of
#: the file ended the test; the test was skipped before it measured.
STORED, FAILED, SKIPPED = "STORED", "FAILED", "SKIPPED"
#: Outcomes of tests that are red and do not gate: a person has acknowledged the regression, or the test is quarantined.
ACKNOWLEDGED, QUARANTINED = "ACKNOWLEDGED", "QUARANTINED"
#: Every outcome, by how much it matters.
OUTCOMES = (
    SKIPPED, "REPORTED", "PASS", "IMPROVED", STORED, ACKNOWLEDGED, QUARANTINED, "INCONCLUSIVE", "NO_BASELINE",
    "INCOMPARABLE", USAGE, FAILED, "FAIL", "ERROR",
)  # fmt: skip
GOOD = OUTCOMES[:5]
#: Outcomes that make no status check red.
WITHOUT_GATE = OUTCOMES[:8]
#: Outcomes of tests that no check decided.
UNDECIDED = (USAGE, FAILED, "ERROR", SKIPPED)
#: Verdicts whose number alone does not say why.
EXPLAINED = (Verdict.INCONCLUSIVE, Verdict.INCOMPARABLE, Verdict.ERROR)
#: Causes that more runs on the same servers, or more server starts, remove.
OF_RUNS = (MachineDrifts, NoInterval, LimitInInterval, ObservationsTooFew, RequestsConcurrent, RequestsDependent)
OF_STARTS = (PairsTooFew, StartsTooFew, StartsDiffer)


@dataclass(frozen=True, slots=True)
class ExecutionEnding:
    """How one execution of a test ended. It travels with pytest's reports, also from xdist's workers.

    Args:
        word: a verdict, `USAGE`, "failed" for an exception of the test's own, "skipped", "xfailed" or "pytest.exit";
            None before the end.
        error: why no check decided, with the evidence; None if checks decided.
        complete: whether the test reached its end.
        unchecked: for a test that measured and checked nothing, while a fixture may still check: the exception
            that ended the test, or "" without an exception. None for any other test.
        checks: the results of the checks, as JSON.
        conditions: conditions of each measurement, as JSON.
        earlier: words of the earlier executions in this session.
        run_file: path of the run file; "" without a run file.
        test: the test's id; "" for a test without llmperf.
        owner, excuse: as in `EndedTest`.
        undecided: for a failed phase that no check decided: one of `UNDECIDED`, and the reason.
    """

    word: str | None = None
    error: str | None = None
    complete: bool = False
    unchecked: str | None = None
    checks: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    run_file: str = ""
    test: str = ""
    owner: str = ""
    excuse: str = ""
    undecided: tuple[str, str] | None = None

    @property
    def path(self) -> Path | None:
        """The run file; None without a run file."""
        return Path(self.run_file) if self.run_file else None

    @property
    def verdict(self) -> str | None:
        """The word if it is a verdict or `USAGE`; None for any other end."""
        return self.word if self.word == USAGE or self.word in Verdict.__members__ else None


def headroom(check: CheckResult) -> float | None:
    """How far the measured value is on the good side of the limit, as a share of the limit; None without a distance."""
    measured = check.facts.get("proven_rate", check.estimate)
    return None if measured is None else room(check, measured)


def room(check: CheckResult, value: float) -> float | None:
    """The same of any value."""
    limit = deciding_limit(check)
    if not limit or check.comparison in (None, Comparison.EQUAL):
        return None
    distance = limit - value if check.comparison is Comparison.AT_MOST else value - limit
    return distance / abs(limit)


def deciding_limit(check: CheckResult) -> float | None:
    """The limit that the verdict rests on: a comparison fails beyond its negligible margin, however much is tolerated.
    """
    if check.verdict is Verdict.FAIL and check.limit is not None and "negligible" in check.facts:
        return copysign(check.facts["negligible"], check.limit)
    return check.limit


class Remedy(Enum):
    """What can decide an open test, the least GPU time first."""

    MARGIN = "wider margins (margins=)"
    RUNS = "more runs (--llmperf-extension-limit, runs=)"
    SESSIONS = "more stored sessions (--update-baselines)"
    STARTS = "more server starts (starts=)"


def _remedy(check: CheckResult) -> Remedy | None:
    few_sessions = check.compares_with_baseline and (
        "deciding_sessions" in check.facts or check.facts.get("stored_sessions", YOUNG_BELOW) < YOUNG_BELOW
    )
    if few_sessions:
        return Remedy.SESSIONS
    if check.facts.get("no_further_runs") == NoFurtherRuns.OUT_OF_TIME or isinstance(check.cause, OF_RUNS):
        return Remedy.STARTS if check.metric == "startup_s" else Remedy.RUNS
    if isinstance(check.cause, SpreadTooLarge):
        return Remedy.MARGIN
    return Remedy.STARTS if isinstance(check.cause, OF_STARTS) else None


@dataclass(frozen=True, slots=True)
class EndedTest:
    """How one test ended.

    Args:
        test: its id.
        verdict: the worst verdict of its checks, or one of `UNDECIDED`.
        checks: in the order in which the test made them.
        error: why it is one of `UNDECIDED`, with the evidence; "" where a check decided.
        run: the run folder, from where the user is; "" where nothing was measured.
        stored: the folder of baselines, from there, if this session has written this test's baseline; "" if not.
        measured: whether the test measured something.
        emulated: how far its emulated measurements are from measured ones, see `emulated_ground.notes`.
        owner: who looks after the test; "" where nobody is named.
        excuse: why it does not gate although it is red: "QUARANTINED until 2026-12-31: …"; a note about an excuse that
            has expired; "" without an excuse.
    """

    test: str
    verdict: str
    checks: tuple[CheckResult, ...] = ()
    error: str = ""
    run: str = ""
    stored: str = ""
    measured: bool = True
    emulated: tuple[str, ...] = ()
    owner: str = ""
    excuse: str = ""

    @property
    def outcome(self) -> str:
        """The verdict; STORED where this session has stored the baseline that the test was missing, ACKNOWLEDGED or
        QUARANTINED where an excuse holds.
        """
        return excused(self.excuse) or self.recorded

    @property
    def recorded(self) -> str:
        """The outcome without regard to an excuse."""
        return STORED if self.stored and self.verdict in NOT_COMPARED else self.verdict

    @property
    def notes(self) -> list[str]:
        """The excuse, and of a test that is not good the owner."""
        owner = f"owner: {self.owner}" if self.owner and self.outcome not in GOOD else ""
        return [note for note in (self.excuse.removeprefix(f"{self.outcome} "), owner) if note]

    @property
    def severity(self) -> int:
        """Sorts by how much an outcome matters."""
        return severity(self.outcome)

    @property
    def deciding(self) -> CheckResult | None:
        """The check that decided: of a bad verdict the check that explains the others, of a good verdict the claim, or
        else the check with the least headroom. None if no check decided."""
        checks = [check for check in self.checks if check.verdict.value == self.verdict]
        if self.error or self.outcome == STORED or not checks:
            return None
        return min(checks, key=_says_least if self.verdict in GOOD else precedence)

    @property
    def decided_by(self) -> str:
        """The deciding check with its number, the cause where the number alone does not say why, excuse and owner.

        An SLO or a claim that is INCONCLUSIVE beside a missing baseline is named too: it keeps the run from becoming a
        baseline.
        """
        return "; ".join(filter(None, (self._decision, *self.notes)))

    @property
    def _decision(self) -> str:
        if self.error:
            return self.error.partition("\n")[0]
        if self.verdict == Verdict.REPORTED.value and not self.checks:
            return "measured, nothing checked" if self.measured else "measured nothing, checked nothing"
        if self.outcome == STORED:
            return "baseline stored; the next run is compared with it"
        text = "" if self.deciding is None else _decision(self.deciding)
        if self.verdict in NOT_COMPARED and self.undecided_requirements:
            undecided = _decision(min(self.undecided_requirements, key=precedence))
            return f"{text}; {Verdict.INCONCLUSIVE.value}: {undecided}"
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
    def remedy(self) -> Remedy | None:
        """The step that can decide all open checks of the test; None: no single step can."""
        remedies = {_remedy(check) for check in self.checks if check.verdict is Verdict.INCONCLUSIVE}
        return remedies.pop() if len(remedies) == 1 else None

    @property
    def ran_out_of_time(self) -> bool:
        """Whether more time would let an INCONCLUSIVE check measure more runs."""
        return any(check.facts.get("no_further_runs") == NoFurtherRuns.OUT_OF_TIME
                   or isinstance(check.cause, MachineDrifts)
                   for check in self.checks if check.verdict is Verdict.INCONCLUSIVE)

    @property
    def log(self) -> str:
        """The path of the server's whole log, as the evidence names it; "" where there is none."""
        lines = self.error.splitlines()
        return next((line.removeprefix("log: ") for line in lines if line.startswith("log: ")), "")


def short_id(test: str) -> str:
    """A test's id without its file."""
    return test.partition("::")[2] or test


def excused(excuse: str) -> str:
    """ACKNOWLEDGED or QUARANTINED; "" without an excuse that holds."""
    word = excuse.partition(" ")[0]
    return word if word in (ACKNOWLEDGED, QUARANTINED) else ""


def severity(outcome: str) -> int:
    """Sorts outcomes by how much they matter."""
    return OUTCOMES.index(outcome)


def counts(ended: Iterable[EndedTest]) -> str:
    """"1 FAIL, 7 PASS"."""
    by_outcome = Counter(test.outcome for test in sorted(ended, key=lambda test: -test.severity))
    return ", ".join(f"{count} {outcome}" for outcome, count in by_outcome.items())


def subject_text(check: CheckResult) -> str:
    """The name of a check in a row: the metric, or the subject of a check without a metric. A guard is called a guard.
    """
    return f"{'guard ' if is_guard(check) else ''}{check.metric or check.subject}"


def is_guard(check: CheckResult) -> bool:
    """Whether the check guards a metric that the claim neither names nor prices."""
    return "guard" in check.facts


def _decision(check: CheckResult) -> str:
    """"14.6 ms  tpot_mean <= 12ms" or "6.4× (≥ 2×)  itl_p99(b) / itl_p99(a)", with the cause where one is needed."""
    if check.problems:
        return cause_text(check)
    label = check.subject
    if check.compares_with_baseline and check.limit is not None:
        label += f" ({limit_text(check)})"
    if check.verdict in EXPLAINED:
        label += f": {cause_text(check)}"
    number = estimate_text(check)
    if number in ("", "-"):
        stated = isinstance(check.cause, Stated) and check.verdict is Verdict.FAIL
        return f"{label}: {reason_text(check)}" if stated else label
    if check.unit is Unit.RATIO and check.limit is not None:  # a narrow terminal cuts the end of the line
        number, label = f"{number} ({limit_text(check)})", label.replace(check.subject, subject_text(check))
    accepted = f'; accepted by allow={{"{check.facts["guard"]}": …}}' if is_guard(check) else ""
    return f"{number}  {label}{accepted if check.verdict.value not in GOOD else ''}"


def precedence(check: CheckResult) -> int:
    """Order of checks of one bad verdict: the check that explains the others first."""
    if check.verdict is Verdict.FAIL:
        if check.metric.startswith("error_rate") or isinstance(check.cause, NoRequestServed):
            return 0  # failed requests make every latency worse
        if "(" in check.metric and " / " not in check.metric and isinstance(check.cause, RunsMissLimit):
            return 1  # a mechanism that does not work explains the ratio
    if " / " in check.metric:
        return 3 if _beside_claim(check) else 2
    return 4 if check.compares_with_baseline else 5


def _says_least(check: CheckResult) -> tuple[int, float]:
    """Order of checks of a good verdict: claims, then SLOs and comparisons, then mechanisms, then prices and guards;
    least headroom first."""
    room = headroom(check)
    kind = 0 if " / " in check.metric else 2 if re.search(r"\([a-z]\)$", check.metric) else 1
    return 3 if _beside_claim(check) else kind, inf if room is None else room


def _beside_claim(check: CheckResult) -> bool:
    """Whether the check is about a price or a guard of a claim."""
    return is_guard(check) or "allowed" in check.facts
