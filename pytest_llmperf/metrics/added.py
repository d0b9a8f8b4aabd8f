"""Metrics of other packages, which come in through the door `METRICS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmperf.doors import Door
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.metrics.units import Direction, Unit
from pytest_llmperf.model.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedMetric:
    """A number that a run has, computed by another package. SLOs, claims and baselines treat it like any metric.

    Args:
        api: version of the doors for which the metric was written: 1.
        name: as in SLO texts: lower-case letters, digits and "_".
        unit: of the value; shares are 0…1.
        direction: which way is better.
        take: the value of a run from its request records, ordered by intended send time, and from the increases of the
            server's counters under their canonical names. None if something that the formula needs is missing.
        formula: in words.
        needs: what must be there for the value to exist, in words.
        version: part of the formula id that is stored beside every number. Raise it when the formula changes.
    """

    api: int
    name: str
    unit: Unit
    direction: Direction
    take: Callable[[Sequence[RequestRecord], Mapping[str, float | None]], float | None]
    formula: str
    needs: str = "a served request"
    version: int = 1


METRICS = Door[AddedMetric]("metric", "an AddedMetric", lambda value: isinstance(value, AddedMetric), {})


def added_values(
    records: Sequence[RequestRecord], counters: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The value of each added metric in a run.

    Args:
        records: ordered by intended send time.
        counters: increases of the server's counters over the run.

    Raises:
        ConfigError: the function of a metric fails. The message names the metric.
    """
    values: dict[str, float | None] = {}
    for metric in METRICS.all():
        try:
            values[metric.name] = metric.take(records, counters)
        except Exception as error:
            raise ConfigError(f"The metric {metric.name} fails on a run: {type(error).__name__}: {error}. Let the "
                              "function return None if a value is missing.") from error
    return values
