"""`vllm bench serve` JSON, one file a measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath

from pytest_llmperf.errors import UsageError
from pytest_llmperf.report.export import Sink
from pytest_llmperf.results.measurement import TestResult
from pytest_llmperf.results.reader import names
from pytest_llmperf.results.writer import file_name


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


SINK = Sink(api=1, name="vllm", files=vllm_files)
