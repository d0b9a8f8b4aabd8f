"""The machine and the project that are examined, as values, and what is found there."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.engines.models.text_tokenizer import hub_folder
from pytest_llmperf.engines.process.environment import Environment
from pytest_llmperf.engines.process.installed import version_in
from pytest_llmperf.telemetry.hardware import Hardware

DEVICE = Path("/dev/nvidia0")
SHM = Path("/dev/shm")  # noqa: S108  (looked at, not written to)


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact, or a problem with its remedy.

    Args:
        part: what it is about: "hardware", "engines", "models", "suites", "baselines".
        text: what was found.
        remedy: what to do about it; "" where it is no problem.
    """

    part: str
    text: str
    remedy: str = ""

    @property
    def problem(self) -> bool:
        return bool(self.remedy)


@dataclass(frozen=True, slots=True)
class Place:
    """Facts that the checks of `llmperf doctor` depend on. Tests pass their own values.

    Args:
        root: of the project.
        settings: of the project.
        hardware: what NVML says.
        has_device: whether the kernel shows an NVIDIA device, whatever NVML says.
        shm_bytes: size of shared memory; None where there is none.
        open_files: how many files a process may have open at most.
        free_bytes: of the disk that holds the run folders.
        hub: the hub's cache of downloaded models.
        version_in: returns the version of an engine in its environment; None if unknown.
    """

    root: Path
    settings: Settings
    hardware: Hardware
    has_device: bool
    shm_bytes: int | None
    open_files: int
    free_bytes: int
    hub: Path
    version_in: Callable[[Environment, str], str | None] = version_in


def this_place(root: Path, settings: Settings, hardware: Hardware) -> Place:
    """This machine."""
    return Place(
        root=root,
        settings=settings,
        hardware=hardware,
        has_device=DEVICE.exists(),
        shm_bytes=shutil.disk_usage(SHM).total if SHM.is_dir() else None,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        free_bytes=shutil.disk_usage(root).free,
        hub=hub_folder(os.environ),
    )
