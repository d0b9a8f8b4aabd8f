"""Compares measurements of one workload: cache tiers of a server, or two engines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import exp, hypot, log

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import SpecError
from pytest_llmperf.judging.claim_judge import invalid_results, judge_pooled_executions
from pytest_llmperf.judging.ratios import ONE_START
from pytest_llmperf.judging.requirements import judge_claim
from pytest_llmperf.judging.validity import judged_by_comparison
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import server_kind
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.sentences import estimate_text
from pytest_llmperf.slo.model import Claim, Ratio
from pytest_llmperf.slo.parse import parse_ratio

ALPHA = 0.01  # of each one-sided limit, as of a claim


def judge_ratios(
    texts: Sequence[str], sides: Mapping[str, Measurement], settings: Settings, failed: Collection[str] = (),
    judged: Collection[str] = (),
) -> list[CheckResult]:
    """One result per text: PASS, FAIL or INCONCLUSIVE for a ratio with a limit, REPORTED for a ratio without a limit.

    Args:
        texts: "ttft_p50(disk) / ttft_p50(memory) >= 1.2", or a ratio without a limit.
        sides: measurements by their names in the texts. Runs with equal seeds form a pair. Pairs on a single server
            start need no between-start sd.
        failed: subjects that were a FAIL in an earlier execution whose runs are pooled here.
        judged: further metrics that the test judges in the same runs.

    Raises:
        SloError: a text cannot be parsed.
        SpecError: the workloads of two sides differ, or there are fewer than two pairs.
    """
    ratios = [parse_ratio(text, tuple(sides)) for text in texts]
    pairs = [_paired_sides(names, sides) for _, names in ratios]
    judged_metrics = judged_by_comparison(ratio.metric for ratio, _ in ratios).union(judged)
    errors = invalid_results([(name, side, judged_metrics) for name, side in sides.items()], settings)
    if errors:
        return errors

    def judge(alpha: float) -> list[CheckResult]:
        return [_judge_ratio_text(*ratio, *pair, 1 - alpha) for ratio, pair in zip(ratios, pairs, strict=True)]

    return judge_pooled_executions(judge, ALPHA, max(side.executions for side in sides.values()), failed)


def ratio_is_smaller(subject: str, smaller: CheckResult, larger: CheckResult) -> CheckResult:
    """Judge at 99 % whether one compared ratio is below another; both carry noise.

    Args:
        subject: what is judged, in words.
        smaller, larger: results of `perf.compare`. Where a run was invalid, they have no interval.
    """
    text = f"{estimate_text(smaller)} against {estimate_text(larger)}"
    if smaller.interval is None or larger.interval is None:
        return CheckResult.stated(subject, Verdict.INCONCLUSIVE, text)
    distances = [log(result.interval.high / result.interval.low) / 2 for result in (smaller, larger) if result.interval]
    centres = [log(result.estimate or 0) for result in (smaller, larger)]
    difference, margin = centres[1] - centres[0], hypot(*distances)
    verdict = Verdict.PASS if difference > margin else Verdict.FAIL if difference < -margin else Verdict.INCONCLUSIVE
    needed = f"{text}: a factor of {exp(difference):.3g}, and {exp(margin):.3g} is needed to decide"
    return CheckResult.stated(subject, verdict, needed)


def _judge_ratio_text(
    ratio: Claim | Ratio, names: tuple[str, str], top: Measurement, bottom: Measurement, confidence: float
) -> CheckResult:
    starts = [[str(run.start_id) for run in side.runs] for side in (top, bottom)]
    result = judge_claim(
        ratio, top.metrics, bottom.metrics, starts_a=starts[0], starts_b=starts[1], confidence=confidence,
        hardware=server_kind(top.conditions), start_sd=ONE_START if starts[0] == starts[1] else None,
        restartable=not any("url" in side.conditions for side in (top, bottom)),
    )
    return replace(result, metric=" / ".join(f"{ratio.metric}({name})" for name in names))


def _paired_sides(names: tuple[str, str], sides: Mapping[str, Measurement]) -> tuple[Measurement, Measurement]:
    top, bottom = (sides[name] for name in names)
    if top.conditions.get("workload") != bottom.conditions.get("workload"):
        raise SpecError(f"perf.compare: {names[0]} is {top.workload}, and {names[1]} {bottom.workload}. "
                        "Measure the same.")
    first_of = [_first_runs(top), _first_runs(bottom)]
    both = first_of[0].keys() & first_of[1].keys()
    if len(both) < 2:
        raise SpecError(f"perf.compare: {names[0]} and {names[1]} share {len(both)} seed(s), and less than two pairs "
                        "have no spread. Measure each with runs=2 or more.")
    chosen = {id(first[key]) for first in first_of for key in both}
    top, bottom = (side.only(lambda run: id(run) in chosen).by_seed() for side in (top, bottom))
    return top, bottom


def _first_runs(side: Measurement) -> dict[tuple[int, int], Run]:
    """(execution, seed) → its first run: a comparison with a baseline repeats seeds to decide."""
    first_runs: dict[tuple[int, int], Run] = {}
    for run in side.runs:
        first_runs.setdefault((run.execution, run.seed), run)
    return first_runs
