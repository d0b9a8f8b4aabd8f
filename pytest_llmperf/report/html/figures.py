"""The charts of one test as HTML: distributions, a timeline of each run, and the stored baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import Any

from pytest_llmperf.report.html.charts import PROBABILITIES
from pytest_llmperf.report.html.plot import Axis, Line, Mark, linear_axis, log_axis, plot, time_axis

FAMILIES = {"ttft": "Time to first token", "itl": "Gaps between chunks (ITL)"}
PERCENT = Axis(0, 101, tuple((value, str(value)) for value in (0, 25, 50, 75, 100)), "% of values")
#: More sides than this draw only the largest gaps.
MOST_MEDIANS = 3
MOST_SESSION_LABELS = 2
Numbers = Mapping[str, Any]


def figure(caption: str, note: str, content: str, *, wide: bool = False) -> str:
    """A chart with its caption.

    Args:
        note: how to read it, beside the caption.
        wide: whether it takes the whole width of the page.
    """
    small = f"<small>{escape(note)}</small>" if note else ""
    return (f'<figure{" class=wide" if wide else ""}><figcaption>{escape(caption)}{small}</figcaption>{content}'
            "</figure>")


def figures(drawn: Numbers) -> str:
    """All charts of a test.

    Args:
        drawn: the numbers, from `charts` and `history`.
    """
    return "".join(_figures(drawn))


def _figures(drawn: Numbers) -> Iterator[str]:
    for family, sides in drawn.get("distributions", {}).items():
        if any(side["n"] for side in sides):
            yield _distribution(family, sides)
    if any(_sampled(run) for side in drawn.get("timelines", ()) for run in side["runs"]):
        yield _timelines(drawn["timelines"])
    for baseline in drawn.get("history", ()):
        yield _history(baseline)


def _distribution(family: str, sides: Sequence[Numbers]) -> str:
    shares = [100 * share for share in PROBABILITIES]
    lines = []
    for number, side in enumerate(sides):
        part = f", of {side['of']}" if side["of"] else ""
        lines += [Line("", run, shares, number, thin=True) for run in side["runs"] if run]
        if side["pooled"]:
            name = f"{side['side']} (n = {side['n']}{part})"
            lines.append(Line(name, side["pooled"], shares, number, number))
    x = log_axis([value for side in sides for value in side["pooled"]], "ms")
    note = "share of values up to x" + ("; thin: each run" if len(lines) > len(sides) else "")
    return figure(FAMILIES[family], note, plot(lines, x, PERCENT, f"Distribution of the {FAMILIES[family]}"))


def _sampled(run: Numbers) -> bool:
    return bool(run["in_flight"]["time_s"] or run["telemetry"])


def _timelines(sides: Sequence[Numbers]) -> str:
    """One timeline per run number; the page shows the timeline that a reader selects."""
    names = [side["side"] for side in sides]
    runs_by_position = list(zip_longest(*(side["runs"] for side in sides)))
    options, timelines = "", ""
    for position, runs in enumerate(runs_by_position):
        present = [(number, name, run) for number, (name, run) in enumerate(zip(names, runs, strict=True)) if run]
        options += f"<option>run {position + 1}, seed {present[0][2]['seed']}</option>"
        timelines += f'<div class="run"{" hidden" if position else ""}>{"".join(_rows(present))}</div>'
    select = f'<select aria-label="Run">{options}</select>' if len(runs_by_position) > 1 else ""
    return figure("Timeline", "equal seeds: the same requests at the same times", select + timelines, wide=True)


def _rows(present: Sequence[tuple[int, str, Numbers]]) -> Iterator[str]:
    """Rows of one run number of all sides: gaps, requests in flight, then the samples."""
    rows = {"gap, ms": list(_gap_lines(present)), "requests in flight": [
        Line(name, run["in_flight"]["time_s"], run["in_flight"]["requests"], number, step=True)
        for number, name, run in present if run["in_flight"]["time_s"]
    ]}  # fmt: skip
    for number, name, run in present:
        for sampled in run["telemetry"]:
            rows.setdefault(sampled["title"], []).extend(
                Line(f"{name} {line['name']}", line["time_s"], line["values"], number, line["style"])
                for line in sampled["lines"]
            )
    seconds = [at for lines in rows.values() for line in lines for at in line.x if at is not None]
    x = time_axis(seconds, "s after the first intended send")
    for title, lines in rows.items():
        if any(line.x for line in lines):
            values = [value for line in lines for value in line.y]
            y = log_axis(values, "") if title.startswith("gap") else linear_axis(values, from_zero=True)
            yield f'<p class="row">{escape(title)}</p>{plot(lines, x, y, title, low=True)}'


def _gap_lines(present: Sequence[tuple[int, str, Numbers]]) -> Iterator[Line]:
    for number, name, run in present:
        gaps = run["gaps"]
        if not gaps["time_s"]:
            continue
        yield Line(f"{name} largest", gaps["time_s"], gaps["largest"], number)
        if len(present) <= MOST_MEDIANS:
            yield Line(f"{name} median", gaps["time_s"], gaps["median"], number, 1)


def _history(baseline: Numbers) -> str:
    """The values of each stored session, then of this run."""
    sessions = baseline["sessions"]
    groups = [session["values"] for session in sessions]
    stored = Line("stored runs", *_columns(groups), 0, marks="round", joined=False)
    today = Line("this run", *_columns([[]] * len(groups) + [baseline["today"]]), 1, marks="square", joined=False)
    every = -(-len(sessions) // MOST_SESSION_LABELS)
    dates = [(place, session["label"]) for place, session in enumerate(sessions) if place % every == 0]
    if dates and len(sessions) - dates[-1][0] <= every / 2:
        dates.pop()
    x = Axis(-0.5, len(sessions) + 0.5, (*dates, (len(sessions), "this run")))
    levels = {"baseline": baseline["before"], "tolerated": baseline["limit"]}
    marks = [Mark(value, name) for name, value in levels.items() if value is not None]
    y = linear_axis([*stored.y, *today.y, *levels.values()], baseline["unit"])
    chart = plot([stored, today], x, y, f"Baseline of {baseline['metric']}", marks=marks)
    return figure(f"Baseline of {baseline['metric']}", f"{baseline['side']}, {baseline['unit']}; a mark a run", chart)


def _columns(groups: Sequence[Sequence[float | None]]) -> tuple[list[float | None], list[float | None]]:
    points = [(float(place), value) for place, group in enumerate(groups) for value in group]
    return [place for place, _ in points], [value for _, value in points]
