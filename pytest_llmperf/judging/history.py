"""Change points of series of sessions, and whether the build or the host changed at each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import log1p
from statistics import fmean, median

from pytest_llmperf.metrics.registry import find
from pytest_llmperf.results.history import FoundChange, Series, SeriesName, Session
from pytest_llmperf.results.session_spread import readings
from pytest_llmperf.stats.change_points import ChangePoint, changes
from pytest_llmperf.stats.priors import session_levels

#: Change for the worse for which a history states how many sessions find it.
STATED_CHANGE = 0.03
#: A value of the canary that moved by more than this share shows another speed of the host.
CANARY_MOVED = 0.05
#: Of the series of a host, the share that must change in the same session for the host to be the cause.
MOST_SERIES = 0.5
FEWEST_SERIES = 3


def judged(sessions_by_name: Mapping[SeriesName, Sequence[Session]]) -> list[Series]:
    """Every series with its change points, sorted by name.

    Sessions without a value, or with a value that the metric's scale does not have, are left out.
    """
    series = [each for name, sessions in sorted(sessions_by_name.items()) if (each := _series(name, sessions)).levels]
    found = [changes(each.levels) for each in series]
    changed = Counter(_on_host(each, point.at) for each, of in zip(series, found, strict=True) for point in of.points)
    measured = Counter(_on_host(each, at) for each in series for at in range(len(each.sessions)))
    return [replace(each, sd=of.sd, needed=of.sessions_needed(log1p(STATED_CHANGE)), changes=tuple(
        _change(each, point, changed[_on_host(each, point.at)], measured[_on_host(each, point.at)])
        for point in of.points)) for each, of in zip(series, found, strict=True)]


def _series(name: SeriesName, sessions: Sequence[Session]) -> Series:
    metric, kept, runs = find(name.metric), list[Session](), []
    for session in sorted(sessions, key=lambda session: session.id):
        present = [(seed, value) for seed, value in zip(session.seeds, session.runs, strict=True) if value is not None]
        if present:
            with suppress(ValueError):  # infinite, or 0 where its logarithm is needed
                runs.append(readings([seed for seed, _ in present], [value for _, value in present], metric))
                kept.append(session)
    levels = session_levels(runs) or [fmean(value for _, value in each) for each in runs]
    return Series(name, tuple(kept), levels)


def _on_host(series: Series, at: int) -> tuple[str, str, str]:
    """Kind, host and session: what a session of several series has in common."""
    return series.name.kind, series.name.host, series.sessions[at].id


def _change(series: Series, point: ChangePoint, changed: int, measured: int) -> FoundChange:
    """A change with the reason for it.

    Args:
        changed, measured: how many series of the host change in this session, and how many have this session.
    """
    before, after = series.sessions[point.at - 1], series.sessions[point.at]
    build = list(_build_changes(before, after))
    host = list(_canary_changes(series.sessions[:point.at], series.sessions[point.at:point.found + 1]))
    if not build and measured >= FEWEST_SERIES and changed > MOST_SERIES * measured:
        host.append(f"{changed} of {measured} series of this host change here")
    texts = [f"build: {', '.join(build)}"] if build else []
    texts += [f"host: {', '.join(host)}"] if host else []
    commits = f": commit {before.commit or 'unknown'} → {after.commit or 'unknown'}"
    commit = commits if before.commit != after.commit else ""
    return FoundChange(point, after, "; ".join(texts) or f"no recorded change of build or host{commit}")


def _build_changes(before: Session, after: Session) -> Iterator[str]:
    for name in sorted(before.build.keys() & after.build.keys()):
        if before.build[name] != after.build[name]:
            yield f"{name.removeprefix('engine.')} {before.build[name]} → {after.build[name]}"


def _canary_changes(before: Sequence[Session], after: Sequence[Session]) -> Iterator[str]:
    """Values of the canary that moved."""
    for name in sorted({name for session in after for name in session.canary}):
        sides = [[session.canary[name] for session in side if session.canary.get(name)] for side in (before, after)]
        if all(sides):
            was, now = map(median, sides)
            if abs(now / was - 1) > CANARY_MOVED:
                yield f"{name} {was:.4g} → {now:.4g}"
