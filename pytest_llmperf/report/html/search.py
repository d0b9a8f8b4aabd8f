"""Searches for the highest rate within SLOs: the proven rate, a table of the tried rates, and rate–latency curves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_llmperf.errors import SloError
from pytest_llmperf.metrics import Unit, find, is_metric
from pytest_llmperf.report.html.figures import figure
from pytest_llmperf.report.html.plot import Line, Mark, linear_axis, log_axis, plot
from pytest_llmperf.report.html.words import metric_in_words
from pytest_llmperf.report.table import value_text
from pytest_llmperf.results.measurement import Measurement, TestResult
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.parse import parse_slo

SHOWN = ("request_throughput", "output_throughput", "ttft_p50", "tpot_p50", "error_rate")
#: State of a tried rate → tone and mark of its points. The mark distinguishes the states without the colour.
STATES = {"within the SLO, proven": (0, "round"), "within as measured, not proven": (2, "ring"),
          "over as measured, not proven": (4, "ring"), "over the SLO, proven": (1, "square")}  # fmt: skip
BETWEEN_SLOS = re.compile(r", (?![^(]*\))")


@dataclass(frozen=True, slots=True)
class ChartedRate:
    """One rate of a search: its state and its measurement."""

    rate: float
    state: str
    measurement: Measurement

    def value(self, metric: str) -> float | None:
        """Mean of a metric over the runs at this rate; of a limited metric no mean is stored."""
        return self.measurement.value_with_failures(metric) if is_metric(metric) else None


@dataclass(frozen=True, slots=True)
class SearchTable:
    """One search in words, with its charts.

    Args:
        terms: the SLOs as text.
        result: the sentence that states the proven rate.
        metrics: the columns.
        rows: per tried rate, in ascending order: the rate, its state, and the values of the columns.
        curves: the charts as HTML.
    """

    terms: str
    result: str
    metrics: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]
    curves: str


def searches(test: TestResult) -> tuple[SearchTable, ...]:
    """All searches of a test that tried a rate."""
    made = []
    searched = [measurement for measurement in test.measurements if measurement.searched and measurement.runs]
    for measurement in searched:
        alike = [other for other in test.measurements if other.tried and other.engine == measurement.engine]
        if tried := sorted(_tried(measurement, alike), key=lambda point: point.rate):
            made.append(_table(measurement, tried))
    return tuple(made)


def _tried(search: Measurement, measurements: Sequence[Measurement]) -> Iterator[ChartedRate]:
    highest, proven, refuted = (search.value(name) for name in ("max_rate", "max_rate_proven", "max_rate_refuted"))
    for measurement in measurements:
        rate = float(measurement.conditions["tried_rate"].removesuffix("/s"))
        yield ChartedRate(rate, _state(rate, highest, proven, refuted), measurement)


def _state(rate: float, highest: float | None, proven: float | None, refuted: float | None) -> str:
    within_proven, within, over, over_proven = STATES
    exact = 1 + 1e-4  # the conditions have six digits of a rate
    if proven is not None and rate <= proven * exact:
        return within_proven
    if refuted is not None and rate * exact >= refuted:
        return over_proven
    return within if highest is not None and rate <= highest * exact else over


def _table(search: Measurement, tried: Sequence[ChartedRate]) -> SearchTable:
    slos = _slos(search.conditions["search"])
    metrics = tuple(dict.fromkeys([*(slo.metric for slo in slos if find(slo.metric).limited is False), *SHOWN]))
    rows = tuple(
        (value_text("max_rate", point.rate), point.state,
         tuple(value_text(name, point.value(name)) for name in metrics))
        for point in tried
    )
    limited = [slo for slo in slos if find(slo.metric).unit is Unit.MS]
    curves = "".join(_curve(slo, tried, search.value("max_rate_proven")) for slo in limited)
    return SearchTable(", ".join(map(str, slos)), _result(search), metrics, rows, curves)


def _slos(terms: str) -> list[Slo]:
    """The SLOs in the text of a search's terms; those that this version cannot read are left out."""
    slos = []
    for text in BETWEEN_SLOS.split(terms.removeprefix("max_rate(").rpartition(", precision=")[0]):
        try:
            slos.append(parse_slo(text))
        except SloError:
            continue
    return slos


def _result(search: Measurement) -> str:
    names = ("max_rate", "max_rate_beyond", "max_rate_proven", "max_rate_refuted")
    highest, beyond, proven, refuted = (_counter(search, name) for name in names)
    show = Unit.REQUESTS_PER_S.show
    parts = ["No rate is proven to be within the SLO." if proven is None else f"{show(proven)} is proven."]
    if highest is not None and highest != proven:
        parts.append(f"{show(highest)} was within the SLO as measured.")
    if refuted is not None:
        parts.append(f"{show(refuted)} is proven to be over it.")
    elif beyond is not None:
        parts.append(f"{show(beyond)} was over it as measured.")
    return " ".join(parts)


def _counter(search: Measurement, name: str) -> float | None:
    """Mean over the searches that have the value."""
    values = [value for run in search.runs if (value := run.counters.get(name)) is not None]
    return sum(values) / len(values) if values else None


def _curve(slo: Slo, tried: Sequence[ChartedRate], proven: float | None) -> str:
    points = [(point, value) for point in tried
              if (value := point.value(slo.metric)) is not None and value < float("inf")]
    lines = [Line("", [point.rate for point, _ in points], [value for _, value in points], 7, thin=True)]
    for state, (tone, mark) in STATES.items():
        if alike := [(point.rate, value) for point, value in points if point.state == state]:
            rates, values = zip(*alike, strict=True)
            lines.append(Line(state, rates, values, tone, marks=mark, joined=False))
    marks = [Mark(slo.limit, f"limit {find(slo.metric).unit.show(slo.limit)}")]
    if proven is not None:
        marks.append(Mark(proven, f"proven {proven:.4g}/s", vertical=True))
    x = linear_axis([point.rate for point in tried], "requests/s", from_zero=True)
    y = log_axis([*(value for _, value in points), slo.limit], "ms")
    words = metric_in_words(slo.metric)
    caption = words[:1].upper() + words[1:]
    return figure(caption, "ms, mean over the runs at each rate", plot(lines, x, y, f"{caption} by rate", marks=marks))
