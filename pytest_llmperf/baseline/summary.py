"""A plan as people read it: what happens, a line per measurement."""

from __future__ import annotations

from pytest_llmperf.baseline.update_plan import Action, Move, PlanEntry, UpdatePlan
from pytest_llmperf.metrics.registry import find

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
