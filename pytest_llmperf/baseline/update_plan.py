"""Types of the plan that `plan` makes: the action for each stored measurement, and the files to write."""

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
class PlanEntry:
    """A line of the plan.

    Args:
        action: action of the update.
        path: path of the file, relative to the folder of baselines.
        measurement: name of the measurement; "" for the only measurement of a test.
        reasons: reasons for a kept, refused or orphaned baseline; notes on a written baseline.
        moves: the changes of all written metrics, sorted by name.
        primaries: primary metrics.
        sessions: number of stored sessions after the update.
        acceptable: whether a person's reason can override the refusal.
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
class UpdatePlan:
    """An update.

    Args:
        entries: entries, sorted by path and name.
        files: path → new content; None removes the file. Other files stay unchanged.
        untouched: number of files whose tests did not run.
    """

    entries: tuple[PlanEntry, ...]
    files: Mapping[str, Baseline | None] = field(repr=False)
    untouched: int = 0

    def count(self, action: Action) -> int:
        return sum(entry.action is action for entry in self.entries)
