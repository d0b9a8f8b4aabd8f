"""Whether all events of an answer belong to one request."""

from __future__ import annotations

from pytest_llmperf.wire.chunks import Chunk

SHOWN_CHARACTERS = 64


class Origin:
    """Follows the request id and the index of the choice through the events of one answer.

    With one answer the index of a choice is constant, or it counts the chunks.

    Attributes:
        id: request id of the answer; None without.
        problem: what no answer to the request can contain: another request id, or a further choice; None for nothing.
    """

    __slots__ = ("_index", "_stays", "id", "problem")

    def __init__(self) -> None:
        self.id: str | None = None
        self.problem: str | None = None
        self._index: int | None = None  # of the last choice with text
        self._stays = False  # whether two chunks in a row had the index

    def is_usual(self, chunk: Chunk) -> bool:
        """Whether the event has the id and the choice of the event before, as nearly every event has."""
        if chunk.id != self.id or chunk.choice != self._index or chunk.choices > 1:
            return False
        self._stays = self._stays or bool(chunk.text)
        return True

    def check(self, chunk: Chunk, answers: int, ended: bool) -> None:
        """Take any other event.

        Args:
            chunk: the event.
            answers: number of answers to the request (`n`).
            ended: whether a choice has ended before.
        """
        if chunk.id is not None and chunk.id != self.id:
            if self.id is not None:
                self.problem = (f"the request id changes from {self.id[:SHOWN_CHARACTERS]!r} to "
                                f"{chunk.id[:SHOWN_CHARACTERS]!r} within the answer")
            self.id = chunk.id
        asked = f"the request asks for {answers} answer{'s' * (answers > 1)}"
        if chunk.choices > answers or (answers > 1 and chunk.last_choice >= answers):
            self.problem = f"an event has choice {max(chunk.last_choice, chunk.choices - 1)}, and {asked}"
        if answers > 1 or not (chunk.text or chunk.token_ids):
            return
        before, self._index = self._index, chunk.choice
        stayed, self._stays = self._stays, chunk.choice == before
        if before is not None and chunk.choice != before and (chunk.choice < before or stayed or ended):
            self.problem = f"events of choice {before} and of choice {chunk.choice}, and {asked}"
