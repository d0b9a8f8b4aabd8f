"""Appends each row to a file at once, so that an interrupted calibration continues at the next suite run."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from pytest_llmperf.calibration.row import CalibrationRow
from pytest_llmperf.errors import UsageError


class RowJournal:
    """A file of JSON lines: what is calibrated, then a row per suite run.

    Args:
        path: the file; made with its folder.
        about: what must be equal for rows to belong together.

    Raises:
        UsageError: the file holds something else, cannot be written, or is written by another calibration.
    """

    def __init__(self, path: Path, about: Mapping[str, object]) -> None:
        self.path = path
        self.about = dict(about)
        self.rows: dict[tuple[str, int], CalibrationRow] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error}. Name another file with --out.") from error
        try:
            self._lock()
            self._read()
        except UsageError:
            self._file.close()
            raise
        if path.stat().st_size == 0:
            self._say(self.about)

    def add(self, row: CalibrationRow) -> None:
        """Keep a row; on disk when this returns."""
        self.rows[row.experiment, row.number] = row
        self._say(row.as_json())

    def __enter__(self) -> RowJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _lock(self) -> None:
        """Be the only writer until the file is closed: two calibrations would do the same suite runs."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{self.path}: another calibration writes this file now. Wait for its end, or name "
                             "another file with --out.") from error

    def _say(self, value: Mapping[str, object]) -> None:
        self._file.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def _read(self) -> None:
        if not self.path.stat().st_size:
            return
        lines = self._lines()
        if next(lines, None) != self.about:
            raise UsageError(
                f"{self.path} holds another calibration, or none: its first line is not {json.dumps(self.about)}. "
                "Go on with the command that began it, or name another file with --out."
            )
        for line in lines:
            row = CalibrationRow(**line)
            self.rows[row.experiment, row.number] = row

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Whole lines; what an interrupted write left at the end is cut off."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with self.path.open("r+b") as file:
                file.truncate(whole)
        for number, line in enumerate(data[:whole].decode("utf-8", "replace").splitlines(), 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UsageError(f"{self.path}, line {number}: this is no row of a calibration: {error}.") from error
