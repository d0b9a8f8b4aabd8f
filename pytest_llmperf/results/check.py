"""What a check concluded, as numbers, and why.

A cause is a frozen class with a field for each fact and one sentence. `results.causes` has the causes by domain. Stored
files name a cause by its class name in snake case.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum, auto
from typing import ClassVar, TypedDict, cast

from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.slo.model import Comparison
from pytest_llmperf.stats.interval import Interval

#: Stored name → class; `results.causes` fills it.
BY_NAME: dict[str, type[Stored]] = {}


@dataclass(frozen=True, slots=True)
class Stored:
    """What a file stores as a name and facts; a fact that is None is absent."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        BY_NAME[cls.name] = cls

    @property
    def facts(self) -> dict[str, object]:
        """The fields that have a value."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class Fault(Stored, ABC):
    """Why a run is invalid."""

    __slots__ = ()

    @abstractmethod
    def reason(self) -> str:
        """Why, and what to do."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault, with the side of a claim, the run and the seed where it was found; None: the whole measurement."""

    fault: Fault
    side: str | None = None
    run: int | None = None
    seed: int | None = None


class NoFurtherRuns(StrEnum):
    """Why an undecided comparison or claim measures no more runs; the fact `no_further_runs`."""

    OUT_OF_TIME = auto()
    CACHE_NOT_RESET = auto()
    TOKENS_UNVERIFIED = auto()
    VALUES_INFINITE = auto()


class Facts(TypedDict, total=False):
    """Numbers and names that a verdict rests on, whatever its cause; shares are 0…1, and a missing fact is absent."""

    # What a result rests on
    runs: int
    seeds: int
    starts: int
    exact: bool  # the limit holds for each run exactly, without statistics
    observations: int
    exceedances: int  # observations over the limit
    counted_as: str  # "over", "missed" or "failed"
    effective_n: float  # independent observations that carry the same information
    level_exceedances: int  # exceedances of the limit lowered by `level_margin`
    level_margin: float  # share by which the level model lowers the limit
    failed_requests: int
    failure_reasons: str  # reasons of failed requests with their counts, the most frequent first
    energy_gap: float  # relative difference of energy counter and sampled power, where it is large
    price: str  # of a GPU hour, with currency and date
    longest_unseen_s: float  # slow spells with a longer mean distance are not excluded
    unseen_starts: float  # share of slow server starts that is not excluded
    unseen_requests: float  # share of requests, slower than all that were seen, that is not excluded
    hardware_bound_unknown: bool
    nothing_counted: str  # why a ratio of the server's counters is 0 or missing, and in how many runs
    unseen_gpu: str  # declared hardware kind of an endpoint
    looks: int  # looks that share the error of the verdict; absent for a single look
    proven_rate: float  # requests/s
    refuted_rate: float  # requests/s
    pairs: int
    starts_a: int
    starts_b: int
    replicas_seen: bool  # the starts are replicas of running services
    start_sd: float  # of the metric's logarithm, from one server start to the next
    start_sd_source: str
    gpu_difference: float  # change: between the GPUs that two builds exchanged; removed from the effect
    no_loss_proven: bool
    questions: int  # of a task
    correct: int  # questions with a right answer
    only_a: int  # questions that A alone answers right
    only_b: int
    stored_runs: int
    stored_sessions: int
    session_sd: float
    session_sd_source: str
    run_sd: float
    reference: str  # the build that a candidate was compared with: "vllm 0.26.0"
    smallest_detectable: float  # change that fails with 90 % probability
    further_runs: int  # runs per side that would lower the smallest detectable change
    detectable_then: float  # change: the smallest detectable change with these further runs
    negligible: float  # change
    deciding_runs: int  # runs before which not every regression can fail
    deciding_sessions: int  # stored sessions of each test of the suite below which only gross regressions can fail
    # Of a refusal
    refused_for: str  # the named flag or phrase
    ending: str  # how the engine ended: "exit code 1"
    ended_after_s: float  # from launch
    log_lines: list[str]  # error messages of the engine, or the last lines of its log
    prediction: str  # why the engine should refuse by our own arithmetic
    # Builds and hosts of a baseline comparison
    engine: str
    compared_sessions: int
    build_changes: dict[str, list[str | None]]  # field of the build → other stored values, then today's value
    changed_sessions: int  # stored sessions of another build
    stored_hosts: int  # with the next two: the result is provisional
    host_stored: bool  # whether today's host is among them
    stored_versions: list[str]  # of the engine
    # Why
    texts: dict[str, str]  # sentences of a file that has no numbers
    tokenizer: str  # that counted the received texts
    no_further_runs: str  # a value of `NoFurtherRuns`
    guard: str  # of a claim: the guard metric that the check judges
    allowed: str  # of a claim: the metric that the check judges, whose loss the claim accepts
    unmeasured_side: str
    p: float


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
            `Unit.CHANGE` and `Unit.POINTS` for a change against a baseline; None if there is no number.
        comparison: how the estimate must stand to the limit; None without a limit.
        limit: the limit or the tolerated change; None without one.
        estimate: the measured value; None if the value is infinite or cannot be computed.
        interval: confidence interval of the estimate; None if there is none.
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
        """How many independent observations the verdict rests on: requests, pairs or runs; None if unknown."""
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
