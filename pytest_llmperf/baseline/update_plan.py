"""The plan of an update: what happens to each stored measurement, and which files are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pytest_llmperf.results.baseline import Baseline


class Action(Enum):
    """What happens to a stored measurement, in the words of the summary."""

    CREATED = "created"
    CHANGED = "changed"
    KEPT = "kept"
    REFUSED = "refused"
    ORPHANED = "orphaned"


@dataclass(frozen=True, slots=True)
class Move:
    """A metric's mean over the stored sessions, before and after; None where there is none."""

    metric: str
    old: float | None
    new: float | None

    @property
    def percent(self) -> float | None:
        """Change in percent of the old value."""
        return None if not self.old or self.new is None else 100 * (self.new / self.old - 1)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the plan.

    Args:
        action: what happens.
        path: of the file, relative to the folder of baselines.
        measurement: its name; "" for a test's only one.
        reasons: why, where it is kept, refused or orphaned; what to know, where it is written.
        moves: every metric that is written, sorted by name.
        primaries: those that comparisons judge.
        sessions: how many are stored then.
        acceptable: whether a person's reason would let a refused one in.
    """

    action: Action
    path: str
    measurement: str = ""
    reasons: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    primaries: tuple[str, ...] = ()
    sessions: int = 0
    acceptable: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """An update.

    Args:
        entries: sorted by path and name.
        files: path → what to write there; None removes the file. What is not named stays as it is.
        untouched: how many files belong to tests that did not run.
    """

    entries: tuple[Entry, ...]
    files: Mapping[str, Baseline | None] = field(repr=False)
    untouched: int = 0

    def count(self, action: Action) -> int:
        return sum(entry.action is action for entry in self.entries)
