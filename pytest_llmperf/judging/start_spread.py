"""Upper bounds of the between-start sd from stored sessions.

Each session has its own server start, on a different day and often on a different host. So the sd between sessions is
at least as large as the sd between starts of one session. Stored sessions can therefore only lower the default of
`judging.ratios.start_sd_prior`, and never below the prior sd between sessions. Error rates:
`scripts/simulate_verdicts.py starts`
and docs/evidence/claims.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import log

from pytest_llmperf.judging.ratios import start_sd_prior
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.results.baseline import StoredMeasurement
from pytest_llmperf.stats.decision import ENOUGH_SESSIONS
from pytest_llmperf.stats.noise_estimate import estimate_noise, start_sd_factor
from pytest_llmperf.stats.priors import prior_for
from pytest_llmperf.stats.ratio import StartSd


def noisiest(stored: Iterable[StoredMeasurement], metric: str, server: str, whose: str) -> StartSd | None:
    """The largest of what each measurement's sessions show, the default if that is larger still.

    None if no measurement has enough sessions.

    Args:
        stored: the measurements.
        metric: whose between-start sd is wanted.
        server: hardware kind of the machine that serves.
        whose: the sessions' owner, for the reader.
    """
    shown = [spread for measurement in stored if (spread := stored_start_sd(measurement, metric)) is not None]
    if not shown:
        return None
    sd, sessions, stored_sd = max(shown)
    default, least = start_sd_prior(find(metric), server), prior_for(find(metric), server).session_sd
    if max(sd, least) >= default.value:
        start_sd = default
    elif sd < least:
        start_sd = StartSd(least, f"the least that is assumed; {sessions} stored sessions {whose} show less")
    else:
        start_sd = StartSd(sd, f"from {sessions} stored sessions {whose}")
    return replace(start_sd, sessions=sessions, stored_sd=max(stored_sd, least))


def stored_start_sd(stored: StoredMeasurement, metric: str) -> tuple[float, int, float] | None:
    """The sd of a metric's logarithm between sessions, widened because so few show it, how many sessions there are, and
    the sd without the widening.

    None if fewer than three sessions have the metric, or they share no seeds.
    """
    values = [(session.runs, session.values(metric)) for session in stored.sessions]
    sessions = [[(seed, log(value)) for (seed, _), value in zip(runs, of_runs, strict=True) if value and value > 0]
                for runs, of_runs in values]
    usable_sessions = [session for session in sessions if session]
    if len(usable_sessions) < ENOUGH_SESSIONS:
        return None
    try:
        level_sd = estimate_noise(usable_sessions).level_sd
    except ValueError:
        return None
    return level_sd * start_sd_factor(len(usable_sessions) - 1), len(usable_sessions), level_sd
