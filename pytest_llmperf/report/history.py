"""The history of metrics as Markdown: the changes that were found, then every series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.report.comment import cell, code
from pytest_llmperf.results.ended_test import short_id
from pytest_llmperf.results.history import FoundChange, Series
from pytest_llmperf.results.levels import change_for_the_worse
from pytest_llmperf.stats.change_points import FEWEST_DF
from pytest_llmperf.stats.priors import scale_of, worse_when_larger

MISSING = "–"
#: Most series that are listed session by session.
MOST_LISTED = 2
RULE = ("A change is found from its second session on, by a t test on the sessions of one host. Simulated: at most one "
        "false alarm in 1,000 weeks of five sessions, for normal noise.")


def markdown(series: Sequence[Series], notes: Sequence[str]) -> str:
    """Two tables and the notes."""
    return "\n".join(_lines(series, notes)) + "\n"


def newest_first(series: Sequence[Series]) -> list[tuple[Series, FoundChange]]:
    """Every change of every series."""
    return sorted(((each, change) for each in series for change in each.changes),
                  key=lambda pair: pair[1].session.id, reverse=True)


def series_text(series: Series) -> str:
    """"test_x [cached]"."""
    label = f" [{series.name.measurement}]" if series.name.measurement else ""
    return f"{short_id(series.name.test)}{label}"


def change_with_interval(series: Series, found: FoundChange) -> str:
    """"+3.1 % (95 % CI +2.2 % … +4.0 %), worse"."""
    metric, point = series.name.metric, found.point
    low, high = (point.low, point.high) if worse_when_larger(find(metric)) else (point.high, point.low)
    shift, low_text, high_text = (change_for_the_worse(metric, distance) for distance in (point.shift, low, high))
    return f"{shift} (95 % CI {low_text} … {high_text}), {'worse' if point.shift > 0 else 'better'}"


def level_text(series: Series, first: int, end: int) -> str:
    """Mean level of some sessions in the metric's unit."""
    metric = find(series.name.metric)
    reading = sum(series.levels[first:end]) / (end - first)
    return metric.unit.show(scale_of(metric).in_unit(reading, worse_when_larger=worse_when_larger(metric)))


def spans(series: Series) -> list[tuple[int, int]]:
    """First session and end of each level, oldest first."""
    return list(pairwise([0, *(found.point.at for found in series.changes), len(series.sessions)]))


def power_text(series: Series) -> str:
    """How many sessions find +3 %."""
    if series.needed is not None:
        return f"{series.needed} sessions"
    return "too noisy" if len(series.sessions) > FEWEST_DF + 2 else f"needs {FEWEST_DF + 2} sessions first"


def _lines(series: Sequence[Series], notes: Sequence[str]) -> Iterator[str]:
    found = newest_first(series)
    yield f"## History: {len(found)} changes in {len(series)} series"
    for note in notes:
        yield f"\n> {cell(note)}"
    if found:
        yield "\n| since | test | metric | kind, host | level | change | what changed beside it |"
        yield "|---|---|---|---|---:|---|---|"
    for each, one in found:
        levels = next(f"{level_text(each, *before)} → {level_text(each, *after)}"
                      for before, after in pairwise(spans(each)) if after[0] == one.point.at)
        yield (f"| {cell(one.session.date)} | {_name_cells(each)} | {cell(levels)} | "
               f"{cell(change_with_interval(each, one))} | {cell(one.cause)} |")
    yield "\n| test | metric | kind, host | sessions | level now | sd of a session | +3 % is found after |"
    yield "|---|---|---|---:|---:|---:|---|"
    for each in series:
        sd = MISSING if each.sd is None else f"{100 * each.sd:.2f} %"
        yield (f"| {_name_cells(each)} | {len(each.sessions)} | {cell(level_text(each, *spans(each)[-1]))} | {sd} | "
               f"{power_text(each)} |")
    if len(series) <= MOST_LISTED:
        for each in series:
            yield from _sessions(each)
    yield f"\n<sub>{RULE}</sub>"


def _name_cells(series: Series) -> str:
    place = cell(f"{series.name.kind}, {series.name.host}")
    return f"{code(series_text(series))} | {code(series.name.metric)} | {place}"


def _sessions(series: Series) -> Iterator[str]:
    """A row per session, with its distance from the first one."""
    metric = series.name.metric
    yield f"\n### {code(series_text(series))}, {code(metric)}, {cell(f'{series.name.kind}, {series.name.host}')}\n"
    yield "| date | session | commit | level | from the first | |"
    yield "|---|---|---|---:|---:|---|"
    starts = {found.point.at for found in series.changes}
    for at, session in enumerate(series.sessions):
        distance = change_for_the_worse(metric, series.levels[at] - series.levels[0])
        note = ", ".join(filter(None, ("new level" if at in starts else "", session.note)))
        yield (f"| {cell(session.date)} | {cell(session.id)} | {cell(session.commit)} | "
               f"{level_text(series, at, at + 1)} | {distance} | {cell(note)} |")
