"""Tolerated margins that the noise of a test allows, learnt from its stored sessions and reviewed with them in git.

With a margin below its noise an unchanged test is INCONCLUSIVE in most sessions. An update therefore stores, beside the
sessions, the smallest margin at which an unchanged metric passes in 97.5 % of comparisons. A margin that a test names
stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil

from pytest_llmperf.baseline.copies import BaselineCase
from pytest_llmperf.baseline.update_plan import PlanEntry
from pytest_llmperf.metrics.registry import find, is_metric
from pytest_llmperf.results.baseline import LARGEST_TOLERATED, Baseline, StoredMeasurement
from pytest_llmperf.results.conditions import EMULATED, FieldRules, comparable_sessions, server_kind
from pytest_llmperf.results.session_spread import grouped_sessions, suite_spread
from pytest_llmperf.stats.decision import passing_distance
from pytest_llmperf.stats.priors import SuiteSpread, kind_of, margins_for, prior_for, scale_of
from pytest_llmperf.stats.shift import shift

Files = dict[str, Baseline | None]


def with_learnt_margins(
    files: Mapping[str, Baseline | None], existing: Mapping[str, Baseline], ran: Mapping[str, Sequence[BaselineCase]],
    rules: FieldRules, host: str,
) -> Files:
    """The files of an update with the margins that their sessions allow.

    Args:
        files: path → baseline after the update; None for a removed file.
        existing: path → baseline before the update, of every kind that ran.
        ran: path → what this session measured, with the margins that its tests name.
        rules: which fields may differ.
        host: digest of the name of the host of this session.
    """
    suites: dict[str, list[StoredMeasurement]] = defaultdict(list)
    for path, baseline in {**existing, **files}.items():
        for stored in baseline.measurements.values() if baseline is not None else ():
            suites[path.partition("/")[0]].append(comparable_sessions(stored, rules))
    result: Files = {}
    for path, baseline in files.items():
        named = {case.name: case.fresh.margins for case in ran.get(path, ())}
        result[path] = None if baseline is None else replace(baseline, measurements={
            name: _with_margins(stored, suites[path.partition("/")[0]], rules, host, named[name])
            if name in named else stored
            for name, stored in baseline.measurements.items()
        })
    return result


def _with_margins(
    stored: StoredMeasurement, suite: Sequence[StoredMeasurement], rules: FieldRules, host: str, named: Collection[str]
) -> StoredMeasurement:
    hardware = server_kind(stored.fingerprint).removeprefix(EMULATED)
    spread = suite_spread(suite, hardware, host)
    comparable = comparable_sessions(stored, rules)
    names = [name for name in stored.primaries if is_metric(name) and name not in named]
    margins = {name: _margin(comparable, name, spread, hardware, host) for name in names}
    return replace(stored, tolerated={name: margin for name, margin in margins.items() if margin is not None})


def _margin(
    stored: StoredMeasurement, name: str, suite: SuiteSpread, hardware: str, host: str
) -> float | None:
    """The margin in whole per cent; None if the default is enough, or the noise allows none below 200 %."""
    metric = find(name)
    prior = suite.learnt(prior_for(metric, hardware), kind_of(metric))
    try:
        sessions = grouped_sessions(stored, metric, host)
    except ValueError:  # a value outside the metric's scale
        return None
    if not sessions or not prior.learnt:
        return None
    share = scale_of(metric).change(passing_distance(shift(sessions[-1], sessions, prior)))
    margin = ceil(100 * share) / 100
    return margin if margins_for(metric, hardware).tolerated < margin < LARGEST_TOLERATED else None


def margin_notes(entry: PlanEntry, before: Baseline | None, after: Baseline | None) -> PlanEntry:
    """The entry of a measurement with the margins that the update changes."""
    old, new = (
        baseline.measurements[entry.measurement].tolerated
        if baseline is not None and entry.measurement in baseline.measurements else {} for baseline in (before, after)
    )
    changed = [f"{name} {_text(old.get(name))} → {_text(new.get(name))}" for name in sorted(old.keys() | new.keys())
               if old.get(name) != new.get(name)]
    return replace(entry, reasons=(*entry.reasons, f"tolerated margin learnt from the sessions: {', '.join(changed)}")
                   ) if changed else entry


def _text(margin: float | None) -> str:
    return "default" if margin is None else f"{margin:.0%}"
