"""Sessions of a workload: the requests of one conversation."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.model.request import Request


def sessions_of(requests: Sequence[Request]) -> dict[int, str]:
    """Index of each request → name of its session. The turns of a conversation share a session; any other request is a
    session of its own.

    Args:
        requests: ordered by index. So each turn of a conversation follows the turn before.
    """
    sessions: dict[int, str] = {}
    for request in requests:
        first = str(request.index)
        sessions[request.index] = first if request.turn == 1 or request.after is None else sessions[request.after]
    return sessions
