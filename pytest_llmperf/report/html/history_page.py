"""The history of metrics as one HTML file: a small chart per series; each session links to its run. No script."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from pytest_llmperf.errors import escaped
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.report.history import (
    RULE,
    change_with_interval,
    level_text,
    newest_first,
    power_text,
    series_text,
    spans,
)
from pytest_llmperf.report.html import page_environment, write_page
from pytest_llmperf.report.html.plot import Axis, Line, linear_axis, plot
from pytest_llmperf.results.history import Series, Session
from pytest_llmperf.stats.priors import scale_of, worse_when_larger

FILE = "history.html"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MOST_DATES = 3


def write_history_page(series: Sequence[Series], notes: Sequence[str], out: Path) -> Path:
    """Write `out/history.html`, whole or not at all.

    Raises:
        UsageError: the page cannot be written.
    """
    by_test: dict[str, list[Series]] = {}
    for each in sorted(series, key=lambda each: (not each.changes, each.name)):
        by_test.setdefault(series_text(each), []).append(each)
    text = escaped(page_environment().get_template("history.html.j2").render(
        policy=POLICY, found=newest_first(series), count=len(series), notes=notes, by_test=by_test, rule=RULE,
        change_text=change_with_interval, power=power_text, level=level_text, spans=spans, name=series_text,
        chart=lambda each: _chart(each, out), anchor=lambda each: f"series-{series.index(each)}",
    ))
    return write_page(out / FILE, text)


def _chart(series: Series, out: Path) -> str:
    """Level of each session, the mean of each span of sessions, and a link at each session that has a page."""
    metric = find(series.name.metric)
    scale, larger = scale_of(metric), worse_when_larger(metric)
    factor = 100 if metric.unit.value == "%" else 1
    values = [float(f"{factor * scale.in_unit(level, worse_when_larger=larger):.5g}") for level in series.levels]
    places = [float(place) for place in range(len(values))]
    means = [sum(values[first:end]) / (end - first) for first, end in spans(series) for _ in range(end - first)]
    y = linear_axis(values, metric.unit.value)
    x = Axis(-0.5, len(values) - 0.5, _dates(series.sessions))
    lines = [Line("sessions", places, values, 0, marks="round", joined=False),
             *(Line("mean level", places[first:end], means[first:end], 1, joined=True)
               for first, end in spans(series))]
    over = "".join(
        f'<a class="dot" href="{escape(_href(session.link, out))}" title="{escape(_title(session))}" '
        f'style="left:{100 * x.share(place):.4g}%;bottom:{100 * y.share(value):.4g}%"></a>'
        for place, value, session in zip(places, values, series.sessions, strict=True) if session.link)
    return plot(lines, x, y, f"History of {series.name.metric}", low=True, over=over, keys=False)


def _href(link: str, out: Path) -> str:
    return quote(Path(os.path.relpath(link, out.absolute())).as_posix())


def _title(session: Session) -> str:
    return f"{session.date} {session.id} {session.commit}"


def _dates(sessions: Sequence[Session]) -> tuple[tuple[float, str], ...]:
    every = max(1, -(-len(sessions) // MOST_DATES))
    return tuple((float(at), sessions[at].date) for at in range(every // 2, len(sessions), every))
