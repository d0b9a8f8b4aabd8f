"""The charts of one test as HTML: distributions, and a timeline of each run with its telemetry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.metrics import FAMILIES
from pytest_llmperf.report.html.plot import DASHES, Axis, Line, linear_axis, log_axis, plot, time_axis
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.requests_file import Requests, decode, start_ns

if TYPE_CHECKING:
    import numpy.typing as npt

    from pytest_llmperf.model.record import RequestRecord

Column = Sequence[float | None]
#: Suffix of a column's name → unit, and what its values are divided by.
UNITS = {
    "mhz": ("MHz", 1.0), "w": ("W", 1.0), "c": ("°C", 1.0), "pct": ("%", 1.0), "bytes": ("GiB", 2.0**30),
    "ms": ("ms", 1.0), "s": ("s", 1.0), "j": ("J", 1.0), "tokens": ("tokens", 1.0),
}  # fmt: skip
SHARES = ("usage", "share")
TIME, DEVICE = "at_ns", "device"
NOT_DRAWN = (TIME, DEVICE, "throttle_reasons")  # a bit mask has no height
MOST_POINTS = 300
SOURCES = {"server": "server", "gpu": "GPU"}


def telemetry_lines(telemetry: Mapping[str, Mapping[str, Column]], side: str, tone: int) -> dict[str, list[Line]]:
    """Title such as "GPU: power, W" → lines; columns of one unit share a row.

    A column that is not as long as `at_ns`, or has no number, is not drawn.

    Args:
        side: label of the measurement, with which each line's name begins.
        tone: number of the lines' colour.
    """
    rows: dict[tuple[str, str], tuple[list[Line], dict[str, int]]] = {}
    for source, columns in telemetry.items():
        for device, table in _by_device(columns):
            stamps_ns = table.get(TIME, ())
            for column, values in table.items():
                if column in NOT_DRAWN or len(values) != len(stamps_ns) or all(value is None for value in values):
                    continue
                words, unit, scale = words_and_unit(column)
                lines, dash_by_words = rows.setdefault((source, unit), ([], {}))
                dash = dash_by_words.setdefault(words, len(dash_by_words))
                lines.append(Line(f"{side} {words}{device}", _thinned(stamps_ns, 1e9), _thinned(values, scale), tone,
                                  dash))
    return {_title(*key, list(dash_by_words)): lines for key, (lines, dash_by_words) in rows.items()}


def words_and_unit(column: str) -> tuple[str, str, float]:
    """The words and the unit in the name of a column, and the divisor that converts its values to this unit.

    >>> words_and_unit("sm_clock_mhz"), words_and_unit("kv_usage"), words_and_unit("running")
    (('sm clock', 'MHz', 1.0), ('kv usage', 'share', 1.0), ('running', '', 1.0))
    """
    head, _, last = column.rpartition("_")
    if last in UNITS and head:
        return head.replace("_", " "), *UNITS[last]
    return column.replace("_", " "), "share" if last in SHARES else "", 1.0


def _by_device(columns: Mapping[str, Column]) -> Iterator[tuple[str, Mapping[str, Column]]]:
    """The table of each device, named where there are several."""
    devices = columns.get(DEVICE, ())
    device_numbers = sorted({int(device) for device in devices if device is not None})
    if len(device_numbers) < 2:
        yield "", columns
        return
    for device in device_numbers:
        chosen = [position for position, sample_device in enumerate(devices) if sample_device == device]
        table = {name: [values[at] for at in chosen] for name, values in columns.items() if len(values) == len(devices)}
        yield f", GPU {device}", table


def _title(source: str, unit: str, names: Sequence[str]) -> str:
    dashes = (DASHES[number % len(DASHES)] for number in range(len(names)))
    what = ", ".join(f"{name} ({dash})" if dash else name for name, dash in zip(names, dashes, strict=True))
    return f"{SOURCES.get(source, source)}: {what}" + (f", {unit}" if unit else "")


def _thinned(values: Column, scale: float) -> list[float | None]:
    step = -(-len(values) // MOST_POINTS)
    return [None if value is None else float(f"{value / scale:.5g}") for value in values[::step]]


GAPS = "gap, ms"
BINS = 240
DIGITS = 4


def timeline(run: Run, requests: Requests, side: str, tone: int, *, median: bool = True) -> dict[str, list[Line]]:
    """Title of a row → its lines.

    Args:
        side: label of the measurement, with which each line's name begins.
        tone: number of the lines' colour.
        median: whether the row of gaps has the median beside the largest.
    """
    gaps = _gaps(requests.records, side, tone)
    return {GAPS: gaps if median else gaps[:1], "requests in flight": _in_flight(requests, side, tone),
            **telemetry_lines(run.telemetry, side, tone)}


def _gaps(records: Sequence[RequestRecord], side: str, tone: int) -> list[Line]:
    """Per slice of the run, when it was (s) and the largest and median gap that ended in it (ms)."""
    origin_ns = start_ns(records)
    arrivals_ns = [np.array(record.arrivals_ns) - origin_ns for record in records if len(record.arrivals_ns) > 1]
    if not arrivals_ns:
        return []
    ends_ns = np.concatenate([stamps_ns[1:] for stamps_ns in arrivals_ns])
    gaps_ns = np.concatenate([np.diff(stamps_ns) for stamps_ns in arrivals_ns])
    order = np.argsort(ends_ns, kind="stable")
    at_ns, gap_ns = ends_ns[order].astype(float), gaps_ns[order].astype(float)
    width_ns = max(at_ns[-1] / BINS, 1.0)
    slices, first = np.unique(np.minimum(at_ns // width_ns, BINS - 1), return_index=True)
    groups = np.split(gap_ns / 1e6, first[1:])
    time_s = rounded((slices + 0.5) * width_ns / 1e9)
    largest, median = np.maximum.reduceat(gap_ns / 1e6, first), [float(np.median(group)) for group in groups]
    return [Line(f"{side} largest", time_s, rounded(largest), tone),
            Line(f"{side} median", time_s, rounded(median), tone, 1)]


def _in_flight(requests: Requests, side: str, tone: int) -> list[Line]:
    """How many requests were sent and not yet ended; times count from the first intended send, as in the file."""
    if not requests.flights_ns:
        return []
    begun, ends = np.sort(np.array(requests.flights_ns).T)
    at_ns = np.linspace(0, ends[-1], BINS)
    count = np.searchsorted(begun, at_ns, "right") - np.searchsorted(ends, at_ns, "right")
    return [Line(side, rounded(at_ns / 1e9), [int(value) for value in count], tone, step=True)]


def rounded(values: Iterable[float]) -> list[float]:
    """Four significant digits: more is not seen in a chart."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


DISTRIBUTIONS = {"ttft": "Time to first token", "itl": "Gaps between chunks (ITL)"}
# Every second percentile, and the tail where regressions show.
PROBABILITIES = (*(position / 50 for position in range(50)), 0.99, 0.995, 0.999, 1.0)
PERCENTS = [100 * share for share in PROBABILITIES]
PERCENT = Axis(0, 101, tuple((value, str(value)) for value in (0, 25, 50, 75, 100)), "% of values")
#: More sides than this draw only the largest gaps.
MOST_MEDIANS = 3


@dataclass(frozen=True, slots=True)
class _DrawnRun:
    """What the charts show of a run. The records of a run take ten times the memory, so they are read run by run."""

    seed: int
    samples: Mapping[str, npt.NDArray[np.float64]]
    rows: Mapping[str, Sequence[Line]]
    stored: int
    left_out: int


def figure(caption: str, note: str, content: str, *, wide: bool = False) -> str:
    """A chart with its caption.

    Args:
        note: how to read it, beside the caption.
        wide: whether it takes the whole width of the page.
    """
    small = f"<small>{escape(note)}</small>" if note else ""
    return (f'<figure{" class=wide" if wide else ""}><figcaption>{escape(caption)}{small}</figcaption>{content}'
            "</figure>")


def figures(measurements: Sequence[Measurement], names: Sequence[str]) -> str:
    """Distributions and timelines of all measurements of a test.

    Args:
        names: the label of each measurement.

    Raises:
        BaselineError: a file of requests cannot be read.
    """
    sides = []
    for tone, (name, measurement) in enumerate(zip(names, measurements, strict=True)):
        present = [sum(len(each.runs) > position for each in measurements) for position in range(len(measurement.runs))]
        sides.append([_drawn(run, name, tone, median=count <= MOST_MEDIANS)
                      for run, count in zip(measurement.runs, present, strict=True)])
    distributions = "".join(_distribution(family, names, sides) for family in DISTRIBUTIONS)
    return distributions + _timelines(list(zip_longest(*sides)))


def _drawn(run: Run, name: str, tone: int, *, median: bool) -> _DrawnRun:
    requests = Requests() if run.requests is None else decode(run.requests)
    samples = {family: _samples_ms(family, requests.records) for family in DISTRIBUTIONS}
    rows = timeline(run, requests, name, tone, median=median)
    return _DrawnRun(run.seed, samples, rows, len(requests.records), requests.left_out)


def _samples_ms(family: str, records: Sequence[RequestRecord]) -> npt.NDArray[np.float64]:
    taken_ns = [FAMILIES[family].take(record) or () for record in records if record.ok]
    return np.fromiter(chain.from_iterable(taken_ns), dtype=float) / 1e6


def _distribution(family: str, names: Sequence[str], sides: Sequence[Sequence[_DrawnRun]]) -> str:
    """Quantiles of each run, and of all runs of a side together, in ms; "" without any value."""
    lines: list[Line] = []
    for tone, (name, runs) in enumerate(zip(names, sides, strict=True)):
        samples = [run.samples[family] for run in runs if len(run.samples[family])]
        if samples:
            lines += [Line("", quantiles(sample), PERCENTS, tone, thin=True) for sample in samples]
            pooled = np.concatenate(samples)
            lines.append(Line(f"{name} (n = {len(pooled)}{_share(runs)})", quantiles(pooled), PERCENTS, tone, tone))
    if not lines:
        return ""
    x = log_axis([value for line in lines if line.name for value in line.x], "ms")
    note = "share of values up to x" + ("; thin: each run" if len(lines) > len(sides) else "")
    title = DISTRIBUTIONS[family]
    return figure(title, note, plot(lines, x, PERCENT, f"Distribution of the {title}"))


def _share(runs: Sequence[_DrawnRun]) -> str:
    stored, left_out = sum(run.stored for run in runs), sum(run.left_out for run in runs)
    return f", of {stored} of {stored + left_out} requests" if left_out else ""


def quantiles(sample: npt.NDArray[np.float64]) -> list[float]:
    """The values at `PROBABILITIES`."""
    return rounded(np.quantile(sample, PROBABILITIES))


def _timelines(runs_by_position: Sequence[Sequence[_DrawnRun | None]]) -> str:
    """One timeline per run number; the page shows the timeline that a reader selects."""
    present = [[run for run in runs if run is not None] for runs in runs_by_position]
    if not any(lines for runs in present for run in runs for lines in run.rows.values()):
        return ""
    options = "".join(f"<option>run {number}, seed {runs[0].seed}</option>" for number, runs in enumerate(present, 1))
    timelines = "".join(f'<div class="run"{" hidden" if position else ""}>{"".join(_rows(runs))}</div>'
                        for position, runs in enumerate(present))
    select = f'<select aria-label="Run">{options}</select>' if len(present) > 1 else ""
    return figure("Timeline", "equal seeds: the same requests at the same times", select + timelines, wide=True)


def _rows(runs: Sequence[_DrawnRun]) -> Iterator[str]:
    titles = dict.fromkeys(title for run in runs for title in run.rows)
    rows = {title: [line for run in runs for line in run.rows.get(title, ())] for title in titles}
    x = time_axis([at for lines in rows.values() for line in lines for at in line.x if at is not None],
                  "s after the first intended send")
    for title, lines in rows.items():
        if lines:
            values = [value for line in lines for value in line.y]
            y = log_axis(values, "") if title == GAPS else linear_axis(values, from_zero=True)
            yield f'<p class="row">{escape(title)}</p>{plot(lines, x, y, title, low=True)}'
