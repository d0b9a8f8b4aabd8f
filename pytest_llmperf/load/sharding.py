"""One plan for several load processes: the same requests at the same times, each in exactly one part."""

from __future__ import annotations

from dataclasses import replace

from pytest_llmperf.model.plan import LoadPlan, PlannedRequest


def shards(plan: LoadPlan, processes: int) -> tuple[LoadPlan, ...]:
    """Split a plan into at most `processes` parts, at most as many as the plan has conversations or slots.

    A conversation stays together. In a closed loop every part has its share of the slots, and as many conversations for
    each of them: a slot whose part has run out of requests stays empty at the end.
    """
    conversations: dict[int, list[PlannedRequest]] = {}
    root: dict[int, int] = {}
    for request in plan.requests:
        root[request.index] = request.index if request.after is None else root[request.after]
        conversations.setdefault(root[request.index], []).append(request)
    parts = min(processes, len(conversations), plan.concurrency or processes)
    if parts <= 1:
        return (plan,)
    limits = replace(plan.limits, held_bytes=plan.limits.held_bytes // parts,
                     replay_bytes=plan.limits.replay_bytes // parts)
    dealt: list[list[PlannedRequest]] = [[] for _ in range(parts)]
    slots = plan.concurrency or parts
    for position, turns in enumerate(conversations.values()):
        dealt[position % slots % parts] += turns
    return tuple(
        replace(
            plan,
            requests=tuple(sorted(requests, key=lambda request: request.index)),
            limits=limits,
            concurrency=None if plan.concurrency is None else _share(plan.concurrency, position, parts),
        )
        for position, requests in enumerate(dealt)
    )


def _share(slots: int, position: int, parts: int) -> int:
    return slots // parts + (position < slots % parts)
