"""All requests of a run as one table, and `vllm bench serve` JSON with one file a measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from pytest_llmperf.errors import UsageError
from pytest_llmperf.report.export import Sink
from pytest_llmperf.report.table import cell_text
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import names
from pytest_llmperf.results.writer import file_name

if TYPE_CHECKING:
    import pandas as pd


def requests_table(tests: Sequence[TestResult]) -> pd.DataFrame:
    """One row per request: test, measurement (number or side), then as `Measurement.to_pandas`.

    A search for a rate adds no rows. Each rate that the search tried is a separate measurement with rows.

    Raises:
        UsageError: the tests have no runs, or the requests of a run were not stored.
        BaselineError: the stored requests cannot be read.
    """
    frames = []
    for test in tests:
        for name, measurement in zip(names(test.measurements), test.measurements, strict=True):
            if measurement.searched or not measurement.runs:
                continue
            frame = measurement.to_pandas()
            measurement.release_records()
            frame.insert(0, "test", test.test)
            frame.insert(1, "measurement", name)
            frames.append(frame)
    if not frames:
        raise UsageError("the tests of this run have no measurements to export. Name another run.")
    import pandas as pd

    return pd.concat(frames, ignore_index=True)


def csv_file(tests: Sequence[TestResult]) -> bytes:
    """The table as CSV, UTF-8."""
    table = requests_table(tests)
    for name, column in table.items():
        if any(isinstance(value, str) for value in column):
            table[name] = [cell_text(value) if isinstance(value, str) else value for value in column]
    return table.to_csv(index=False).encode("utf-8", "replace")


def parquet_file(tests: Sequence[TestResult]) -> bytes:
    """The table as Parquet.

    Raises:
        UsageError: also where pandas finds no engine for Parquet.
    """
    table = requests_table(tests)
    # A column without any value has no type of its own.
    table["detail"] = table["detail"].astype("string")
    try:
        return bytes(table.to_parquet(None, index=False))
    except ImportError as error:
        raise UsageError("--format parquet needs pyarrow: pip install 'pytest-llmperf[parquet]'.") from error


CSV = Sink(api=1, name="csv", files=lambda tests: {"": csv_file(tests)})
PARQUET = Sink(api=1, name="parquet", files=lambda tests: {"": parquet_file(tests)})


def vllm_files(tests: Sequence[TestResult]) -> dict[str, bytes]:
    """File name → content, one file per measurement. A search for a rate has no requests, so it has no file.

    Raises:
        UsageError: the tests have no runs, or the requests of a run were not stored.
        BaselineError: the stored requests cannot be read.
    """
    files = {}
    for test in tests:
        for label, measurement in zip(names(test.measurements), test.measurements, strict=True):
            if measurement.searched or not measurement.runs:
                continue
            name = f"{PurePath(file_name(test.test, test.worker)).stem}.{label}.json"
            content = measurement.to_vllm_json()
            measurement.release_records()
            files[name] = json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
    if not files:
        raise UsageError("the tests of this run have no measurements to export. Name another run.")
    return files


VLLM = Sink(api=1, name="vllm", files=vllm_files)
