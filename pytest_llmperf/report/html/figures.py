"""The charts of one test as HTML: distributions, and a timeline of each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from pytest_llmperf.lazy import numpy as np
from pytest_llmperf.metrics import FAMILIES
from pytest_llmperf.report.html.plot import Axis, Line, linear_axis, log_axis, plot, time_axis
from pytest_llmperf.report.html.timeline import GAPS, rounded, timeline
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.results.requests_file import Requests, decode

if TYPE_CHECKING:
    import numpy.typing as npt

    from pytest_llmperf.model.record import RequestRecord

DISTRIBUTIONS = {"ttft": "Time to first token", "itl": "Gaps between chunks (ITL)"}
# Every second percentile, and the tail where regressions show.
PROBABILITIES = (*(position / 50 for position in range(50)), 0.99, 0.995, 0.999, 1.0)
SHARES = [100 * share for share in PROBABILITIES]
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
            lines += [Line("", quantiles(sample), SHARES, tone, thin=True) for sample in samples]
            pooled = np.concatenate(samples)
            lines.append(Line(f"{name} (n = {len(pooled)}{_share(runs)})", quantiles(pooled), SHARES, tone, tone))
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
