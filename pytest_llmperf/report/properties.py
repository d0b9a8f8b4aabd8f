"""What JUnit keeps of a test, as (name, value) pairs: for people, and for `llmperf release-report` (`report.junit`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_llmperf.metrics.failed_as_infinite import statistics_with_failures
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.check_json import check_json
from pytest_llmperf.results.conditions import digest
from pytest_llmperf.results.sentences import estimate_text, interval_text

if TYPE_CHECKING:
    from pytest_llmperf.metrics import RunMetrics
    from pytest_llmperf.results.measurement import Measurement

DECIMALS = 6
SEED, JUDGED = "seed", "judged"  # beside the metrics of a run


def properties(
    test: str, measurements: Sequence[Measurement], results: Sequence[CheckResult]
) -> list[tuple[str, str]]:
    """The test's id; per measurement its engine, workload, conditions with their digest, and the metrics of each run;
    then every verdict, as a line and as an object, and the change against each baseline.

    Some 2 kB for each run, 3 kB where requests failed, whatever the number of requests.
    """
    pairs = [("llmperf.test", test)]
    for number, measurement in enumerate(measurements, start=1):
        pairs += ((f"llmperf.{number}.{name}", value) for name, value in _of_measurement(measurement))
    for number, result in enumerate(results, start=1):
        line = f"{result.verdict.value}: {result.subject}: {estimate_text(result)} {interval_text(result)}"
        pairs.append((f"llmperf.check{number}", line.rstrip()))
        pairs.append((f"llmperf.result{number}", json.dumps(check_json(result))))
        if result.compares_with_baseline and result.interval:
            pairs.append((f"llmperf.baseline.{result.metric}", f"{estimate_text(result)} ({interval_text(result)})"))
    return pairs


def _of_measurement(measurement: Measurement) -> Iterator[tuple[str, str]]:
    yield "engine", measurement.engine
    yield "workload", measurement.workload
    yield "hardware", measurement.conditions.get("hardware", "unknown")
    yield "fingerprint", digest(measurement.conditions)
    yield "weights", measurement.conditions.get("weights", "unknown")
    yield "conditions", json.dumps(dict(measurement.conditions), sort_keys=True)
    yield "side", measurement.side
    yield "primaries", json.dumps(measurement.primaries)
    yield (
        "margins",
        json.dumps({name: [margin.negligible, margin.tolerated] for name, margin in measurement.margins.items()}),
    )
    runs = zip(measurement.runs, measurement.metrics, strict=True)
    for number, (run, metrics) in enumerate(runs, start=1):  # an extension repeats seeds
        yield f"run{number}", _as_json(run.seed, metrics)


def _as_json(seed: int, metrics: RunMetrics) -> str:
    """The seed and the available metrics of a run, and the statistics that failed requests change."""
    available_values = {name: value for name, value in _rounded(metrics.all()).items() if value is not None}
    judged = _rounded(statistics_with_failures(metrics))
    return json.dumps({SEED: seed, **available_values, **({JUDGED: judged} if judged else {})}, allow_nan=False)


def _rounded(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, DECIMALS) for name, value in values.items()}
