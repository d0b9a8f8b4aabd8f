"""What a released version of an engine removed: a type for the data in the folder of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retired:
    """A removed name.

    Args:
        since: first version without the name.
        instead: what a spec says instead, as Python; "" if nothing replaces the name.
    """

    since: str
    instead: str = ""

    def __str__(self) -> str:
        return f" since {self.since} or earlier." + (f" Write {self.instead}." if self.instead else "")


def removed(since: str, **instead: str) -> dict[str, Retired]:
    """Name → `Retired`, for names that one version removed."""
    return {name: Retired(since, text) for name, text in instead.items()}
