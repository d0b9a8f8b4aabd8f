"""Settings of the emulator that replaces the engines on a machine without GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GPUS = 8  # of an emulated host: enough for every suite
NOISE = "session=0.3%,run=0.5%,step=1%"


@dataclass(frozen=True, slots=True)
class Emulation:
    """Settings of the built-in emulator, which replaces every engine that a suite starts.

    Args:
        kind: emulated hardware kind.
        clock: "virtual" computes in virtual time without waiting; "real" serves over HTTP in real time.
        faults: planted faults in the emulator's notation, such as "prefix_cache=off".
        noise: sd of the step times in the emulator's notation, such as "session=0.3%,run=0.5%,step=1%".
        seed: seed of the noise.
        coefficients: file that `llmperf fit` wrote for this kind; "" for the shipped coefficients.
    """

    kind: str
    clock: Literal["virtual", "real"] = "virtual"
    faults: tuple[str, ...] = ()
    noise: str = NOISE
    seed: int = 0
    coefficients: str = ""

    def __str__(self) -> str:
        planted = f", planted: {', '.join(self.faults)}" if self.faults else ""
        fitted = f", fitted by {self.coefficients}" if self.coefficients else ""
        return f"emulated {self.kind}, {self.clock} time{fitted}{planted}"


def coefficients_file(baselines_dir: Path, kind: str) -> Path:
    """Where `llmperf fit` writes the coefficients of a kind."""
    return baselines_dir / f"emulator-{kind}.json"


def existing_coefficients(baselines_dir: Path, kind: str) -> str:
    """The path of that file; "" if nothing was fitted."""
    path = coefficients_file(baselines_dir, kind)
    return str(path) if path.is_file() else ""
