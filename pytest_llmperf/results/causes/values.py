"""Causes of any check: the runs are invalid, or a value is missing, unverified, infinite or not emulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pytest_llmperf.results.check import Cause, CheckResult
from pytest_llmperf.results.sentences import number, problem_text, why_failed

SHOWN_PROBLEMS = 2


@dataclass(frozen=True, slots=True)
class RunsInvalid(Cause):
    """`CheckResult.problems` has the faults."""

    def reason(self, result: CheckResult, /) -> str:
        shown = " ".join(map(problem_text, result.problems[:SHOWN_PROBLEMS]))
        left = len(result.problems) - SHOWN_PROBLEMS
        more = f" And {number(left, 'more problem')} like these." if left > 0 else ""
        return f"the runs are invalid: {shown}{more}"


@dataclass(frozen=True, slots=True)
class MissingValues(Cause):
    """A metric whose value is of no use in some of the runs.

    Args:
        metric: its name.
        missing_runs, of_runs: how many runs, of how many.
        side: of a claim or comparison; None for a single measurement.
    """

    metric: str
    missing_runs: int
    of_runs: int
    side: str | None = None

    @property
    def of_side(self) -> str:
        """" of a"; "" for a single measurement."""
        return f" of {self.side}" if self.side else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricUnavailable(MissingValues):
    """Some runs do not have the metric, which needs what `needs` says."""

    names_nothing_counted: ClassVar[bool] = True
    needs: str

    def reason(self, result: CheckResult, /) -> str:
        runs = self.of_runs
        where = "in every run" if self.missing_runs == runs else f"in {self.missing_runs} of {runs} runs"
        if (nothing := result.facts.get("nothing_counted")) is not None:
            return (f"{self.metric} is unavailable {where}{self.of_side}: {nothing}. Look for the reason in the flags "
                    "and in the server's log, or drop this check")
        return (f"{self.metric} is unavailable {where}{self.of_side}: the metric needs {self.needs}. Make that "
                "available, or drop this check")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensUnverified(MissingValues):
    """The metric rests on token counts that only the usage states, or that a tokenizer contradicts.

    Args:
        tokenizer: that counted the received texts.
        text_tokens, usage_tokens: of the same answers, by that tokenizer and by the usage.
    """

    tokenizer: str | None = None
    text_tokens: int | None = None
    usage_tokens: int | None = None

    def reason(self, _result: CheckResult | None = None, /) -> str:
        if self.usage_tokens is not None:
            return (f"unverified token count: {self.metric} rests on token counts, and tokenizer {self.tokenizer} "
                    f"counts {self.text_tokens:,} tokens of text where the usage says {self.usage_tokens:,}"
                    f"{self.of_side}. Name the tokenizer of this model. If the service hides its reasoning, switch the "
                    "reasoning off (fields=)")
        return (f"unverified token count: {self.metric} rests on token counts, and in {self.missing_runs} of "
                f"{self.of_runs} runs{self.of_side} the usage alone states them. Make the server count tokens per "
                "chunk (continuous_usage_stats) or list token ids, let its /metrics be read, or name the tokenizer of "
                "an endpoint (tokenizer=)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesInfinite(MissingValues):
    names_failures: ClassVar[bool] = True
    failed_requests: int
    failure_reasons: str | None = None

    def reason(self, _result: CheckResult, /) -> str:
        return (f"{self.metric} is infinite in {self.missing_runs} of {self.of_runs} runs{self.of_side}: "
                f"{number(self.failed_requests, 'request')} failed{why_failed(self.failure_reasons)}, and a failed "
                "request counts as infinitely slow. Compare a percentile below the share of failures (a median, where "
                "less than half fail), or find out why requests fail")


@dataclass(frozen=True, slots=True)
class ValueZero(Cause):
    metric: str

    def reason(self, _result: CheckResult, /) -> str:
        return f"{self.metric} is 0 in a run, so there is no ratio"


@dataclass(frozen=True, slots=True)
class AccuracyNotEmulated(Cause):
    def reason(self, _result: CheckResult, /) -> str:
        return "not measured: an emulator invents its answers. Run the test on the engine itself"


@dataclass(frozen=True, slots=True)
class EnergyNotEmulated(Cause):
    def reason(self, _result: CheckResult, /) -> str:
        return "not seen: an emulated GPU draws no power and runs no kernel. Run the test on the GPU itself"
