"""Kept runs in other tools' formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_llmperf.errors import UsageError
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.report.export.benchmark import benchmark_file
from pytest_llmperf.report.export.detailed import vllm_files
from pytest_llmperf.report.export.requests_table import csv_file, parquet_file
from pytest_llmperf.results.measurement import TestResult

#: Format → file name under `out` ("" for `out` itself) and its content.
Export = Callable[[Sequence[TestResult]], Mapping[str, bytes]]
EXPORTS: Mapping[str, Export] = {
    "pytest-benchmark": lambda tests: {"": benchmark_file(tests)},
    "vllm": vllm_files,
    "parquet": lambda tests: {"": parquet_file(tests)},
    "csv": lambda tests: {"": csv_file(tests)},
}

SUGGESTED = {"parquet": "requests.parquet", "csv": "requests.csv"}


def export(tests: Sequence[TestResult], form: str, out: Path) -> list[Path]:
    """Write the tests in that format; nothing is written before all of it is made.

    Raises:
        UsageError: nothing to export, or `out` cannot be written.
        BaselineError: a file of requests cannot be read.
    """
    files = EXPORTS[form](tests)
    if not files:
        raise UsageError("the tests of this run have no measurements to export.")
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


__all__ = ["export"]
