"""Bodies of turns that contain what the server answered: made when the answer ends, off the timed path."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmperf.load.request_in_flight import RequestInFlight
from pytest_llmperf.model.exchange import Ending
from pytest_llmperf.model.plan import ConversationPart, PlannedRequest
from pytest_llmperf.wire.conversation import AnswerReader, answer_part, joined


class Conversations:
    """The turns of a plan that contain answers. A branch is a turn that several turns continue."""

    def __init__(self, requests: Sequence[PlannedRequest]) -> None:
        self._next_turns: dict[int, list[tuple[PlannedRequest, ConversationPart]]] = {}
        self._histories: dict[int, bytes] = {}  # the whole prompt of a turn, as it stands in its body
        for request in requests:
            if request.part is not None and request.part.continues and request.after is not None:
                self._next_turns.setdefault(request.after, []).append((request, request.part))

    def reader_for(self, request: PlannedRequest) -> AnswerReader | None:
        """The reader of its answer; None if no later turn contains the answer."""
        return AnswerReader(request.answers, request.ends) if request.index in self._next_turns else None

    def ended(self, request: RequestInFlight) -> list[tuple[PlannedRequest, bytes]] | None:
        """The next turns with their bodies; None if the answer for the next turns is incomplete."""
        index, own = request.request.index, request.request.part
        waiting = self._next_turns.get(index)
        history = self._histories.pop(index, None)
        if waiting is None:
            return []
        request.listen()
        answer = None if request.reader is None or own is None else answer_part(request.reader, own.form)
        request.reader = None
        if answer is None or own is None or request.ending is not Ending.COMPLETE:
            return None
        if history is None:
            history = request.request.body[own.start : own.end]
        completed = []
        for turn, part in waiting:
            whole = joined(part.form, (history, answer, turn.body[part.start : part.end]))
            if turn.index in self._next_turns:
                self._histories[turn.index] = whole
            completed.append((turn, turn.body[: part.start] + whole + turn.body[part.end :]))
        return completed
