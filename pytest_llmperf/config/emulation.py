"""Settings of the emulator that replaces the engines on a machine without GPUs."""

from __future__ import annotations

from dataclasses import dataclass
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
    """

    kind: str
    clock: Literal["virtual", "real"] = "virtual"
    faults: tuple[str, ...] = ()
    noise: str = NOISE
    seed: int = 0

    def __str__(self) -> str:
        planted = f", planted: {', '.join(self.faults)}" if self.faults else ""
        return f"emulated {self.kind}, {self.clock} time{planted}"
