"""What a check concluded, as numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.cause import Facts, Problem, Stored
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval


class Cause(Stored, ABC):
    """Why a verdict is not a plain PASS."""

    __slots__ = ()
    names_failures: ClassVar[bool] = False  # the sentence gives the reasons of failed requests
    names_nothing_counted: ClassVar[bool] = False  # the sentence says what did not happen
    explained_by_build: ClassVar[bool] = False  # another build may be the reason

    @abstractmethod
    def reason(self, result: CheckResult, /) -> str:
        """Why, and what to do."""


@dataclass(frozen=True, slots=True)
class Stated(Cause):
    """A test's own result gives its reason."""

    text: str

    def reason(self, _result: CheckResult, /) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A verdict with the numbers that it rests on; `results.sentences` words them.

    Args:
        subject: the check as the test author wrote it.
        verdict: the class of the conclusion.
        metric: what the numbers measure, such as "ttft_p99" or "ttft_p50(b) / ttft_p50(a)"; "" where the check has no
            metric.
        unit: unit of estimate, interval and limit: the metric's own unit, `Unit.RATIO` for a ratio of two sides, or
            `Unit.CHANGE` and `Unit.POINTS` for a change against a baseline; None where there is no number.
        comparison: how the estimate must stand to the limit; None without a limit.
        limit: the limit or the tolerated change; None without one.
        estimate: the measured value; None if the value is infinite or cannot be computed.
        interval: confidence interval of the estimate; None where there is none.
        cause: why the verdict is not a plain PASS, with its facts; None for PASS and REPORTED.
        facts: how much data the verdict rests on, whatever the cause.
        problems: why runs are invalid, where that is the cause.
        before, after: the metric of the baseline or reference build, and of today's runs, in the unit of the metric;
            `estimate` is the change from one to the other. None without a comparison.
    """

    subject: str
    verdict: Verdict
    metric: str = ""
    unit: Unit | None = None
    comparison: Comparison | None = None
    limit: float | None = None
    estimate: float | None = None
    interval: Interval | None = None
    cause: Cause | None = None
    facts: Facts = field(default_factory=Facts)
    problems: tuple[Problem, ...] = ()
    before: float | None = None
    after: float | None = None

    @classmethod
    def stated(cls, subject: str, verdict: Verdict, reason: str, *, metric: str = "") -> CheckResult:
        """The result of a check of a test's own; hand it to `perf.record`.

        Args:
            subject: the check as the test author words it.
            verdict: its verdict.
            reason: the sentence that the report shows.
            metric: what the check judges; "" without a metric.
        """
        return cls(subject, verdict, metric, cause=Stated(reason))

    @property
    def numbers(self) -> Facts:
        """The facts together with those of the cause, as files store them."""
        return cast(Facts, {**self.facts, **(self.cause.facts if self.cause else {})})

    @property
    def effective_n(self) -> float | None:
        """How many independent observations the verdict rests on: requests, pairs or runs; None where unknown."""
        facts = self.numbers
        return facts.get("effective_n", facts.get("pairs", facts.get("runs")))

    @property
    def compares_with_baseline(self) -> bool:
        """Whether the check compares with a stored baseline."""
        return self.subject.partition(" ")[0] == BASELINE_COMPARISON


#: How the subject of a comparison with a stored baseline begins.
BASELINE_COMPARISON = "baseline"
#: How the subject of a comparison with a reference build begins.
REFERENCE_COMPARISON = "reference"


def worst(results: Sequence[CheckResult]) -> Verdict:
    """The most severe verdict; PASS for an empty list, and if every result is REPORTED."""
    return max((Verdict.PASS, *(result.verdict for result in results)), key=lambda verdict: verdict.severity)


def verdict_of_test(results: Sequence[CheckResult]) -> Verdict:
    """The worst verdict of a test's checks; REPORTED where no check decided anything."""
    return worst(results) if any(result.verdict is not Verdict.REPORTED for result in results) else Verdict.REPORTED
