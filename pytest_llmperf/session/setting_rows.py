"""The rows of measured settings of flags: their file, from which an interrupted tuning goes on, and their order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from pytest_llmperf.bounded_file import read_file
from pytest_llmperf.errors import UsageError, echo
from pytest_llmperf.judging.change import is_proven_worse
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.units import Direction
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.session.bisection import TriedRate

SCHEMA = 3
Setting = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting.

    Args:
        flags: name → value, as JSON has it.
        metrics: name → mean over the runs; empty if it could not be measured.
        problem: why it could not; "" where it could.
        runs: name → value of each run, in the order of the seeds; None for a missing or infinite value.
        kind: hardware kind of the server, for the spread between server starts.
        invalid: whether the problem is an invalid run, so that another measurement may succeed.
        rates: the rates that the search judged, in order.
        host: digest of the host that measured the row.
    """

    flags: Setting
    metrics: Mapping[str, float | None]
    problem: str = ""
    runs: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    kind: str = ""
    invalid: bool = False
    rates: Sequence[TriedRate] = ()
    host: str = ""

    @property
    def is_final(self) -> bool:
        """Whether a resumed command takes this row over. The default must be measured, so its failure is not final."""
        return not self.invalid and (bool(self.flags) or not self.problem)


def flags_text(flags: Setting) -> str:
    """"max_num_seqs=64 enforce_eager=True", or "default" without a flag."""
    return " ".join(f"{name}={value}" for name, value in flags.items()) or "default"


class SettingFile:
    """A file with one line per row. Each row is written at once with the whole file.

    Args:
        path: path of the file. The first line describes the search.
        what: engine, workload, SLOs, settings and place as text. The file of another search is refused.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what

    def read(self) -> list[SettingRow]:
        """The rows in the file, without an incomplete last line, which an interrupted command of old could leave.

        Raises:
            UsageError: the file is not of this search.
        """
        head, *lines = self._lines()
        try:
            content = json.loads(head)
            if content["schema"] != SCHEMA:
                raise UsageError(f"{self.path}: schema {echo(content['schema'])}, and this pytest-llmperf reads "
                                 f"{SCHEMA}. Begin anew, without --resume.")
            if content["search"] != self.what:
                raise UsageError(f"{self.path} holds another tuning:\n  {echo(content['search'])}\nand this one is\n"
                                 f"  {self.what}\nGive the options of the first command, or drop --resume.")
            return [self._row(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"{self.path}: this is no file of a tuning ({echo(str(error))}). "
                             "Drop --resume.") from error

    def begin(self) -> None:
        """Write the line that describes the search, unless the file has it.

        Raises:
            UsageError: the file cannot be written.
        """
        self._write(self._lines())

    def append(self, row: SettingRow) -> None:
        """Add a row; it is on the disk when this returns.

        Raises:
            UsageError: the file cannot be written.
        """
        rates = [{"rate": each.rate, "verdict": each.verdict.value, "holds": each.holds, "runs": each.runs}
                 for each in row.rates]
        content = {"flags": row.flags, "metrics": row.metrics, "problem": row.problem, "runs": row.runs,
                   "kind": row.kind, "host": row.host, "rates": rates}
        self._write([*self._lines(), json.dumps(content, allow_nan=False)])

    def _lines(self) -> list[str]:
        """The whole lines of the file: the line that describes the search, then one line per row."""
        try:
            text = read_file(self.path).decode("utf-8")
        except FileNotFoundError:
            text = ""
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self.path}: cannot be read: {error}.") from error
        whole = text[: text.rfind("\n") + 1].splitlines()
        return whole or [json.dumps({"schema": SCHEMA, "search": self.what})]

    def _write(self, lines: Sequence[str]) -> None:
        try:
            write_whole(self.path, "".join(f"{line}\n" for line in lines).encode(), durable=True)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error}.") from error

    @staticmethod
    def _row(content: Mapping[str, Any]) -> SettingRow:
        rates = tuple(TriedRate(**{**rate, "verdict": Verdict(rate["verdict"])}) for rate in content["rates"])
        row = SettingRow(**{**content, "rates": rates})
        if not all(isinstance(table, dict) for table in (row.flags, row.metrics, row.runs)) or not isinstance(
            row.problem, str
        ):
            raise TypeError("a row must have flags, metrics, problem, runs and kind")
        return row


class Standing(Enum):
    """How a setting stands among all settings."""

    FRONT = "*"
    UNDECIDED = "~"
    BEATEN = ""


def standings(rows: Sequence[SettingRow], metrics: Sequence[str]) -> list[Standing]:
    """The standing of each row.

    BEATEN: another row has means that are as good in every metric, and is proven to be better in one. UNDECIDED:
    another row has such means, and no difference is proven. FRONT: no other row has such means. The difference of two
    rows is judged by `judging.change.is_proven_worse`.
    """
    return [_standing(row, rows, metrics) for row in rows]


def _standing(row: SettingRow, rows: Sequence[SettingRow], metrics: Sequence[str]) -> Standing:
    if any(row.metrics.get(metric) is None for metric in metrics):
        return Standing.BEATEN
    better = [other for other in rows if _has_better_means(other, row, metrics)]
    if any(is_proven_worse(find(metric), row.runs.get(metric, ()), other.runs.get(metric, ()), row.kind)
           for other in better for metric in metrics):
        return Standing.BEATEN
    return Standing.UNDECIDED if better else Standing.FRONT


def _has_better_means(other: SettingRow, row: SettingRow, metrics: Sequence[str]) -> bool:
    """Whether the means of `other` are as good as the means of `row` in every metric and better in one."""
    if any(other.metrics.get(metric) is None for metric in metrics):
        return False
    costs = [(_cost(metric, other.metrics[metric]), _cost(metric, row.metrics[metric])) for metric in metrics]
    return all(theirs <= ours for theirs, ours in costs) and any(theirs < ours for theirs, ours in costs)


def _cost(metric: str, value: float | None) -> float:
    """Less is better."""
    cost = value if value is not None else float("inf")
    return -cost if find(metric).direction is Direction.HIGHER else cost
