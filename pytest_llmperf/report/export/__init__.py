"""Stored runs in the formats of other tools. Packages add formats through the door `SINKS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.doors import Door
from pytest_llmperf.errors import UsageError
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.results.measurement import TestResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """One format. `llmperf export RUN --format NAME --out PATH` and `--llmperf-export NAME=PATH` write it.

    Args:
        api: version of the doors for which the sink was written: 1.
        name: of the format.
        files: gives the file name under PATH ("" for PATH itself) and the content of each file.
    """

    api: int
    name: str
    files: Callable[[Sequence[TestResult]], Mapping[str, bytes]]


SINKS = Door[Sink]("sink", "a Sink", lambda value: isinstance(value, Sink), {
    "pytest-benchmark": "pytest_llmperf.report.export.benchmark:SINK",
    "vllm": "pytest_llmperf.report.export.requests_table:VLLM",
    "parquet": "pytest_llmperf.report.export.requests_table:PARQUET",
    "csv": "pytest_llmperf.report.export.requests_table:CSV",
})

SUGGESTED = {"parquet": "requests.parquet", "csv": "requests.csv"}


def export(tests: Sequence[TestResult], form: str, out: Path) -> list[Path]:
    """Write the tests in that format; nothing is written before all of it is made.

    Raises:
        UsageError: no such sink, nothing to export, or `out` cannot be written.
        BaselineError: a file of requests cannot be read.
    """
    sink = SINKS.get(form)
    if sink is None:
        raise UsageError(SINKS.unknown(form))
    files = sink.files(tests)
    if not files:
        raise UsageError("the tests of this run have no measurements to export. Name another run.")
    paths = [out / name if name else out for name in files]
    if folder := next((path for path in paths if path.is_dir()), None):
        raise UsageError(f"{folder}: this is a folder. Name a file: --out={folder / SUGGESTED.get(form, 'run.json')}")
    try:
        for path, content in zip(paths, files.values(), strict=True):
            _write(path, content)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror}.") from error
    return paths


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


__all__ = ["SINKS", "Sink", "export"]
