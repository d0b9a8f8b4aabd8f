"""Judges the SLOs and claims of measurements. Invalid runs give one ERROR; otherwise `requirements` judges the runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import SloError
from pytest_llmperf.judging.outcome import requirement_result, with_unseen_gpu, without_cause
from pytest_llmperf.judging.ratios import ONE_START
from pytest_llmperf.judging.replica_spread import Replicas
from pytest_llmperf.judging.requirements import judge_claim as judge_sides
from pytest_llmperf.judging.requirements import judge_slo
from pytest_llmperf.judging.validity import judged_by_comparison, judged_by_requirements, validity_problems
from pytest_llmperf.metrics.energy import COST, OF_REAL_GPUS
from pytest_llmperf.metrics.failed_as_infinite import infinite_runs
from pytest_llmperf.metrics.registry import find, find_family
from pytest_llmperf.metrics.units import Direction
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.causes.limits import EnergyNotEmulated, RunsInvalid
from pytest_llmperf.results.check import CheckResult, Facts
from pytest_llmperf.results.conditions import EMULATED, PRICE, kind_of
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.slo.model import Claim, Comparison, Mechanism, Slo
from pytest_llmperf.slo.parse import parse_claim
from pytest_llmperf.stats.decision import SLO_ALPHA, alpha_of_execution
from pytest_llmperf.stats.priors import Margins, margins_for
from pytest_llmperf.stats.ratio import StartSd

# Guard metrics of a claim, unless `allow` names them. Throughput follows from these two metrics, so it is no guard.
PRIMARIES = ("ttft_p50", "tpot_mean")
EVEN_ODDS = 0.5  # an interval at this confidence is its centre


def judge_slos(
    measurement: Measurement, slos: Sequence[Slo], settings: Settings, failed: Collection[str] = (),
    judged: Collection[str] = (),
) -> list[CheckResult]:
    """Judge SLOs on a measurement; the result is one ERROR if runs are invalid.

    The error rate of 5 % holds over all looks that were possible at this measurement, so each look has an equal part.

    Args:
        failed: subjects that an earlier execution, whose runs are pooled here, has found to FAIL.
        judged: further metrics that the test judges in the same runs.
    """
    errors = invalid_results([("", measurement, judged_by_requirements(slos).union(judged))], settings)
    if errors:
        return errors
    emulated = kind_of(measurement.conditions).startswith(EMULATED)
    starts, seeds = [str(run.start_id) for run in measurement.runs], [run.seed for run in measurement.runs]

    def judge(alpha: float) -> list[CheckResult]:
        return [
            requirement_result(slo, Verdict.REPORTED, EnergyNotEmulated())
            if emulated and slo.metric in OF_REAL_GPUS
            else judge_slo(slo, measurement.metrics, starts, seeds, confidence=1 - alpha) for slo in slos
        ]

    return [
        _with_notes(result, measurement)
        for result in judge_pooled_executions(judge, SLO_ALPHA / measurement.looks, measurement.executions, failed)
    ]


def _with_notes(result: CheckResult, measurement: Measurement) -> CheckResult:
    """The result with the number of looks that share its error, and a note on a latency without a hardware bound."""
    family = find(result.metric.partition("(")[0]).family
    latency = family is not None and not find_family(family).with_failed
    notes: Facts = {"looks": measurement.looks} if measurement.looks > 1 and not result.facts.get("exact") else {}
    if result.metric == COST and PRICE in measurement.conditions:
        notes["price"] = measurement.conditions[PRICE]
    if latency and measurement.bound is None:
        notes["hardware_bound_unknown"] = True
    noted = replace(result, facts=result.facts | notes) if result.numbers else result
    return with_unseen_gpu(noted, measurement.conditions)


def judge_pooled_executions(
    judge: Callable[[float], list[CheckResult]], alpha: float, executions: int, failed: Collection[str]
) -> list[CheckResult]:
    """Judge the pooled runs of several executions. New verdicts use the reduced α of the latest execution. A subject
    that was a FAIL in an earlier execution is judged again at the α of a first execution, so that its FAIL can persist.

    Args:
        judge: returns one result per subject, in a fixed order, for a given α per decision.
        alpha: α of a first execution.
        executions: number of pooled executions.
        failed: subjects that were a FAIL in an earlier execution.
    """
    results = judge(alpha_of_execution(alpha, executions))
    if executions == 1 or not failed:
        return results
    return [
        earlier if new.verdict is Verdict.INCONCLUSIVE and earlier.verdict is Verdict.FAIL and new.subject in failed
        else new
        for new, earlier in zip(results, judge(alpha), strict=True)
    ]


def paired_sides(a: Measurement, b: Measurement) -> tuple[Measurement, Measurement]:
    """The paired runs of the two sides of a claim, in the order of time. A pair shares execution and seed."""
    keys = [{(run.execution, run.seed) for run in side.runs if run.block is not None} for side in (a, b)]
    both = keys[0] & keys[1]

    def paired(run: Run) -> bool:
        return run.block is not None and (run.execution, run.seed) in both

    return a.only(paired), b.only(paired)


def runs_apart(a: Measurement, b: Measurement) -> list[int]:
    """Number of runs from A's run to B's run of each pair, in the order of `by_seed`."""
    made = sorted((run.execution, run.block or 0, place, side) for side, runs in enumerate((a.runs, b.runs))
                  for place, run in enumerate(runs))
    position = {(side, place): number for number, (_, _, place, side) in enumerate(made)}
    of_pairs: dict[tuple[int, int], list[int]] = {}
    for side, runs in enumerate((a.runs, b.runs)):
        for place, run in enumerate(runs):
            of_pairs.setdefault((run.execution, run.seed), []).append(position[side, place])
    return [of_b - of_a for _, (of_a, of_b) in sorted(of_pairs.items())]


@dataclass(frozen=True, slots=True)
class ClaimJudge:
    """Judges a claim; `claim_judge` makes it.

    Args:
        claim: the ratio.
        causes: mechanisms, which are conditions on a single side for the claimed cause.
        prices: accepted losses of A in other metrics.
        guards: tolerated losses of A in guard metrics, which have no price.
        settings: settings of the validity checks.
        start_sds: metric → between-start sd, for metrics whose sd the test states or the stored sessions show.
        kind: hardware kind of the server, which selects the default between-start sd of the other metrics.
        restartable: whether both sides can be started again; False if a side is an endpoint.
    """

    claim: Claim
    causes: tuple[Mechanism, ...]
    prices: tuple[Claim, ...]
    guards: tuple[Claim, ...]
    settings: Settings
    start_sds: Mapping[str, StartSd]
    kind: str
    restartable: bool = True

    def both(self, a: Measurement, b: Measurement, confidence: float) -> list[CheckResult]:
        """Judge paired runs of the two sides. `confidence` is the confidence of each one-sided decision."""
        errors = invalid_results([("A", a, self._named("a")), ("B", b, self._named("b"))], self.settings)
        if errors:
            return errors
        apart = runs_apart(a, b)
        a, b = a.by_seed(), b.by_seed()
        starts_a, starts_b = ([str(run.start_id) for run in side.runs] for side in (a, b))
        replicas = None if self.restartable else Replicas(a, b)

        def judged(requirement: Claim | Mechanism, confidence: float = confidence) -> CheckResult:
            start_sd = self.start_sds.get(requirement.metric)
            if set(starts_a) == set(starts_b):  # sides that differ in the router alone
                start_sd = ONE_START
            elif replicas is not None:
                start_sd = replicas.start_sd(requirement.metric, start_sd)
            return judge_sides(requirement, a.metrics, b.metrics, starts_a=starts_a, starts_b=starts_b,
                               start_sd=start_sd, hardware=self.kind, confidence=confidence, apart=apart,
                               restartable=self.restartable, replicas=replicas)

        guards = [_finite_guard(guard, a, b) for guard in self.guards if _is_measured(guard.metric, a, b)]
        return [
            *map(judged, self.causes), judged(self.claim),
            *(_with_fact(judged(price), {"allowed": price.metric}) for price in self.prices),
            *(_guard_result(guard, judged(guard), judged(guard, EVEN_ODDS)) for guard in guards),
        ]

    def learning(self, stored: Callable[[str], StartSd | None]) -> ClaimJudge:
        """A judge with the between-start sd of stored sessions, for metrics whose sd the test does not state.

        Args:
            stored: returns the sd of a metric; None if the stored sessions do not bound the sd.
        """
        judged = {self.claim.metric, *(guarded.metric for guarded in (*self.prices, *self.guards))}
        sds = {name: sd for name in judged if (sd := stored(name)) is not None}
        return replace(self, start_sds={**sds, **self.start_sds})

    def alone(self, side: Measurement) -> list[CheckResult]:
        """Results of one side that end the claim before the second side is measured; empty if the claim continues.

        An invalid run or a failed mechanism ends the claim, because a further server start cannot change that result.
        """
        errors = invalid_results([(side.side.upper(), side, self._named(side.side))], self.settings)
        mechanism_results = [
            judge_sides(cause, side.metrics, side.metrics) for cause in self.causes if cause.side == side.side
        ]
        other = "B" if side.side == "a" else "A"
        return [
            replace(result, facts=result.facts | {"unmeasured_side": other})
            for result in errors or mechanism_results if result.verdict is not Verdict.PASS
        ]

    @property
    def metrics(self) -> set[str]:
        """Metrics in the texts of the claim, the prices and the mechanisms."""
        return {self.claim.metric, *(price.metric for price in self.prices), *(cause.metric for cause in self.causes)}

    @property
    def judged(self) -> set[str]:
        """Metrics that the claim names or guards."""
        return self.metrics | {guard.metric for guard in self.guards}

    def _named(self, side: str) -> set[str]:
        """Metrics whose deviations are judged on this side. A mechanism check on one side does not relax the validity
        checks of the other side."""
        ratios = judged_by_comparison(claim.metric for claim in (self.claim, *self.prices, *self.guards))
        return ratios | judged_by_requirements(cause for cause in self.causes if cause.side == side)


def claim_judge(
    text: str,
    mechanisms: Sequence[str],
    allow: Mapping[str, float],
    settings: Settings,
    *,
    kind: str = "",
    margins: Mapping[str, Margins] = MappingProxyType({}),
    start_sd: Mapping[str, float] = MappingProxyType({}),
    restartable: bool = True,
) -> ClaimJudge:
    """Read a claim now, so that a typo costs no server start.

    Args:
        text, mechanisms, allow, start_sd: as `perf.claim` takes them.
        settings: settings of the validity checks.
        kind: hardware kind of the server, which selects the guards' margins and the default between-start sd.
        margins: guard metric → margin, for guard metrics without the default margin.
        restartable: as in `ClaimJudge`.

    Raises:
        SloError: a text cannot be parsed, or a number is invalid.
    """
    claim = parse_claim(text)
    if not isinstance(claim, Claim):
        raise SloError(f"{text!r} is about one side. A claim is a ratio, e.g. \"ttft_p50(b) / ttft_p50(a) >= 3\"; "
                       "write a requirement on a single side as mechanism=.")
    if not isinstance(allow, Mapping):
        raise SloError(f'allow={allow!r}: name the price of each metric, as in allow={{"tpot_mean": 1.2}}.')
    causes = tuple(_mechanism(cause) for cause in mechanisms)
    prices = tuple(_price(name, factor) for name, factor in allow.items())
    accepted = {claim.metric, *(price.metric for price in prices)}
    guards = tuple(guard(name, kind, margins) for name in PRIMARIES if name not in accepted)
    judged = accepted | {guard.metric for guard in guards}
    return ClaimJudge(claim, causes, prices, guards, settings, _start_sds(start_sd, judged), kind, restartable)


def _mechanism(text: str) -> Mechanism:
    parsed = parse_claim(text)
    if not isinstance(parsed, Mechanism):
        raise SloError(
            f"{text!r} is a ratio. A mechanism is what one side must show, e.g. \"prefix_cache_hit_rate(a) >= 60%\"."
        )
    return parsed


def _price(name: str, factor: float) -> Claim:
    """A may be worse than B in this metric by at most `factor`."""
    metric = find(name)
    if metric.limited:
        raise SloError(f"allow={{{name!r}: …}}: {name} exists only with limits, so it cannot be a price.")
    if not isinstance(factor, int | float) or not 1 <= factor < inf:
        raise SloError(f"allow={{{name!r}: {factor!r}}}: a price is how many times worse A may be, at least 1.")
    worse_when_larger = metric.direction is not Direction.HIGHER
    text = f"{name}(a) / {name}(b) <= {factor:g}" if worse_when_larger else f"{name}(b) / {name}(a) <= {factor:g}"
    return Claim(metric.name, "a" if worse_when_larger else "b", Comparison.AT_MOST, factor, text)


def guard(name: str, kind: str = "", margins: Mapping[str, Margins] = MappingProxyType({})) -> Claim:
    """The requirement of a claim on a guard metric, which has no price; see `claim_judge`."""
    margin = margins.get(name) or margins_for(find(name), kind)
    return _price(name, 1 + margin.tolerated)


def _start_sds(given: Mapping[str, float], judged: Collection[str]) -> dict[str, StartSd]:
    """The between-start sds that the test states, by metric.

    Raises:
        SloError: the argument is no table, names a metric that the claim does not judge, or has an invalid sd.
    """
    if not isinstance(given, Mapping):
        raise SloError(f'start_sd={given!r}: name the deviation of each metric, as in start_sd={{"ttft_p50": 0.2}}.')
    start_sds = {}
    for name, value in given.items():
        if (metric := find(name).name) not in judged:
            raise SloError(f"start_sd={{{name!r}: …}}: name a metric that the claim judges: "
                           f"{', '.join(sorted(judged))}.")
        if not isinstance(value, int | float) or not 0 < value < inf:
            raise SloError(f"start_sd={{{name!r}: {value!r}}}: a deviation must be a share above 0. Write 0.05 "
                           "for 5 %.")
        start_sds[metric] = StartSd(value, "the test's own")
    return start_sds


def _is_measured(metric: str, a: Measurement, b: Measurement) -> bool:
    """Whether a guard has something to guard: answers of one token have no tpot on either side."""
    return any(value is not None for side in (a, b) for value in side.values(metric))


def _finite_guard(guard: Claim, a: Measurement, b: Measurement) -> Claim:
    """The guard. If failed requests make its mean infinite, the guard on the median, which shows the same loss."""
    median = guard.metric.replace("_mean", "_p50")
    if not any(infinite_runs(guard.metric, side.metrics) for side in (a, b)):
        return guard
    return replace(guard, metric=median, text=guard.text.replace(guard.metric, median))


def _guard_result(requirement: Claim, result: CheckResult, centre: CheckResult) -> CheckResult:
    """The result of a guard metric. A provisional result cannot exclude a small loss, so an undecided guard passes if
    the estimate itself is within the margin. The result then states that the absence of a loss is not proven.

    Args:
        requirement: the tolerated loss.
        result: result for the ratio with its interval.
        centre: result for the ratio without its interval.
    """
    result = _with_fact(result, {"guard": requirement.metric})
    if result.verdict is Verdict.INCONCLUSIVE and centre.verdict is Verdict.PASS:
        return without_cause(_with_fact(replace(result, verdict=Verdict.PASS), {"no_loss_proven": True}))
    return result


def _with_fact(result: CheckResult, fact: Facts) -> CheckResult:
    return replace(result, facts=result.facts | fact)


def invalid_results(sides: Sequence[tuple[str, Measurement, Collection[str]]], settings: Settings) -> list[CheckResult]:
    """One ERROR where runs are invalid; empty if they are valid.

    Args:
        sides: the side's name for messages ("" for a single measurement), the measurement, and the metrics that the
            test judges: their deviations are no errors (`judged_by_requirements`, `judged_by_comparison`).
    """
    problems = tuple(
        replace(problem, side=side or None)
        for side, measurement, judged_metrics in sides
        for problem in validity_problems(measurement, judged_metrics, settings)
    )
    if not problems:
        return []
    return [CheckResult("valid runs", Verdict.ERROR, metric="validity", cause=RunsInvalid(), problems=problems)]
