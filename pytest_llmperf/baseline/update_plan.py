"""The plan of an update as types and as text: the action for each stored measurement, and the files to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pytest_llmperf.metrics.registry import find
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
    """A metric's mean over the stored sessions, before and after; None if there is none."""

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


HOW_TO_ACCEPT = (
    'pytest --llmperf-accept "REASON", or llmperf baselines take --accept "REASON", stores a refused session with its '
    "reason. An incomplete session cannot be stored: measure it again."
)


def summary(plan: UpdatePlan) -> str:
    """The plan: a line of counts, then a line per measurement."""
    counts = ", ".join(f"{plan.count(action)} {action.value}" for action in Action if plan.count(action))
    lines = [f"baselines: {counts or 'nothing to do'}"]
    lines += [f"  {line(entry)}" for entry in plan.entries]
    if plan.untouched:
        lines.append(f"  {Action.KEPT.value:<9} {plan.untouched} of tests that this session did not update")
    if any(entry.acceptable for entry in plan.entries):
        lines.append(HOW_TO_ACCEPT)
    return "\n".join(lines)


def line(entry: PlanEntry) -> str:
    """"changed   h200/serving/test_x.json  ttft_p50 43.1 → 43.4 ms (+0.7 %), …; 4 sessions"."""
    name = f" [{entry.measurement}]" if entry.measurement else ""
    moves = ", ".join(_move(move) for move in entry.moves if move.metric in entry.primaries)
    sessions = f"{entry.sessions} session{'s' if entry.sessions > 1 else ''}" if entry.sessions else ""
    facts = "; ".join(filter(None, (moves, sessions, *entry.reasons)))
    return f"{entry.action.value:<9} {entry.path}{name}  {facts}"


def _move(move: Move) -> str:
    unit = find(move.metric).unit
    if move.new is None:
        return f"{move.metric} -"
    if move.old is None:
        return f"{move.metric} {unit.show(move.new)}"
    change = "" if move.percent is None else f" ({move.percent:+.1f} %)"
    return f"{move.metric} {unit.number(move.old)} → {unit.show(move.new)}{change}"
