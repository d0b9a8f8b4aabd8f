"""What stands in for the engines where there is no hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GPUS = 8  # of an emulated host: enough for every suite
NOISE = "session=0.3%,run=0.5%,step=1%"


@dataclass(frozen=True, slots=True)
class Emulation:
    """The built-in emulator in place of every engine that a suite starts.

    Args:
        kind: hardware kind that it emulates.
        clock: "virtual" only jumps; "real" serves over HTTP.
        faults: planted, in the emulator's words: "prefix_cache=off".
        noise: spread of step times, in the emulator's words.
        seed: of that noise.
    """

    kind: str
    clock: Literal["virtual", "real"] = "virtual"
    faults: tuple[str, ...] = ()
    noise: str = NOISE
    seed: int = 0

    def __str__(self) -> str:
        planted = f", planted: {', '.join(self.faults)}" if self.faults else ""
        return f"emulated {self.kind}, {self.clock} time{planted}"
