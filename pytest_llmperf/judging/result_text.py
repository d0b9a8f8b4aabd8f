"""How a judged demand reads."""

from __future__ import annotations

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.units import Unit
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.slo.model import Mechanism, Slo
from pytest_llmperf.stats.interval import Interval


def requirement_result(demand: Slo | Mechanism, verdict: Verdict, *, measured: float | None = None,
                       interval: Interval | None = None, n: str = "", reason: str = "") -> CheckResult:
    """A result in the words of the demand; values in the metric's unit."""
    unit = find(demand.metric).unit
    return CheckResult(
        subject=demand.text or str(demand),
        verdict=verdict,
        metric=metric_label(demand),
        limit=f"{demand.comparison.sign} {unit.show(demand.limit)}",
        measured="-" if measured is None else unit.show(measured),
        interval="" if interval is None else interval_text(interval, unit),
        n=n,
        reason="" if verdict is Verdict.PASS else reason,
    )


def metric_label(demand: Slo | Mechanism) -> str:
    """The metric with its limits or its side."""
    if isinstance(demand, Mechanism):
        return f"{demand.metric}({demand.side})"
    return f"{demand.metric}({', '.join(map(str, demand.within))})" if demand.within else demand.metric


def interval_text(interval: Interval, unit: Unit) -> str:
    """"90 % CI 431–489 ms"."""
    return f"{interval.level_percent:g} % CI {unit.show_range(interval.low, interval.high)}"


def result_line(result: CheckResult) -> str:
    """The one line that users read: "ttft p99 ≤ 500 ms  PASS  4 of 1000 over, …, 90 % CI 431–489 ms"."""
    metric = _metric_in_words(result.metric)
    measured = "" if result.measured == "-" else result.measured
    facts = ", ".join(filter(None, (measured, result.n, result.interval)))
    reason = f": {result.reason}" if result.reason else ""
    return f"{metric} {result.limit}  {result.verdict.value}  {facts}".rstrip() + reason


def _metric_in_words(metric: str) -> str:
    """"ttft_p99" as "ttft p99"; anything with an argument stays as it is."""
    if "(" in metric:
        return metric
    registered = find(metric)
    return f"{registered.family} {registered.stat}" if registered.family else metric
