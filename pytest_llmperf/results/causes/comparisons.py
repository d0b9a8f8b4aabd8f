"""Causes of ratios of two sides (claims, guards and prices) and of comparisons with a baseline or reference build."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pytest_llmperf.results.baseline import YOUNG_BELOW
from pytest_llmperf.results.causes.runs import NOT_THE_ENGINE
from pytest_llmperf.results.check import Cause, CheckResult, NoFurtherRuns
from pytest_llmperf.results.sentences import (
    bare_interval,
    before_and_after,
    change,
    estimate_text,
    limit_text,
    number,
    until,
)
from pytest_llmperf.stats.decision import LOOKS

#: Why an undecided comparison measured no more runs, and the remedy.
STOPS: Mapping[NoFurtherRuns, str] = {
    NoFurtherRuns.OUT_OF_TIME: "--llmperf-extension-limit (or extension_limit_s) ended the comparison: allow more time",
    NoFurtherRuns.CACHE_NOT_RESET: (
        "no seed is sent again, because the cache is not emptied between runs: measure and store "
        f"perf.measure(…, runs={LOOKS[-1]})"
    ),
    NoFurtherRuns.TOKENS_UNVERIFIED: "no further run confirms a token count: make the server count tokens per chunk",
    NoFurtherRuns.VALUES_INFINITE: "no further run brings the answers of failed requests: find out why requests fail",
}


@dataclass(frozen=True, slots=True)
class RatioMissesLimit(Cause):
    def reason(self, result: CheckResult, /) -> str:
        return f"the ratio is {estimate_text(result)}, proven to miss {limit_text(result)}"


@dataclass(frozen=True, slots=True)
class RatioNearLimit(Cause):
    def reason(self, _result: CheckResult, /) -> str:
        return "the ratio is too near the limit for an affordable number of server starts; claim less"


@dataclass(frozen=True, slots=True)
class PairsTooFew(Cause):
    pairs: int

    def reason(self, _result: CheckResult, /) -> str:
        return (f"{number(self.pairs, 'pair')} {'is' if self.pairs == 1 else 'are'} too few to decide at this ratio; "
                "measure more runs, or claim less")


@dataclass(frozen=True, slots=True)
class MachineDrifts(Cause):
    """The drift of the machine may explain `drift_share` of the ratio."""

    drift_share: float

    def reason(self, _result: CheckResult, /) -> str:
        return (f"the pairs show that the machine drifts from run to run, which may explain {self.drift_share:.0%} of "
                "this ratio; allow more pairs, whose order is reversed (--llmperf-extension-limit), or find what "
                "changes during the measurement")


@dataclass(frozen=True, slots=True)
class StartsTooFew(Cause):
    """`needed_starts` server starts of each side decide; a claim makes at most `most_starts`."""

    needed_starts: int
    most_starts: int | None = None

    def reason(self, _result: CheckResult, /) -> str:
        most = "" if self.most_starts is None else f", and a claim makes at most {self.most_starts}"
        return (f"about {self.needed_starts} server starts per side decide the claim at this ratio{most}: measure each "
                f"side with perf.measure(…, starts={self.needed_starts}) and compare both with perf.compare, or claim "
                "less")


@dataclass(frozen=True, slots=True)
class EndpointStartsUnknown(Cause):
    """An endpoint is never started again; a start-to-start sd of `needed_start_sd` or less decides.

    Args:
        needed_replicas: replicas of each service that decide; None if the sd is not of replicas.
        shows_replicas: whether replicas, of which too few are seen, would show the sd of this metric.
    """

    metric: str
    needed_start_sd: float | None = None
    needed_replicas: int | None = None
    shows_replicas: bool = False

    def reason(self, result: CheckResult, /) -> str:
        state = f"if you know how much server starts differ, state it: start_sd={{{self.metric!r}: …}}"
        if self.needed_start_sd is not None:
            state += f" ({100 * self.needed_start_sd:g} % or less decides the claim at this ratio)"
        if self.needed_replicas is not None:
            return (f"about {self.needed_replicas} replicas of each service decide the claim at this ratio, because "
                    f"replicas differ; store sessions as a baseline, claim less, or {state}")
        if self.shows_replicas:
            return (f"a start-to-start sd of {100 * result.facts['start_sd']:.2g} % is assumed, because too few "
                    "replicas are seen; name the metrics page of each replica (metrics=[…]) or the response header "
                    "that names the replica (replica_header=…), store three sessions as a baseline, claim less, "
                    f"or {state}")
        return f"an endpoint is never started again, so more runs add little; claim less, or {state}"


@dataclass(frozen=True, slots=True)
class NoPrimaryMetric(Cause):
    runs: int

    def reason(self, _result: CheckResult, /) -> str:
        return (f"none of the usual metrics has a value in each of {self.runs} runs. Did requests fail? Name "
                "the metrics to compare: primaries=[…].")


@dataclass(frozen=True, slots=True)
class NothingStored(Cause):
    kind: str

    def reason(self, _result: CheckResult, /) -> str:
        return f"no baseline is stored for this test on {self.kind}. Create one with --update-baselines-new."


@dataclass(frozen=True, slots=True)
class ConditionsDiffer(Cause):
    """The stored runs were made under other conditions.

    Args:
        differing: condition → stored value, value of today.
        missing_metrics: that are not stored under these conditions.
        suggestions: unknown name in compare_across → the field that it resembles.
        same_build_suggestions: unknown name in same_build → the changed field that it resembles.
        same_build: fields of the build that differ and that the setting same_build names.
    """

    differing: dict[str, list[str | None]]
    missing_metrics: list[str]
    suggestions: dict[str, str]
    same_build_suggestions: dict[str, str] = field(default_factory=dict)
    same_build: list[str] = field(default_factory=list)

    def reason(self, _result: CheckResult, /) -> str:
        names = " and ".join(map(json.dumps, self.same_build))
        differ = f"take {names} out of same_build, " if names else ""
        return (f"{'; '.join(self._differences())}. Measure under the stored conditions, "
                f'{differ}or start the baseline anew with --update-baselines --llmperf-accept "REASON".')

    def _differences(self) -> Iterator[str]:
        for name, (stored, now) in self.differing.items():
            yield f"{name}: {stored or 'absent'} stored, {now or 'absent'} now"
        for metric in self.missing_metrics:
            yield f"{metric} is not stored under these conditions"
        for name, resembled in self.suggestions.items():
            yield f"compare_across names {name}; did you mean {resembled}?"
        for name, resembled in self.same_build_suggestions.items():
            yield f"same_build names {name}; did you mean {resembled}?"


@dataclass(frozen=True, slots=True)
class ValueNotComparable(Cause):
    text: str

    def reason(self, result: CheckResult, /) -> str:
        return f"{result.metric} cannot be compared: {self.text}."


@dataclass(frozen=True, slots=True)
class RunsDrift(Cause):
    """The new runs drift relative to the stored runs of their seeds; `p` is the p value."""

    p: float

    def reason(self, result: CheckResult, /) -> str:
        return (f"not steady: compared with the stored runs of the same seeds, {result.metric} drifts from run to run "
                f"(p = {self.p:.1g}). {NOT_THE_ENGINE}")


@dataclass(frozen=True, slots=True)
class Worse(Cause):
    explained_by_build: ClassVar[bool] = True
    negligible: float

    def reason(self, result: CheckResult, /) -> str:
        return (f"{_changed_from(result)}; the regression is proven to exceed the negligible "
                f"{change(result, self.negligible)}")


@dataclass(frozen=True, slots=True)
class WorseThanReference(Worse):
    """The same of the reference build."""


@dataclass(frozen=True, slots=True)
class Better(Cause):
    def reason(self, result: CheckResult, /) -> str:
        return f"{_changed_from(result)}: better. Store the new level with --update-baselines"


@dataclass(frozen=True, slots=True)
class BetterThanReference(Cause):
    def reason(self, result: CheckResult, /) -> str:
        return f"{_changed_from(result)}: better"


@dataclass(frozen=True, slots=True)
class RunsTooFew(Cause):
    explained_by_build: ClassVar[bool] = True
    runs: int
    no_further_runs: str
    smallest_detectable: float | None = None
    deciding_runs: int | None = None
    deciding_sessions: int | None = None

    def reason(self, result: CheckResult, /) -> str:
        below = "" if self.smallest_detectable is None else f" below {change(result, self.smallest_detectable)}"
        more = "" if self.deciding_sessions is None else ", or store more sessions"
        return (f"no regression{below} fails {until(self.deciding_runs, self.deciding_sessions)}, and after "
                f"{number(self.runs, 'run')} {STOPS[NoFurtherRuns(self.no_further_runs)]}{more}")


@dataclass(frozen=True, slots=True)
class SpreadTooLarge(Cause):
    explained_by_build: ClassVar[bool] = True
    stored_sessions: int
    run_sd: float
    session_sd: float

    def reason(self, _result: CheckResult, /) -> str:
        few = self.stored_sessions < YOUNG_BELOW
        more = "store more sessions" if few else "compare with the baseline's build on this machine today"
        return (f"runs differ by {100 * self.run_sd:.1f} % and sessions by {100 * self.session_sd:.1f} % (sd): "
                f"{more}, or give this metric a wider margin")


@dataclass(frozen=True, slots=True)
class ChangeUndecided(Cause):
    explained_by_build: ClassVar[bool] = True
    negligible: float
    no_further_runs: str | None = None

    def reason(self, result: CheckResult, /) -> str:
        stop = "" if self.no_further_runs is None else f"; {STOPS[NoFurtherRuns(self.no_further_runs)]}"
        return (f"{_changed_from(result)}, and the {bare_interval(result)} proves neither more than the negligible "
                f"{change(result, self.negligible)} nor less than the tolerated {change(result, result.limit or 0.0)}"
                f"{stop}")


def _changed_from(result: CheckResult) -> str:
    reference = result.facts.get("reference")
    level = "its baseline" if reference is None else f"the reference build ({reference})"
    percent = change(result, result.estimate or 0.0)
    if result.before is None or result.after is None:
        return f"{result.metric} changed by {percent} against {level}"
    return f"{result.metric} changed {before_and_after(result)} ({percent}) against {level}"
