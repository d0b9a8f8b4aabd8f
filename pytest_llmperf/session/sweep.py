"""Measures settings of flags in sequence, for a sweep or a tuning. An interrupted one continues at the next setting."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmperf.bounded_file import read_file
from pytest_llmperf.config.settings import Settings
from pytest_llmperf.errors import (
    EngineError,
    EnvironmentMissing,
    HardwareBusy,
    InfrastructureError,
    RunInvalid,
    UsageError,
    echo,
)
from pytest_llmperf.judging.claim_judge import invalid_results
from pytest_llmperf.judging.ratios import start_sd_prior
from pytest_llmperf.judging.validity import judged_by_comparison
from pytest_llmperf.metrics.registry import find
from pytest_llmperf.metrics.units import Direction
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import Note
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.process.scratch import write_whole
from pytest_llmperf.results.conditions import server_kind
from pytest_llmperf.results.measurement import Measurement
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.session.capacity import METRIC, PRECISION, search_terms
from pytest_llmperf.session.perf import Perf
from pytest_llmperf.session.resumption import RATE, RATE_HOST, RATE_SIDE, RATE_VERDICT, SEARCH
from pytest_llmperf.stats.priors import scale_of, worse_when_larger
from pytest_llmperf.stats.ratio import paired_difference
from pytest_llmperf.workload import Workload

if TYPE_CHECKING:
    from pytest_llmperf.session.perf_session import PerfSession

SCHEMA = 2
CONFIDENCE = 0.99  # of each limit of a difference between two combinations
Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class JudgedRate:
    """A rate that a search judged.

    Args:
        rate: requests/s.
        within: whether the rate meets the SLOs: the proven answer, or the measured answer of a rate without proof.
        proven: whether the answer is proven.
        runs: number of runs at this rate.
    """

    rate: float
    within: bool
    proven: bool
    runs: int

    def __str__(self) -> str:
        answer = "within" if self.within else "over"
        known = "one run" if self.runs == 1 else "not decided"
        return f"{self.rate:.4g}/s {answer} ({'proven' if self.proven else known})"


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One combination.

    Args:
        flags: name → value, as JSON has it.
        metrics: name → mean over the runs; empty where it could not be measured.
        problem: why it could not; "" where it could.
        runs: name → value of each run, in the order of the seeds; None for a missing or infinite value.
        kind: hardware kind of the server, for the spread between server starts.
        invalid: whether the problem is an invalid run, so that another measurement may succeed.
        rates: the rates that the search judged, in order.
        host: digest of the host that measured the row.
    """

    flags: Mapping[str, object]
    metrics: Values
    problem: str = ""
    runs: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    kind: str = ""
    invalid: bool = False
    rates: Sequence[JudgedRate] = ()
    host: str = ""

    @property
    def is_final(self) -> bool:
        """Whether a resumed command takes this row over. The default must be measured, so its failure is not final."""
        return not self.invalid and (bool(self.flags) or not self.problem)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The measurement of each combination.

    Args:
        spec: the engine without the flags of a combination.
        workload: the workload to send.
        metrics: names of the metrics that plain runs measure; empty for a search alone.
        slos: SLOs for a search of the highest rate; empty for no search.
        runs: number of runs per combination.
        precision, quick, to_beat: of the search, see `Perf.max_rate`.
    """

    spec: EngineSpec
    workload: Workload
    metrics: tuple[str, ...] = ()
    slos: tuple[str, ...] = ()
    runs: int = 3
    precision: float = PRECISION
    quick: bool = False
    to_beat: float | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (METRIC, *self.metrics) if self.slos else self.metrics


def measure_row(perf: Perf, settings: Settings, plan: SweepPlan, flags: Mapping[str, object]) -> SweepRow:
    """One row of the sweep. An engine that refuses its flags or dies, and invalid runs, also give a row.

    Raises:
        EnvironmentMissing, HardwareBusy: the cause is the machine, not the combination of flags.
    """
    candidate = plan.spec.with_flags(**flags)  # type: ignore[arg-type]  # as JSON has it
    values: dict[str, float | None] = {}
    runs: dict[str, list[float | None]] = {}
    try:
        if plan.metrics:
            measurement = perf.measure(candidate, plan.workload, runs=plan.runs, may_preempt=True)
            if errors := invalid_results([("", measurement, judged_by_comparison(plan.metrics))], settings):
                return SweepRow(flags, {}, reason_text(errors[0]), invalid=True)
            values |= {name: measurement.value(name) for name in plan.metrics}
            runs |= {name: _finite(measurement.values_with_failures(name)) for name in plan.metrics}
        if plan.slos:
            measurement = perf.max_rate(candidate, plan.workload, slo=plan.slos, precision=plan.precision,
                                        quick=plan.quick, to_beat=plan.to_beat)
            values[METRIC], runs[METRIC] = measurement.value(METRIC), _finite(measurement.values_with_failures(METRIC))
    except (EnvironmentMissing, HardwareBusy):
        raise
    except InfrastructureError as error:
        return SweepRow(flags, {}, _error_text(error), invalid=isinstance(error, RunInvalid))
    return SweepRow(flags, values, runs=runs, kind=server_kind(measurement.conditions))


def measure_setting(
    perf: Perf, session: PerfSession, file: SweepFile, plan: SweepPlan, flags: Mapping[str, object]
) -> SweepRow:
    """Measure a setting of flags by its plan, and append its row to the file if the row is final.

    Raises:
        EnvironmentMissing, HardwareBusy: as in `measure_row`.
        UsageError: the file cannot be written.
    """
    session.notify(Note(f"Setting: {flags_text(flags)}"))
    row = replace(measure_row(perf, session.settings, plan, flags), host=session.host)
    if plan.slos:
        row = replace(row, rates=_judged_rates(perf.measurements, plan, row))
    if row.is_final:
        file.append(row)
    session.release_records()  # the row is written
    return row


def check_measured(rows: Sequence[SweepRow]) -> None:
    """Raise UsageError if there is a row and no row could be measured. The message has each cause once."""
    if not rows or not all(row.problem for row in rows):
        return
    causes: dict[str, str] = {}
    for row in rows:
        causes.setdefault(row.problem, flags_text(row.flags))
    listed = "\n".join(f"  {flags}: {problem}" for problem, flags in causes.items())
    raise UsageError(f"none of the {len(rows)} settings could be measured:\n{listed}\nMeasure the engine without them "
                     f"first: llmperf capacity. Then repeat llmperf sweep with other values.")


def flags_text(flags: Mapping[str, object]) -> str:
    """"max_num_seqs=64 enforce_eager=True", or "default" without a flag."""
    return " ".join(f"{name}={value}" for name, value in flags.items()) or "default"


def _judged_rates(measurements: Iterable[Measurement], plan: SweepPlan, row: SweepRow) -> tuple[JudgedRate, ...]:
    """The rates of the search that gave this row."""
    engine = str(plan.spec.with_flags(**row.flags))  # type: ignore[arg-type]  # as JSON has it
    search = f"{plan.workload}, {search_terms(plan.slos, plan.precision, quick=plan.quick, to_beat=plan.to_beat)}"
    of_search = [each for each in measurements if RATE_VERDICT in each.conditions and (
        each.engine, each.conditions.get(SEARCH), each.conditions.get(RATE_HOST)) == (engine, search, row.host)]
    return tuple(
        JudgedRate(float(each.conditions[RATE].removesuffix("/s")), each.conditions[RATE_SIDE] == "within",
                   each.conditions[RATE_VERDICT] != Verdict.INCONCLUSIVE.value, len(each.runs)) for each in of_search
    )


def _finite(values: Iterable[float | None]) -> list[float | None]:
    return [value if value is not None and isfinite(value) else None for value in values]


def _error_text(error: InfrastructureError) -> str:
    """Its first line, and the last words of the server."""
    evidence = error.evidence if isinstance(error, EngineError) else None
    last_line = f" {evidence.log_tail[-1]}" if evidence is not None and evidence.log_tail else ""
    return str(error).partition("\n")[0] + last_line


class SweepFile:
    """A file of sweep rows, with one line per row. Each row is written at once with the whole file.

    Args:
        path: path of the file. The first line describes the sweep.
        what: engine, workload, metrics and place as text. A file of a different sweep is refused.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what

    def read(self) -> list[SweepRow]:
        """The rows in the file, without an incomplete last line, which an interrupted command of old could leave.

        Raises:
            UsageError: the file is not a file of this sweep.
        """
        head, *lines = self._lines()
        try:
            content = json.loads(head)
            if content["schema"] != SCHEMA:
                raise UsageError(f"{self.path}: schema {echo(content['schema'])}, and this pytest-llmperf reads "
                                 f"{SCHEMA}. Name another --file.")
            if content["sweep"] != self.what:
                raise UsageError(f"{self.path} holds another sweep:\n  {echo(content['sweep'])}\nand this one is\n"
                                 f"  {self.what}\nName another --file.")
            return [self._row(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"{self.path}: this is no file of a sweep ({echo(str(error))}). "
                             "Name another --file.") from error

    def begin(self) -> None:
        """Write the line that describes the sweep, unless the file has it.

        Raises:
            UsageError: it cannot be written.
        """
        self._write(self._lines())

    def append(self, row: SweepRow) -> None:
        """Add a row; it is on the disk when this returns.

        Raises:
            UsageError: it cannot be written.
        """
        content = {"flags": row.flags, "metrics": row.metrics, "problem": row.problem, "runs": row.runs,
                   "kind": row.kind, "host": row.host, "rates": [asdict(rate) for rate in row.rates]}
        self._write([*self._lines(), json.dumps(content, allow_nan=False)])

    def _lines(self) -> list[str]:
        """The whole lines of the file: the line that describes the sweep, then one line per row."""
        try:
            text = read_file(self.path).decode("utf-8")
        except FileNotFoundError:
            text = ""
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self.path}: cannot be read: {error}.") from error
        whole = text[: text.rfind("\n") + 1].splitlines()
        return whole or [json.dumps({"schema": SCHEMA, "sweep": self.what})]

    def _write(self, lines: Sequence[str]) -> None:
        try:
            write_whole(self.path, "".join(f"{line}\n" for line in lines).encode(), durable=True)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error}.") from error

    @staticmethod
    def _row(content: Mapping[str, Any]) -> SweepRow:
        rates = tuple(JudgedRate(**rate) for rate in content.get("rates", ()))
        row = SweepRow(**{**content, "rates": rates})
        if not all(isinstance(table, dict) for table in (row.flags, row.metrics, row.runs)) or not isinstance(
            row.problem, str
        ):
            raise TypeError("a row must have flags, metrics, problem, runs and kind")
        return row


class Standing(Enum):
    """How a combination stands among all combinations of a sweep."""

    FRONT = "*"
    UNDECIDED = "~"
    BEATEN = ""


def standings(rows: Sequence[SweepRow], metrics: Sequence[str]) -> list[Standing]:
    """The standing of each row.

    BEATEN: another row has means that are as good in every metric, and is proven to be better in one. UNDECIDED:
    another row has such means, and no difference is proven. FRONT: no other row has such means. The difference of two
    rows is the mean of the paired differences of equal seeds on the metric's scale; its standard error includes the
    spread between server starts, because each combination has one start.
    """
    return [_standing(row, rows, metrics) for row in rows]


def _standing(row: SweepRow, rows: Sequence[SweepRow], metrics: Sequence[str]) -> Standing:
    if any(row.metrics.get(metric) is None for metric in metrics):
        return Standing.BEATEN
    better = [other for other in rows if _has_better_means(other, row, metrics)]
    if any(_is_proven_better(other, row, metric) for other in better for metric in metrics):
        return Standing.BEATEN
    return Standing.UNDECIDED if better else Standing.FRONT


def _has_better_means(other: SweepRow, row: SweepRow, metrics: Sequence[str]) -> bool:
    """Whether the means of `other` are as good as the means of `row` in every metric and better in one."""
    if any(other.metrics.get(metric) is None for metric in metrics):
        return False
    costs = [(_cost(metric, other.metrics[metric]), _cost(metric, row.metrics[metric])) for metric in metrics]
    return all(theirs <= ours for theirs, ours in costs) and any(theirs < ours for theirs, ours in costs)


def _is_proven_better(other: SweepRow, row: SweepRow, name: str) -> bool:
    metric = find(name)
    scale, larger_is_worse = scale_of(metric), worse_when_larger(metric)
    pairs = zip(other.runs.get(name, ()), row.runs.get(name, ()), strict=False)
    try:
        differences = [scale.read(theirs, worse_when_larger=larger_is_worse)
                       - scale.read(ours, worse_when_larger=larger_is_worse) for theirs, ours in pairs]
        difference = paired_difference(differences, start_sd_prior(metric, row.kind).value)
    except ValueError:  # no runs, or a value that is missing or 0
        return False
    return difference.upper(CONFIDENCE) < 0


def _cost(metric: str, value: float | None) -> float:
    """Less is better."""
    cost = value if value is not None else float("inf")
    return -cost if find(metric).direction is Direction.HIGHER else cost
