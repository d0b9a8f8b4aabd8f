"""Workloads of other packages, which come in through the door `WORKLOADS` and can be named on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_llmperf.doors import Door
from pytest_llmperf.workload.base import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedWorkload:
    """A builder of workloads. Suites import the builder itself; `--workload NAME(…)` finds it by this name.

    Args:
        api: version of the doors for which the builder was written: 1.
        name: of the call on the command line.
        build: called with the arguments of the call.
    """

    api: int
    name: str
    build: Callable[..., Workload]


WORKLOADS = Door[AddedWorkload]("workload", "an AddedWorkload", lambda value: isinstance(value, AddedWorkload), {})
