"""Claims: one side against the other, and what a side must show for the claim to be believed."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1, floor, log, sqrt

from pytest_llmperf.judging.result_text import requirement_result
from pytest_llmperf.judging.sample import Sample, unavailable_reason
from pytest_llmperf.metrics.failed_as_infinite import infinite_value_problem, value_with_failures
from pytest_llmperf.metrics.registry import Metric, find
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.slo.model import Claim, Comparison, Mechanism, Ratio
from pytest_llmperf.stats.mean import t_quantile
from pytest_llmperf.stats.priors import Kind, kind_of
from pytest_llmperf.stats.ratio import ProvisionalRatio, StartSd, provisional_ratio

#: Pairs of runs whose two sides ran on the same start: what a start changes, it changes on both.
ONE_START = StartSd(0.0, "one server start, and conditional on it")


def start_sd_prior(metric: Metric, hardware: str = "") -> StartSd:
    """Start-to-start spread to assume where none was calibrated; `hardware` is the kind.

    A start-up's own: 83 to 110 s with a cold compile cache, 55 to 76 s with a warm one, on H200s.
    Tails: a p99 of 300 requests rests on three of them. For a log-normal latency of 50 % spread its own sampling sd is
    0.5 √(0.01 · 0.99 / 300) / φ(2.33) = 11 %; with a first token's 10 % on top, 15 %. Queues amplify likewise.
    CPUs: 27 starts on shared cores differed by 16 to 17 % in TPOT, next to each other by 12 to 15 %; in median TTFT by
    7 to 11 %, in p99s by 6 to 12 % (stats/priors.py).
    """
    if metric.name == "startup_s":
        return StartSd(0.20, "default for start-up times")
    if metric.name == "max_rate":
        return StartSd(0.05, "default for the highest rate within an SLO")
    kind = kind_of(metric)
    if kind is Kind.TAIL:
        return StartSd(0.15, "default for tails")
    if kind is Kind.TTFT:
        return StartSd(0.10, "default for latencies with a first token")
    if hardware == "cpu":
        return StartSd(0.15, "default for means per token and throughput on CPUs")
    return StartSd(0.03, "default for means per token and throughput")


def judge_ratio(
    claim: Claim | Ratio, a: Sample, b: Sample, start_sd: StartSd, confidence: float, *, apart: Sequence[int] = (),
    restartable: bool = True,
) -> CheckResult:
    """PASS where the ratio is proven on the right side of the claim, FAIL where on the wrong one; else REPORTED.

    `apart` and `restartable` are as `judge_claim` takes them.
    """
    top, bottom = (a, b) if claim.numerator == "a" else (b, a)
    for side, sample in (("a", a), ("b", b)):
        missing = sum(value_with_failures(run, claim.metric) is None for run in sample.runs)
        if missing:
            reason = unavailable_reason(claim.metric, missing, len(sample.runs), f" of {side}")
            return _ratio_result(claim, Verdict.ERROR, None, reason)
        if infinite_problem := infinite_value_problem(claim.metric, sample.runs, f" of {side}"):
            return _ratio_result(claim, Verdict.ERROR, None, infinite_problem)
    numerators, denominators = _values(claim, top), _values(claim, bottom)
    if min(*numerators, *denominators) <= 0:
        return _ratio_result(claim, Verdict.ERROR, None, f"{claim.metric} is 0 in a run, so there is no ratio")
    estimate = provisional_ratio(numerators, denominators, start_sd,
                                 numerator_starts=top.start_count, denominator_starts=bottom.start_count,
                                 confidence=confidence,
                                 apart=apart if claim.numerator == "b" else [-distance for distance in apart])
    starts = (top.start_count, bottom.start_count) if claim.numerator == "a" else (bottom.start_count, top.start_count)
    if isinstance(claim, Ratio):
        return _ratio_result(claim, Verdict.REPORTED, estimate, "", starts)
    limits = estimate.interval
    verdict = (limits.below if claim.comparison is Comparison.AT_MOST else limits.above)(claim.ratio)
    why = _reason(claim, verdict, estimate, min(starts), restartable=restartable)
    return _ratio_result(claim, verdict, estimate, why, starts)


def judge_mechanism(mechanism: Mechanism, a: Sample, b: Sample) -> CheckResult:
    """Every run of the side must show it: a mechanism works or it does not."""
    sample = a if mechanism.side == "a" else b
    values = [run.value(mechanism.metric) for run in sample.runs]
    available_values = [value for value in values if value is not None]
    if len(available_values) < len(values):
        reason = unavailable_reason(
            mechanism.metric, len(values) - len(available_values), len(values), f" of {mechanism.side}"
        )
        return requirement_result(mechanism, Verdict.ERROR, reason=reason)
    violations = [value for value in available_values if not mechanism.comparison.holds(value, mechanism.limit)]
    worst = min(available_values) if mechanism.comparison is Comparison.AT_LEAST else max(available_values)
    violation_text = ", ".join(find(mechanism.metric).unit.show(value) for value in violations)
    return requirement_result(
        mechanism,
        Verdict.FAIL if violations else Verdict.PASS,
        measured=violations[0] if violations else worst,
        n=f"each of {len(available_values)} runs",
        reason=f"{len(violations)} of {len(available_values)} runs miss the limit: {violation_text}",
    )


def _values(claim: Claim | Ratio, sample: Sample) -> Sequence[float]:
    return [value for run in sample.runs if (value := value_with_failures(run, claim.metric)) is not None]


def _ratio_result(claim: Claim | Ratio, verdict: Verdict, estimate: ProvisionalRatio | None, reason: str,
                  starts: tuple[int, int] = (1, 1)) -> CheckResult:
    metric = f"{claim.metric}({claim.numerator}) / {claim.metric}({claim.denominator})"
    limit = "" if isinstance(claim, Ratio) else f"{claim.comparison.sign} {claim.ratio:g}×"
    subject = claim.text or str(claim)
    if estimate is None:
        return CheckResult(subject, verdict, metric, limit, reason=reason)
    limits = estimate.interval
    return CheckResult(
        subject, verdict, metric, limit,
        measured=f"{estimate.ratio:.3g}×",
        interval=f"{limits.level_percent:g} % CI {limits.low:.3g}–{limits.high:.3g}×",
        n=f"{estimate.pairs} pair{'s' if estimate.pairs > 1 else ''} {_starts_text(estimate.start_sd, starts)}",
        reason="" if verdict is Verdict.PASS else reason,
    )


def _starts_text(sd: StartSd, starts: tuple[int, int]) -> str:
    """How the server starts enter."""
    if sd == ONE_START:
        return f"on {sd.source}"
    spread = f"a start-to-start sd of {100 * sd.value:.2g} % ({sd.source})"
    return f"on {starts[0]} + {starts[1]} starts, a screen with {spread}"


def _reason(
    claim: Claim, verdict: Verdict, estimate: ProvisionalRatio, starts_per_side: int, *, restartable: bool
) -> str:
    if verdict is Verdict.FAIL:
        return f"the ratio is {estimate.ratio:.3g}×, proven to miss {claim.comparison.sign} {claim.ratio:g}×"
    if estimate.start_sd == ONE_START:
        return f"{estimate.pairs} pairs cannot tell at this ratio; measure more runs, or claim less"
    return _way_out(claim, estimate, starts_per_side, restartable=restartable)


def _way_out(claim: Claim, estimate: ProvisionalRatio, started: int, *, restartable: bool) -> str:
    """What would decide an open claim."""
    if _hinges_on_drift(claim, estimate):
        return (f"the pairs show a drift from run to run, which may be {expm1(abs(estimate.drift)):.0%} of this ratio; "
                "allow more pairs (--extension-limit), whose order turns, or see what changes while it is measured")
    distance = abs(log(estimate.ratio) - log(claim.ratio))
    z, of_starts = t_quantile(estimate.interval.confidence, None), 2 * estimate.start_sd.value**2
    of_pairs = (estimate.pair_sd or 0.0) ** 2 * started / estimate.pairs
    if distance < z * estimate.start_sd.value / 10:
        return "the ratio is too near the claim for an affordable number of server starts; claim less"
    starts = max(2, ceil((z / distance) ** 2 * (of_starts + of_pairs)))
    if starts <= started:
        return f"{estimate.pairs} pairs are too few to tell; measure more runs, or claim less"
    if not restartable:
        return _on_endpoints(claim, estimate, distance / z)
    return (f"about {starts} server starts per side would decide it at this ratio: measure each side with "
            f"perf.measure(…, starts={starts}) and put both into perf.compare, or claim less")


def _hinges_on_drift(claim: Claim, estimate: ProvisionalRatio) -> bool:
    """Whether the ratio without the drift is on the other side of the claim, or the allowance for it keeps it open."""
    beyond = log(estimate.ratio) - log(claim.ratio)
    margin = (log(estimate.interval.high) - log(estimate.interval.low) - abs(estimate.drift)) / 2
    return beyond * (beyond - estimate.drift) < 0 or abs(beyond) > margin


def _on_endpoints(claim: Claim, estimate: ProvisionalRatio, enough: float) -> str:
    """What decides a claim where no server can be started again: knowing how much starts differ.

    Args:
        claim, estimate: what is open.
        enough: the standard error that would decide it.
    """
    needed = (enough**2 - (estimate.pair_sd or 0.0) ** 2 / estimate.pairs) / 2
    known = f"where you know how much their starts differ, state it: start_sd={{{claim.metric!r}: …}}"
    if needed > 0:
        known += f" ({floor(1000 * sqrt(needed)) / 10:g} % or less would decide it at this ratio)"
    return f"an endpoint is never started again, so more runs tell little; claim less, or {known}"
