"""The run folder: one JSON file per test, written when the test ends, so that an interrupted session keeps it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.model.verdict import CheckResult

if TYPE_CHECKING:
    from pytest_llmperf.session.measurement import Measurement

SCHEMA = 1


def write_test(run_dir: Path, test: str, measurements: Sequence[Measurement], results: Sequence[CheckResult]) -> Path:
    """Write `tests/<test>.json`, whole or not at all. Holds metrics and times, never prompts or answers."""
    folder = run_dir / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', test).strip('-')}.json"
    text = json.dumps(
        {
            "schema": SCHEMA,
            "test": test,
            "measurements": [_measurement(measurement) for measurement in measurements],
            "checks": [{**asdict(result), "verdict": result.verdict.value} for result in results],
        },
        indent=1,
    )
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def _measurement(measurement: Measurement) -> dict[str, object]:
    return {
        "engine": measurement.engine,
        "workload": measurement.workload,
        "conditions": dict(measurement.conditions),
        "runs": [
            {
                "seed": run.seed,
                "start_id": run.start_id,
                "started_at": run.started_at,
                "cache_reset": run.cache_reset,
                "loop_lag_p99_ms": run.loop_lag_p99_ms,
                "clock_gap_ms": run.clock_gap_ms,
                "counters": dict(run.counters),
                "metrics": metrics.all(),
            }
            for run, metrics in zip(measurement.runs, measurement.metrics, strict=True)
        ],
    }
