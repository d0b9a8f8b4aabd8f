"""The phases of a measurement with events: before the first event, during the events, and after the last one."""

from __future__ import annotations

from dataclasses import replace

from pytest_llmperf.metrics import measure
from pytest_llmperf.model.event import DISTURBED_FROM, DISTURBED_UNTIL
from pytest_llmperf.model.record import RequestRecord, RunRecords
from pytest_llmperf.results.measurement import Measurement, Run


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
