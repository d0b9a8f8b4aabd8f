"""From what requests did to numbers with a name, a unit, a direction and a formula.

Definitions follow `vllm bench serve`; other tools use the same words for other formulas, so every metric
carries the id of its own.
"""

from pytest_llmperf.metrics.families import FAMILIES
from pytest_llmperf.metrics.goodput import attained, goodput, slo_attainment, window_rates
from pytest_llmperf.metrics.registry import Metric, Source, all_metrics, find, is_metric
from pytest_llmperf.metrics.run import RunMetrics, measure
from pytest_llmperf.metrics.summary import STATS, percentile
from pytest_llmperf.metrics.units import Direction, Unit

__all__ = [
    "FAMILIES",
    "STATS",
    "Direction",
    "Metric",
    "RunMetrics",
    "Source",
    "Unit",
    "all_metrics",
    "attained",
    "find",
    "goodput",
    "is_metric",
    "measure",
    "percentile",
    "slo_attainment",
    "window_rates",
]
