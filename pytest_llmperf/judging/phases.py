"""Cuts a measurement with events into phases, and judges their SLOs and ratios."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.judging.claim_judge import invalid_results, judge_slos
from pytest_llmperf.judging.compared_sides import judge_ratios
from pytest_llmperf.judging.validity import judged_by_comparison, judged_by_requirements
from pytest_llmperf.metrics import measure
from pytest_llmperf.metrics.recovery import RECOVERY
from pytest_llmperf.model.event import DISTURBED_FROM, DISTURBED_UNTIL, PHASES
from pytest_llmperf.model.record import RequestRecord, RunRecords
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.measurement import Measurement, Run
from pytest_llmperf.slo.model import Slo
from pytest_llmperf.slo.parse import parse_ratio


def has_phases(measurement: Measurement) -> bool:
    """Whether events happened in every run."""
    return bool(measurement.runs) and all(DISTURBED_FROM in run.counters for run in measurement.runs)


def phase(measurement: Measurement, name: str) -> Measurement:
    """The measurement with the requests of one phase alone.

    A request that was in flight at some time between the begin of the first event and the end of the last one belongs
    to "during". Counters of the server are of whole runs, so a phase has none.

    Args:
        measurement: with events, see `has_phases`.
        name: "before", "during" or "after".
    """
    runs = tuple(
        replace(run, records=_records_of(run, name), counters={}, replicas={}, expected_hit_rate=None, precomputed=None)
        for run in measurement.runs
    )
    return replace(measurement, runs=runs, lmcache_reuse=None,
                   metrics=tuple(measure(run.records, {}, run.tokenizer) for run in runs))


def _records_of(run: Run, name: str) -> RunRecords:
    start_ns = min((record.intended_ns for record in run.records), default=0)
    from_s, until_s = run.counters[DISTURBED_FROM] or 0.0, run.counters[DISTURBED_UNTIL] or 0.0

    def phase_of(record: RequestRecord) -> str:
        if (record.ended_ns - start_ns) / 1e9 < from_s:
            return "before"
        return "after" if (record.intended_ns - start_ns) / 1e9 >= until_s else "during"

    return RunRecords(record for record in run.records if phase_of(record) == name)


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
