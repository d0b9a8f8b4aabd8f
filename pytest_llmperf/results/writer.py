"""The run folder: one JSON file per test. The file is written after each run, so an interrupted session keeps its runs.

A requests file per run stores the requests (`results.requests_file`). Charts and exports need only the run folder.

docs/run_folder.md lists the keys of a run file; `results.reader` is the one reader.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmperf.errors import InfrastructureError
from pytest_llmperf.metrics.failed_as_infinite import statistics_with_failures
from pytest_llmperf.model.telemetry import GpuTrace
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.check_json import check_json
from pytest_llmperf.results.profile import Profile
from pytest_llmperf.results.requests_file import encode, read_back

if TYPE_CHECKING:
    from pytest_llmperf.metrics import RunMetrics
    from pytest_llmperf.results.measurement import Measurement, Run

SCHEMA = 1
READABLE_LENGTH = 150  # file systems take 255 bytes


def write_test(
    run_dir: Path,
    test: str,
    measurements: Sequence[Measurement],
    results: Sequence[CheckResult],
    *,
    complete: bool = True,
    error: str | None = None,
    claims: Sequence[Mapping[str, object]] = (),
    earlier: Sequence[Mapping[str, object]] = (),
    stored: Sequence[object] = (),
    inputs: Mapping[str, str] | None = None,
    profiles: Sequence[Profile] = (),
    worker: str = "",
) -> Path:
    """Write `tests/<test>-<digest>.json` atomically. The file holds metrics and times, never prompts or answers.

    The requests of each run are written to `requests/` first, and only once. So the test's file never names a missing
    requests file.

    Args:
        complete: whether the test reached its end. An incomplete file is no result.
        error: error that aborted the test, with the evidence; None without an error.
        claims: text, sides and order of each claim (`session.perf`).
        earlier: earlier executions of the test (`session.executions.excluded_execution`). Their pooled runs are in
            `measurements`.
        stored: earlier executions in earlier commands of a resumed session, as their run file had them.
        inputs: as in `TestResult`.
        profiles: traces of the test's measurements.
        worker: name of the xdist worker. All workers write into one folder; each file has a single writer.

    Raises:
        InfrastructureError: the file cannot be written. An existing file stays whole.
    """
    path = run_dir / "tests" / file_name(test, worker)
    measurement_nodes = [
        [_write_requests(run_dir, f"{path.stem}.{number}-{at}", run) for at, run in enumerate(measured.runs)]
        for number, measured in enumerate(measurements, start=1)
    ]
    text = _dense(
        json.dumps(
            {
                "schema": SCHEMA,
                "test": test,
                "worker": worker,
                "complete": complete,
                "error": error,
                "measurements": [
                    _measurement(each, names) for each, names in zip(measurements, measurement_nodes, strict=True)
                ],
                "checks": _checks(results),
                "claims": [dict(claim) for claim in claims],
                "profiles": [asdict(profile) for profile in profiles],
                "earlier": [*stored, *(_execution(run_dir, path.stem, execution) for execution in earlier)],
                "inputs": dict(inputs or {}),
            },
            indent=1,
            allow_nan=False,
        )
    )
    _write(path, (text + "\n").encode())
    return path


def file_name(test: str, worker: str = "") -> str:
    """A file name that people can read and that no other test of a session has, whatever its parameters are."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", test).strip("-.")[-READABLE_LENGTH:]
    digest = hashlib.sha256(test.encode(errors="surrogatepass")).hexdigest()
    return f"{readable}-{digest[:8]}{f'.{worker}' if worker else ''}.json"


def _write_requests(run_dir: Path, stem: str, run: Run) -> str:
    """Write the requests file of a run, and return its path relative to the run folder. The start time in the name
    distinguishes the file from the files of a repeated test. A run that was read back from this folder keeps its file.
    """
    if run.requests is not None and run.requests.is_relative_to(run_dir):
        return str(run.requests.relative_to(run_dir))
    records = run.records
    name = f"requests/{stem}-{records.start_ns}.json.gz"
    path = run_dir / name
    if not path.exists():
        _write(path, encode(records))
    records.stored(partial(read_back, path, records.start_ns))
    return name


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise InfrastructureError(
            f"The results cannot be written: {error}. Free space there, or name another folder with --llmperf-runs=DIR."
        ) from error


def _checks(results: Iterable[CheckResult]) -> list[dict[str, object]]:
    return [check_json(result) for result in results]


def _execution(run_dir: Path, stem: str, execution: Mapping[str, Any]) -> dict[str, object]:
    facts = {name: execution[name] for name in ("execution", "ended", "error")}
    measurements = [
        _measurement(each, [
            _write_requests(run_dir, f"{stem}.execution{execution['execution']}-{number}-{position}", run)
            for position, run in enumerate(each.runs)
        ])
        for number, each in enumerate(execution["measurements"], start=1)
    ]
    return facts | {"checks": _checks(execution["results"]), "measurements": measurements}


def _measurement(measurement: Measurement, requests: Sequence[str]) -> dict[str, object]:
    return {
        "engine": measurement.engine,
        "workload": measurement.workload,
        "complete": measurement.complete,
        "baseline": measurement.baseline,
        "primaries": list(measurement.primaries),
        "margins": {metric: margin.tolerated for metric, margin in measurement.margins.items()},
        "negligible": {metric: margin.negligible for metric, margin in measurement.margins.items()},
        "side": measurement.side,
        "looks": measurement.looks,
        "alone": measurement.alone,
        "conditions": dict(measurement.conditions),
        "runs": [
            _run(run, metrics, name)
            for run, metrics, name in zip(measurement.runs, measurement.metrics, requests, strict=True)
        ],
    }


def _run(run: Run, metrics: RunMetrics, requests: str) -> dict[str, object]:
    """`gpu` and `server` are tables, column by column; their `at_ns` counts from the run's time zero.

    `judged` has the latencies that failed requests move, as a limit, a ratio or a baseline takes them.
    """
    trace, telemetry = run.gpu, run.telemetry
    return {
        "execution": run.execution,
        "block": run.block,
        "seed": run.seed,
        "start_id": run.start_id,
        "started_at": run.started_at,
        "wall_clock_jump_ms": run.wall_clock_jump_ms,
        "cache_reset": run.cache_reset,
        "loop_lag_p99_ms": run.loop_lag_p99_ms,
        "clock_gap_ms": run.clock_gap_ms,
        "load": None if run.load is None else asdict(run.load),
        "cpu": None if run.cpu is None else asdict(run.cpu),
        "contended": run.contended,
        "counters": dict(run.counters),
        "replicas": {name: dict(counters) for name, counters in run.replicas.items()},
        "metrics": metrics.all(),
        "judged": statistics_with_failures(metrics),
        "failures": dict(run.failures),
        "requests": requests,
        "gpu": telemetry.get("gpu"),
        "gpu_state": None if trace is None else _state(trace),
        "server": telemetry.get("server"),
    }


def _state(trace: GpuTrace) -> dict[str, object]:
    return {
        "devices": [{**asdict(device), "settings": dict(device.settings)} for device in trace.devices],
        "pids_visible": trace.pids_visible,
        "faults": list(trace.faults),
        "problem": trace.problem,
        "sample_ms": trace.sample_ms,
    }


def _dense(text: str) -> str:
    """Lists of plain values on one line each: a table's column is read as one, and thousands of lines are not."""
    return re.sub(r"\[\n[^\[\]{}\"]*\]", lambda match: " ".join(match.group().split()), text)
