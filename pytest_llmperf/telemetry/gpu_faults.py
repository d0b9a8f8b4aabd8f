"""Hardware errors of a GPU during a run: Xids, uncorrected memory errors, a GPU that is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_llmperf.telemetry.gpu_reading import uncorrected_errors
from pytest_llmperf.telemetry.nvml import XID, GpuNvml, query

MOST_XIDS = 20  # a broken GPU repeats itself


class FaultWatch:
    """Finds the GPU faults of a run from events and ECC counters. A driver without them shows no faults.

    Args:
        nvml: the driver's library.
    """

    def __init__(self, nvml: GpuNvml) -> None:
        self._nvml = nvml
        self._earlier_errors: dict[int, int | None] = {}
        self._events: Any = None
        self._problems: list[str] = []

    def begin(self, index: int, handle: object) -> None:
        """Note the counters of one GPU, and listen to it."""
        self._earlier_errors[index] = uncorrected_errors(self._nvml, handle)
        if self._events is None:
            self._events = query(self._nvml, "nvmlEventSetCreate")
        if self._events is not None:
            query(self._nvml, "nvmlDeviceRegisterEvents", handle, XID, self._events)

    def end(self, handles: Mapping[int, object]) -> None:
        """Ask what has happened since `begin`."""
        for _ in range(MOST_XIDS):
            event = None if self._events is None else query(self._nvml, "nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                break
            self._problems.append(
                f"a GPU reported Xid {event.eventData} (NVIDIA's list of Xid errors says what it means)"
            )
        if self._events is not None:
            query(self._nvml, "nvmlEventSetFree", self._events)
        for index, handle in handles.items():
            before, after = self._earlier_errors.get(index), uncorrected_errors(self._nvml, handle)
            if before is not None and after is not None and after > before:
                self._problems.append(f"GPU {index} had {after - before} uncorrected memory errors (ECC)")

    def lost(self, why: str) -> None:
        """Every further question would be answered in the same way."""
        self._problems.append(f"a GPU {why}")

    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)
