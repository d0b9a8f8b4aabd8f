"""Finds an answer whose request id belongs to an earlier answer of the same server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pytest_llmperf.model.record import Outcome, RequestRecord

SHOWN_CHARACTERS = 64


class AnswerIds:
    """The request ids of a server's answers so far.

    A server that gives every answer the same id, as simple mock servers do, names no request with this id.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()

    def checked(self, records: Iterable[RequestRecord]) -> tuple[RequestRecord, ...]:
        """The records of a run, and those with an id of an earlier answer as failed requests."""
        run = tuple(records)
        used = self._used.copy()
        self._used |= {record.answer_id for record in run if record.answer_id is not None}
        if len(self._used) <= 1:
            return run
        return tuple(self._judged(record, used) for record in run)

    def _judged(self, record: RequestRecord, used: set[str]) -> RequestRecord:
        if record.answer_id is None:
            return record
        is_repeated = record.answer_id in used
        used.add(record.answer_id)
        if not (is_repeated and record.ok):
            return record
        return replace(record, outcome=Outcome.NOT_ASKED_FOR, detail=(
            f"its request id {record.answer_id[:SHOWN_CHARACTERS]!r} is the id of an earlier answer"))
