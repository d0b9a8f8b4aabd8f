"""The part of a host that belongs to one of several test processes that measure on it at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from pytest_llmperf.errors import HardwareBusy
from pytest_llmperf.telemetry.hardware import Hardware, showing_only, words_of_gpus

T = TypeVar("T")


def take_share(
    hardware: Hardware, processes: int, take: Callable[[int], bool], environ: MutableMapping[str, str] = os.environ
) -> Hardware:
    """Limit this process, and what it starts, to an equal share of the GPUs and CPUs of this host.

    The GPUs of a share are neighbours, and so are its CPUs. A GPU or CPU that is left over stays idle.

    Args:
        hardware: the visible GPUs; all of one model.
        processes: number of processes that measure at the same time.
        take: whether this process now has the given position, from 0, among these processes.
        environ: gets the variable CUDA_VISIBLE_DEVICES, and on AMD's GPUs HIP_VISIBLE_DEVICES where it is set.

    Returns:
        The hardware of the share. The whole hardware if there are fewer GPUs than processes: then the processes take
        turns.

    Raises:
        HardwareBusy: other processes have all positions.
    """
    if not 1 < processes <= len(hardware.gpus):
        return hardware
    position = next(filter(take, range(processes)), None)
    if position is None:
        raise HardwareBusy(f"{processes} other processes of this session have all {len(hardware.gpus)} GPUs of this "
                           "host. Start the session again.")
    own = _part(hardware.gpus, position, processes)
    environ.update(showing_only(_part(words_of_gpus(hardware.gpus, environ), position, processes), environ))
    if hasattr(os, "sched_getaffinity"):
        _stay_on(_part(sorted(os.sched_getaffinity(0)), position, processes))
    others = tuple(gpu for gpu in hardware.gpus if gpu not in own)
    return replace(hardware, gpus=own, hidden=(*others, *hardware.hidden), shared_by=processes)


def _part(all_: Sequence[T], position: int, processes: int) -> tuple[T, ...]:
    each = len(all_) // processes
    return tuple(all_[position * each : (position + 1) * each])


def _stay_on(cpus: Sequence[int]) -> None:
    with suppress(OSError):
        if cpus:
            os.sched_setaffinity(0, cpus)
