"""Measures all combinations of flag values in sequence. An interrupted sweep continues at the next combination."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TextIO

from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import EngineError, EnvironmentMissing, HardwareBusy, InfrastructureError, UsageError
from pytest_llmperf.judging.claim_judge import invalid_results
from pytest_llmperf.judging.validity import judged_by_comparison
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.units import Direction
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.session.capacity import METRIC
from pytest_llmperf.session.perf import Perf
from pytest_llmperf.workload import Workload

SCHEMA = 1
Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One combination.

    Args:
        flags: name → value, as JSON has it.
        metrics: name → mean over the runs; empty where it could not be measured.
        problem: why it could not; "" where it could.
    """

    flags: Mapping[str, object]
    metrics: Values
    problem: str = ""


def combinations(grid: Mapping[str, Sequence[object]]) -> Iterator[dict[str, object]]:
    """Every combination, the last flag fastest."""
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The measurement of each combination.

    Args:
        spec: the engine without the flags of a combination.
        workload: the workload to send.
        metrics: names of the metrics.
        slos: SLOs for a search of the highest rate; empty for no search.
        runs: number of runs per combination.
    """

    spec: EngineSpec
    workload: Workload
    metrics: tuple[str, ...]
    slos: tuple[str, ...] = ()
    runs: int = 3

    @property
    def columns(self) -> tuple[str, ...]:
        return (METRIC, *self.metrics) if self.slos else self.metrics


def measure_row(perf: Perf, settings: Settings, plan: SweepPlan, flags: Mapping[str, object]) -> Row:
    """One row of the sweep. An engine that refuses its flags or dies, and invalid runs, also give a row.

    Raises:
        EnvironmentMissing, HardwareBusy: the cause is the machine, not the combination of flags.
    """
    candidate = plan.spec.with_flags(**flags)  # type: ignore[arg-type]  # as JSON has it
    try:
        measurement = perf.measure(candidate, plan.workload, runs=plan.runs, may_preempt=True)
        if errors := invalid_results([("", measurement, judged_by_comparison(plan.metrics))], settings):
            return Row(flags, {}, reason_text(errors[0]))
        values = {name: measurement.value(name) for name in plan.metrics}
        if plan.slos:
            values[METRIC] = perf.max_rate(candidate, plan.workload, slo=plan.slos).value(METRIC)
    except (EnvironmentMissing, HardwareBusy):
        raise
    except InfrastructureError as error:
        return Row(flags, {}, _error_text(error))
    return Row(flags, values)


def _error_text(error: InfrastructureError) -> str:
    """Its first line, and the last words of the server."""
    evidence = error.evidence if isinstance(error, EngineError) else None
    last_line = f" {evidence.log_tail[-1]}" if evidence is not None and evidence.log_tail else ""
    return str(error).partition("\n")[0] + last_line


class SweepFile:
    """A file of sweep rows, with one line appended per row.

    Args:
        path: path of the file. The first line describes the sweep.
        what: engine, workload, metrics and place as text. A file of a different sweep is refused.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what

    def read(self) -> list[Row]:
        """The rows in the file, without an incomplete last line, which an interrupted sweep can leave.

        Raises:
            UsageError: the file is not a file of this sweep.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self.path}: cannot be read: {error}.") from error
        whole = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
        try:
            return [self._row(json.loads(line)) for line in self._after_head(whole)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{self.path}: this is no file of a sweep ({error}). Name another --file.") from error

    def check_writable(self) -> None:
        """Say before minutes of measuring what cannot be written; nothing is.

        Raises:
            UsageError: it cannot.
        """
        there = self.path.exists()
        with self._open():
            pass
        if not there:
            self.path.unlink()

    def append(self, row: Row) -> None:
        """Add a row; it is on the disk when this returns.

        Raises:
            UsageError: it cannot be written.
        """
        line = json.dumps({"flags": row.flags, "metrics": row.metrics, "problem": row.problem}, allow_nan=False)
        with self._open() as file:
            head = "" if self._begun() else json.dumps({"schema": SCHEMA, "sweep": self.what}) + "\n"
            file.write(f"{head}{line}\n")
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def _open(self) -> Iterator[TextIO]:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                yield file
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error}.") from error

    def _begun(self) -> bool:
        """Whether the file has its first line. An incomplete last line is removed."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            os.truncate(self.path, len(whole))
        return bool(whole)

    def _after_head(self, lines: list[str]) -> list[str]:
        if not lines:
            return []
        head = json.loads(lines[0])
        if head["schema"] != SCHEMA:
            raise UsageError(f"{self.path}: schema {head['schema']}, and this pytest-llmperf reads {SCHEMA}. "
                             "Name another --file.")
        if head["sweep"] != self.what:
            raise UsageError(f"{self.path} holds another sweep:\n  {head['sweep']}\nand this one is\n  {self.what}\n"
                             "Name another --file.")
        return lines[1:]

    @staticmethod
    def _row(content: Mapping[str, Mapping[str, float | None] | str]) -> Row:
        flags, metrics, problem = content["flags"], content["metrics"], content["problem"]
        if not isinstance(flags, dict) or not isinstance(metrics, dict) or not isinstance(problem, str):
            raise TypeError("a row must have flags, metrics and problem")
        return Row(flags, metrics, problem)


def pareto_front(rows: Iterable[Row], metrics: Sequence[str]) -> list[Row]:
    """Rows that no other row beats: as good in every metric and better in one."""
    complete_rows = [row for row in rows if all(row.metrics.get(metric) is not None for metric in metrics)]
    points = [tuple(_cost(metric, row.metrics[metric]) for metric in metrics) for row in complete_rows]

    def beaten(point: tuple[float, ...]) -> bool:
        return any(other != point and all(o <= p for o, p in zip(other, point, strict=True)) for other in points)

    return [row for row, point in zip(complete_rows, points, strict=True) if not beaten(point)]


def _cost(metric: str, value: float | None) -> float:
    """Less is better."""
    worth = value if value is not None else float("inf")
    return -worth if find(metric).direction is Direction.HIGHER else worth
