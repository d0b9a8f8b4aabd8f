"""A server's /metrics page as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from pytest_llmperf.errors import MetricUnavailable

START_TIME = "process_start_time_s"


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of the page."""

    samples: tuple[Sample, ...]

    def total(self, name: str) -> float | None:
        """Sum over all label sets (engines, ranks); None where the server has no such sample."""
        values = [s.value for s in self.samples if s.name == name]
        return sum(values) if values else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums by the value of one label."""
        sums: dict[str, float] = {}
        for sample in self.samples:
            if sample.name == name and label in sample.labels:
                sums[sample.labels[label]] = sums.get(sample.labels[label], 0.0) + sample.value
        return sums

    def labels(self, name: str) -> Mapping[str, str]:
        """Labels of the first such sample; empty where there is none."""
        return next((s.labels for s in self.samples if s.name == name), {})


def parse(text: str) -> Scrape:
    """Read Prometheus text exposition. A value that is no finite number (NaN of an empty summary) is left out, and so
    are the buckets of histograms: they are most of the page, and no metric needs them.

    Raises:
        MetricUnavailable: the text is not in that format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    plain = "\n".join(line for line in text.split("\n") if "_bucket{" not in line)
    try:
        families = list(text_string_to_metric_families(plain))
    except ValueError as error:
        raise MetricUnavailable(f"/metrics is not Prometheus text: {error}; it begins {text[:80]!r}.") from error
    samples = (sample for family in families for sample in family.samples)
    return Scrape(tuple(Sample(s.name, s.labels, float(s.value)) for s in samples if isfinite(s.value)))


def deltas(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float | None]:
    """Counter differences; None where one side lacks the counter that the other has.

    A counter that appears during the run counts from 0, which is what Prometheus clients mean by it, but only
    where the page was readable before.
    """
    if not before or not after:
        return {}
    names = (before.keys() | after.keys()) - {START_TIME}
    return {name: after[name] - before.get(name, 0.0) if name in after else None for name in names}


def restarted(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether the server's process began anew: its start time changed, or a counter went backwards."""
    began = (before.get(START_TIME), after.get(START_TIME))
    if None not in began and began[0] != began[1]:
        return True
    return any(after[name] < value for name, value in before.items() if name in after)
