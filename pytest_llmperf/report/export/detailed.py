"""`vllm bench serve` JSON, one file a measurement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath

from pytest_llmperf.report.kept import KeptTest, as_measurement
from pytest_llmperf.report.run_folder import file_name
from pytest_llmperf.report.vllm_json import vllm_json


def vllm_files(tests: Sequence[KeptTest]) -> dict[str, bytes]:
    """File name → content; measurements of one test are numbered.

    Raises:
        UsageError: the requests of a run were not kept.
        BaselineError: they cannot be read.
    """
    found = {}
    for test in tests:
        for number, measurement in enumerate(test.measurements, start=1):
            name = f"{PurePath(file_name(test.test)).stem}.{measurement.side or number}.json"
            content = vllm_json(as_measurement(measurement))
            found[name] = json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
    return found
