"""Causes of any check (invalid runs, unusable values), and of SLOs, accuracies and expected refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.results.check import Cause, CheckResult
from pytest_llmperf.results.sentences import bare_interval, ended, number, problem_text, quoted, why_failed

SHOWN_PROBLEMS = 2
#: A ratio above this says that the spread of server starts is unknown rather than large.
LARGEST_KNOWN_SLOWDOWN = 3
DO = {"over": "are over the limit", "missed": "miss a limit", "failed": "fail"}
MORE_STARTS = "measure on more server starts: perf.measure(spec, …, starts=N)"


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


@dataclass(frozen=True, slots=True)
class NoRequestServed(Cause):
    names_failures: ClassVar[bool] = True
    missing_runs: int
    of_runs: int
    failure_reasons: str | None = None

    def reason(self, _result: CheckResult, /) -> str:
        return f"{self.missing_runs} of {self.of_runs} runs served no request{why_failed(self.failure_reasons)}"


@dataclass(frozen=True, slots=True)
class StatisticInfinite(Cause):
    names_failures: ClassVar[bool] = True
    statistic: str
    failed_requests: int
    failure_reasons: str | None = None

    def reason(self, _result: CheckResult, /) -> str:
        failed = f"{number(self.failed_requests, 'request')} failed{why_failed(self.failure_reasons)}"
        if self.statistic == "max":
            return f"{failed}, so the largest value is infinite"
        return (f"{failed}, and a failed request counts as infinitely slow, so the {self.statistic} is infinite. Limit "
                "a percentile, goodput or slo_attainment to state how many requests may fail")


@dataclass(frozen=True, slots=True)
class NotRecovered(Cause):
    missing_runs: int
    of_runs: int

    def reason(self, _result: CheckResult, /) -> str:
        return (f"in {self.missing_runs} of {self.of_runs} runs the last requests still failed, or their median TTFT "
                "was over 15 % above that before the event. Read the log of the router, or send requests for a longer "
                "time after the events")


@dataclass(frozen=True, slots=True)
class NoInterval(Cause):
    runs: int

    def reason(self, result: CheckResult, /) -> str:
        which = "one run gives" if self.runs == 1 else f"{self.runs} runs of one seed give"
        return f"{which} no confidence interval of {result.metric}; measure another seed"


@dataclass(frozen=True, slots=True)
class BeyondLimit(Cause):
    def reason(self, result: CheckResult, /) -> str:
        return f"the {bare_interval(result)} lies beyond the limit"


@dataclass(frozen=True, slots=True)
class LimitInInterval(Cause):
    def reason(self, result: CheckResult, /) -> str:
        remedies = {"startup_s": MORE_STARTS, "max_rate": "search more often"}
        more = remedies.get(result.metric, f"measure more runs, or {MORE_STARTS.removeprefix('measure ')}")
        return f"the {bare_interval(result)} contains the limit, so the test cannot decide; {more}"


@dataclass(frozen=True, slots=True)
class RunsMissLimit(Cause):
    """Some runs miss a limit of each run. The reason prints `violations`, the values of these runs where present."""

    missing_runs: int
    of_runs: int
    violations: list[float] | None = None

    def reason(self, result: CheckResult, /) -> str:
        values = ", ".join(map((result.unit or Unit.COUNT).show, self.violations or ()))
        return f"{self.missing_runs} of {self.of_runs} runs miss the limit" + (f": {values}" if values else "")


@dataclass(frozen=True, slots=True)
class RequestsMissLimit(Cause):
    exceedances: int
    observations: int
    counted_as: str
    failure_reasons: str | None = None

    def reason(self, _result: CheckResult, /) -> str:
        failed = self.counted_as == "failed"
        return (f"{self.exceedances} of {self.observations} requests {'failed' if failed else 'missed a limit'}"
                f"{why_failed(self.failure_reasons) if failed else ''}")


@dataclass(frozen=True, slots=True)
class ShareOfRequests(Cause):
    """The share of requests that miss decides.

    Args:
        share: of the observations, that miss.
        counted_as: "over", "missed" or "failed".
        allowed_share: that may miss.
        failure_reasons: of the failed requests, with their counts.
    """

    share: float
    counted_as: str
    allowed_share: float
    failure_reasons: str | None = None

    @property
    def missing(self) -> str:
        """"1.2 % are over the limit"."""
        return f"{100 * self.share:.3g} % {DO[self.counted_as]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTooLarge(ShareOfRequests):
    confidence: float

    def reason(self, _result: CheckResult, /) -> str:
        why = why_failed(self.failure_reasons) if self.counted_as == "failed" else ""
        return (f"{self.missing}{why}, and {100 * self.allowed_share:.3g} % may: the excess is proven "
                f"at {100 * self.confidence:g} % confidence")


@dataclass(frozen=True, slots=True)
class ShareNearLimit(ShareOfRequests):
    def reason(self, _result: CheckResult, /) -> str:
        return (f"{self.missing}, which is too near the allowed {100 * self.allowed_share:.3g} % for any affordable "
                "number of requests; choose another limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationsTooFew(ShareOfRequests):
    """`needed` more observations decide."""

    needed: int

    def reason(self, _result: CheckResult, /) -> str:
        return (f"about {self.needed} more observations decide the check if {100 * self.share:.3g} % of them "
                f"{DO[self.counted_as]}, too; measure more requests or more runs")


@dataclass(frozen=True, slots=True)
class RequestsConcurrent(ShareOfRequests):
    def reason(self, _result: CheckResult, /) -> str:
        return (f"{self.missing}, and requests that are served at the same time count as one observation: measure "
                "more runs, of other seeds")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsDiffer(ShareOfRequests):
    """A further server start may be slower by the factor `slowdown`."""

    few_enough: bool
    slowdown: float

    def reason(self, _result: CheckResult, /) -> str:
        times, head = self.slowdown, f"{self.missing}{_few_enough(self.few_enough)}, but the server starts"
        if times > LARGEST_KNOWN_SLOWDOWN:
            return f"{head} are too few and differ too much to bound the slowdown of a further start; {MORE_STARTS}"
        slower = f"{100 * (times - 1):.2g} % slower" if times < 2 else f"{times:.2g} times as slow"
        return f"{head} differ so much that a further start may be {slower}; {MORE_STARTS}"


@dataclass(frozen=True, slots=True)
class RequestsDependent(Cause):
    """Neighbouring requests are more alike than independent ones.

    Args:
        share, counted_as, allowed_share: as in `ShareOfRequests`; None for a mean.
        few_enough: whether so few requests miss that independent requests would pass.
    """

    share: float | None = None
    counted_as: str | None = None
    allowed_share: float | None = None
    few_enough: bool | None = None

    def reason(self, _result: CheckResult, /) -> str:
        share = ""
        if self.share is not None and self.counted_as is not None:
            share = f"{100 * self.share:.3g} % {DO[self.counted_as]}{_few_enough(self.few_enough)}, but "
        return (f"{share}neighbouring requests are more alike than independent ones, and runs of one seed cannot "
                "separate slow changes of the server from the course of the workload: measure runs of other seeds")


def _few_enough(enough: bool | None) -> str:
    return ", few enough for a PASS" if enough else ""


@dataclass(frozen=True, slots=True)
class RateRefuted(Cause):
    def reason(self, _result: CheckResult, /) -> str:
        return "a rate on the wrong side of the limit was tried, and its verdict is proven"


@dataclass(frozen=True, slots=True)
class RateUndecided(Cause):
    def reason(self, _result: CheckResult, /) -> str:
        return ("no tried rate proves on which side of the limit the highest rate lies; try the limit itself "
                "(perf.max_rate(…, try_rates=[…])), or search with more requests")


@dataclass(frozen=True, slots=True)
class AccuracyLost(Cause):
    """Side A answers fewer questions right; `claimed` is the ratio of the claim, if it was judged."""

    claimed: str | None = None
    claimed_ratio: float | None = None
    claim_holds: bool | None = None

    def reason(self, result: CheckResult, /) -> str:
        before, after = Unit.SHARE.number(result.before or 0.0), Unit.SHARE.show(result.after or 0.0)
        tolerated = -(result.limit or 0.0)
        lost = (f"A answers fewer questions right than B ({before} → {after}), and the {bare_interval(result)} "
                f"excludes the tolerated loss of {100 * tolerated:g} point{'' if tolerated == 0.01 else 's'}")
        if self.claimed is None or self.claimed_ratio is None:
            return lost
        held = "meets the claim" if self.claim_holds else "does not meet the claim either"
        return f"{lost}; {self.claimed} is {Unit.RATIO.show(self.claimed_ratio)}, which {held}"


@dataclass(frozen=True, slots=True)
class AnswersDiffer(Cause):
    """The deployment answers otherwise than one server; prompt and token are counted from 1.

    `margin` is the median log-probability of the one server's choice above its second choice, at the first tokens that
    differ; None if the server sends no log-probabilities.
    """

    prompt: int
    token: int
    margin: float | None = None

    def reason(self, result: CheckResult, /) -> str:
        before, after = Unit.SHARE.number(result.before or 0.0), Unit.SHARE.show(result.after or 0.0)
        return (f"the deployment repeats fewer answers of one server than this server itself ({before} → {after}), "
                f"and the {bare_interval(result)} proves a loss of more than {100 * -(result.limit or 0.0):g} pp. "
                f"The first difference is in prompt {self.prompt}, token {self.token}.{self._preferred} "
                "Compare weights and KV transfers of the replicas")

    @property
    def _preferred(self) -> str:
        if self.margin is None:
            return ""
        return (" At the first differing token, the log-probability of the one server's token is "
                f"{self.margin:.2g} above that of its second choice (median).")


@dataclass(frozen=True, slots=True)
class AnswersAlike(Cause):
    different: int
    prompts: int

    def reason(self, _result: CheckResult, /) -> str:
        return (f"the one server has only {self.different} different answers to {self.prompts} prompts, so swapped "
                "answers would look right. Use trained weights")


@dataclass(frozen=True, slots=True)
class QuestionsTooFew(Cause):
    """`needed` questions decide, where that is known."""

    needed: int | None = None

    def reason(self, result: CheckResult, /) -> str:
        more = "ask more questions, or choose another limit"
        if self.needed is not None:
            more = f"about {self.needed} questions decide at these shares"
        return f"the {bare_interval(result)} contains the limit, so the test cannot decide; {more}"


@dataclass(frozen=True, slots=True)
class EngineStarted(Cause):
    refused_for: str

    def reason(self, _result: CheckResult, /) -> str:
        return (f"the engine started, and the test expects that it refuses {self.refused_for}. Find out what raised "
                "the engine's limit, or choose a value beyond the new limit")


@dataclass(frozen=True, slots=True)
class RefusedOtherwise(Cause):
    refused_for: str
    ending: str
    ended_after_s: float
    log_lines: list[str]
    log: str | None = None

    def reason(self, _result: CheckResult, /) -> str:
        says = f"Its log says: {quoted(self.log_lines)}" if self.log_lines else "Its log is empty"
        where = "" if self.log is None else f". Read {self.log}"
        return (f"the engine ended before it was ready ({ended(self.ending, self.ended_after_s)}), and none of its "
                f"error messages names {self.refused_for}. {says}{where}")
