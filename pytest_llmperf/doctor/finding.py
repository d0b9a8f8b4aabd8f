"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass


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
