"""Judges SLOs and ratios of the phases of a measurement with events."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.claim_judge import invalid_results, judge_slos
from pytest_llmperf.judging.compared_sides import judge_ratios
from pytest_llmperf.judging.validity import judged_by_comparison, judged_by_requirements
from pytest_llmperf.metrics.recovery import RECOVERY
from pytest_llmperf.model.event import PHASES
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.phases import has_phases, phase
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.parse import parse_ratio

FAILED = {"error_rate"}


def judge_phases(
    measurement: Measurement, slos: Sequence[Slo], ratios: Sequence[str], settings: Settings, failed: Collection[str]
) -> list[CheckResult]:
    """One result per SLO and ratio, or one ERROR if runs are invalid. Each phase is judged as a measurement.

    Failed requests of a phase need an error rate of this phase or of the whole run, if a text names the phase or the
    whole run. A limit of recovery_time allows failed requests during the events.

    Args:
        measurement: of any kind; a text that names a phase needs events.
        slos: of whole runs or of a phase.
        ratios: of two phases, with a limit or without one.
        settings, failed: as of `judge_slos`.

    Raises:
        SloError: a ratio cannot be read.
        SpecError: fewer than two runs have a ratio.
    """
    if not has_phases(measurement):
        return judge_slos(measurement, slos, settings, failed)
    whole = judged_by_requirements(slo for slo in slos if not slo.phase)
    judged = {name: judged_by_requirements(slo for slo in slos if slo.phase == name) for name in PHASES}
    for text in ratios:
        ratio, sides = parse_ratio(text, PHASES)
        for name in sides:
            judged[name] |= judged_by_comparison([ratio.metric])
    parts = {name: phase(measurement, name) for name in PHASES if whole or judged[name]}
    recovered = whole & {RECOVERY}
    errors = invalid_results([("", measurement, whole | FAILED)], settings) or invalid_results(
        [(name, part, judged[name] | (whole if name == "during" else whole - recovered))
         for name, part in parts.items()], settings)
    if errors:
        return errors
    results: list[CheckResult] = []
    for name, part in {"": measurement, **parts}.items():
        if named := [slo for slo in slos if slo.phase == name]:
            results += judge_slos(part, named, settings, failed, judged=FAILED)
    return results + (judge_ratios(ratios, parts, settings, failed, judged=FAILED) if ratios else [])
