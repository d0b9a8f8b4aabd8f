"""What turns the results of a run into files of another tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
