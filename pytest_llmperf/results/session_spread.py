"""The spread between the stored sessions of a suite, from its baselines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_llmperf.metrics.registry import Metric, find, is_metric
from pytest_llmperf.results.baseline import StoredMeasurement, StoredSession
from pytest_llmperf.stats.priors import (
    Kind,
    Prior,
    SuiteSpread,
    kind_of,
    prior_for,
    scale_of,
    session_levels,
    worse_when_larger,
)
from pytest_llmperf.stats.shift import SeededRun, sessions_by_host


def suite_spread(measurements: Iterable[StoredMeasurement], hardware: str, host: str) -> SuiteSpread:
    """The spread of the primary metrics over the stored sessions.

    Args:
        measurements: every measurement of the suite, each with the sessions that a comparison would use.
        hardware: kind of the machine that serves.
        host: digest of this host's name: on a new host, the sessions of another host count as one.
    """
    return SuiteSpread.of(each for stored in measurements for each in _levels(stored, hardware, host))


def _levels(stored: StoredMeasurement, hardware: str, host: str) -> Iterator[tuple[Kind, Prior, list[float]]]:
    for metric in map(find, filter(is_metric, stored.primaries)):
        try:
            grouped = grouped_sessions(stored, metric, host)
        except ValueError:  # the comparison of this metric says so
            continue
        yield kind_of(metric), prior_for(metric, hardware), session_levels(grouped)


def grouped_sessions(stored: StoredMeasurement, metric: Metric, host: str) -> list[list[SeededRun]]:
    """The runs of each stored session that has the metric; on a new host, the runs of each other host.

    Raises:
        ValueError: a value is outside the metric's scale.
    """
    sessions = sessions_with(stored, metric.name)
    runs = [stored_runs(session, metric) for session in sessions]
    return sessions_by_host(runs, [session.host for session in sessions], host)


def sessions_with(stored: StoredMeasurement, name: str) -> list[StoredSession]:
    """Stored sessions that have the metric in all runs. Older sessions may lack a metric that was added later."""
    return [session for session in stored.sessions if all(value is not None for value in session.values(name))]


def stored_runs(session: StoredSession, metric: Metric) -> list[SeededRun]:
    """Seed and value of each run, on the metric's scale.

    Raises:
        ValueError: a value is missing or is outside the metric's scale.
    """
    return readings([seed for seed, _ in session.runs], session.values(metric.name), metric)


def readings(seeds: Sequence[int], values: Sequence[float | None], metric: Metric) -> list[SeededRun]:
    """Seed and value of each run, on the metric's scale.

    Raises:
        ValueError: a value is missing or is outside the metric's scale.
    """
    scale, larger_is_worse = scale_of(metric), worse_when_larger(metric)
    return [
        (seed, scale.read(value, worse_when_larger=larger_is_worse)) for seed, value in zip(seeds, values, strict=True)
    ]
