"""Causes of ratios of two sides: claims, their guards and prices."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmperf.results.check import Cause, CheckResult
from pytest_llmperf.results.sentences import estimate_text, limit_text, number


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
