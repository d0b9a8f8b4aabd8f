"""Every metric of a test in groups: each side's mean beside its baseline and the change, without rows of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from pytest_llmperf.metrics import Unit, find, is_metric
from pytest_llmperf.metrics.families import turns_of
from pytest_llmperf.metrics.server import MOVED_BYTES, TIERS
from pytest_llmperf.report.html.words import FAMILY_WORDS
from pytest_llmperf.report.metric_rows import MetricCells, mean_of, metric_cells
from pytest_llmperf.report.table import value_text
from pytest_llmperf.results.baseline import StoredMeasurement
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import Measurement

#: Statistics of a latency in the table; the values run by run have all.
STATISTICS = ("mean", "p50", "p90", "p99", "max")
CONVERSATIONS = "Conversations, by turn"
GROUPS = {
    "Throughput and errors": ("request_throughput", "output_throughput", "total_token_throughput", "duration_s",
                              "error_rate", "goodput", "slo_attainment"),
    "Caches": ("prefix_cache_hit_rate", "cached_tokens", "external_cache_hit_rate", "external_cached_tokens",
               "lmcache_hit_rate", "lmcache_l1_hit_rate", "lmcache_l2_hit_rate", "lmcache_evictions",
               *(f"cached_tokens_{tier}" for tier in TIERS), *MOVED_BYTES),
    CONVERSATIONS: ("conversation_throughput",),
    "Scheduler": ("queue_time_mean", "running_peak", "waiting_peak", "preemptions", "admission_rejections",
                  "kv_usage_peak", "kv_blocks", "kv_cache_tokens", "chunk_budget", "tensor_parallel"),
    "Energy and cost": ("energy_j", "joules_per_token", "energy_gap", "gpu_utilization", "cost_per_million_tokens"),
    "Highest rate": ("max_rate", "max_rate_proven", "max_rate_refuted", "max_conversation_rate",
                     "max_conversation_rate_proven", "max_conversation_rate_refuted"),
}  # fmt: skip
OTHERS = "Other"
SHARED_GAPS = "itl_per_token_"


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """A measurement with its baseline and the checks that compare the two; None and empty without a baseline."""

    measurement: Measurement
    stored: StoredMeasurement | None = None
    checks: tuple[CheckResult, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric: name, formula, the cells of each side, B ÷ A of a test with two sides, and the values run by run."""

    name: str
    formula: str
    cells: tuple[MetricCells, ...]
    ratio: str
    runs: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """Metrics of one kind; `main` has no rare statistics."""

    title: str
    main: tuple[MetricRow, ...]
    rows: tuple[MetricRow, ...]


@dataclass(frozen=True, slots=True)
class MetricTable:
    """All groups, and the metrics that are left out.

    Args:
        zeros: names of the metrics that are 0 in every run.
        one_token: whether each chunk has one token, so that the gaps per token are the gaps between chunks.
    """

    groups: tuple[MetricGroup, ...] = ()
    zeros: tuple[str, ...] = ()
    one_token: bool = False


def metric_table(sides: Sequence[ComparedSide]) -> MetricTable:
    """The metrics of all sides."""
    runs = [run for side in sides for run in side.measurement.runs]
    values: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.metrics.values.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    zeros = tuple(name for name, readings in values.items() if not any(readings))
    names_by_title: dict[str, list[str]] = {}
    per_token = [name for name in values if name.startswith(SHARED_GAPS)]
    one_token = bool(per_token) and all(
        values[name] == values.get(f"itl_{name.removeprefix(SHARED_GAPS)}") for name in per_token)
    for name in values:
        if name not in zeros and not (one_token and name in per_token):
            names_by_title.setdefault(_title(name), []).append(name)
    order = [*FAMILY_WORDS.values(), *GROUPS]
    titles = sorted(names_by_title, key=lambda title: order.index(title) if title in order else len(order))
    groups = (_group(title, names_by_title[title], sides) for title in titles)
    return MetricTable(tuple(groups), zeros, one_token)


def _title(name: str) -> str:
    if turns_of(name.rpartition("_")[0]) or name in GROUPS[CONVERSATIONS] or turns_of(name):
        return CONVERSATIONS
    if is_metric(name) and (family := find(name).family) is not None:
        return FAMILY_WORDS[family]
    return next((title for title, names in GROUPS.items() if name in names), OTHERS)


def _group(title: str, names: Sequence[str], sides: Sequence[ComparedSide]) -> MetricGroup:
    rows = tuple(_row(name, sides) for name in names)
    return MetricGroup(title, tuple(row for row in rows if _is_main(row.name)), rows)


def _is_main(name: str) -> bool:
    if not is_metric(name):
        return True
    metric = find(name)
    return metric.stat is None or metric.stat in STATISTICS


def _row(name: str, sides: Sequence[ComparedSide]) -> MetricRow:
    cells = tuple(metric_cells(name, side.measurement, side.stored, side.checks) for side in sides)
    runs = tuple(
        tuple(value_text(name, run.metrics.values.get(name)) for run in side.measurement.runs) for side in sides
    )
    return MetricRow(name, find(name).formula if is_metric(name) else "", cells, _ratio(name, sides), runs)


def _ratio(name: str, sides: Sequence[ComparedSide]) -> str:
    """B ÷ A; "" for a test without exactly these two sides."""
    if [side.measurement.side for side in sides] != ["a", "b"]:
        return ""
    first, second = (mean_of(name, side.measurement) for side in sides)
    if not first or second is None or isinf(second) or isinf(first):
        return ""
    return Unit.RATIO.show(second / first)
