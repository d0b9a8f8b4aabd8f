"""The settings of an engine to search: the highest rate of each, and a proof of the best against the default.

`llmperf capacity` searches one setting. A search of one setting errs by its seeds and its server start, and the best of
many settings is partly the luckiest. The proof therefore measures the best setting and the default again, with other
seeds.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import floor, isfinite, sqrt
from pathlib import Path

from pytest_llmperf.engines.spec import flags_of, secrets_of
from pytest_llmperf.errors import (
    EngineError,
    EnvironmentMissing,
    HardwareBusy,
    InfrastructureError,
    RunInvalid,
    UsageError,
    refuse,
)
from pytest_llmperf.judging.claim_judge import invalid_results
from pytest_llmperf.judging.validity import judged_by_comparison
from pytest_llmperf.kinds import kind_names
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.status import Note
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.results.conditions import server_kind
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.session.capacity import METRIC, PRECISION, SEEDS_PER_SEARCH, Capacity
from pytest_llmperf.session.executions import Execution
from pytest_llmperf.session.perf import Perf
from pytest_llmperf.session.resumption import take_first
from pytest_llmperf.session.sequential_claim import ClaimResult
from pytest_llmperf.session.setting_rows import Setting, SettingFile, SettingRow, flags_text
from pytest_llmperf.workload import Workload
from pytest_llmperf.workload.expression import builders_of

#: Seeds after those of the workload: the default is searched a second time with other seeds, and the proof with others.
SECOND_SEEDS, PROOF_SEEDS = SEEDS_PER_SEARCH, 10 * SEEDS_PER_SEARCH
BETTER = f"{METRIC}(a) / {METRIC}(b) >= 1"


@dataclass(frozen=True, slots=True)
class Search:
    """The settings to measure and to prove.

    Args:
        spec: the engine with its default flags.
        workload: the workload to send.
        candidates: flags of each setting that may be better.
        slos: SLOs of the search for the highest rate of each setting; empty for no search and no proof.
        metrics: names of the metrics that plain runs measure.
        runs: number of these runs of each setting.
        precision: as in `Perf.max_rate`. The searches are quick.
        start_sd: known deviation of `max_rate` between server starts, as a share; None for the default of a claim.
    """

    spec: EngineSpec
    workload: Workload
    candidates: tuple[Setting, ...]
    slos: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    runs: int = 3
    precision: float = PRECISION
    start_sd: float | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The metrics of the table."""
        return (METRIC, *self.metrics) if self.slos else self.metrics

    @property
    def size(self) -> int:
        """Number of settings to measure; the default of a search counts twice."""
        return len(self.candidates) + (2 if self.slos else 1)

    @property
    def specs(self) -> list[EngineSpec]:
        """The default, then each candidate."""
        return [self.spec, *map(self.tuned, self.candidates)]

    def tuned(self, flags: Setting) -> EngineSpec:
        """The engine with these flags."""
        return self.spec.with_flags(**flags)  # type: ignore[arg-type]  # as JSON has it

    def rows(self, perf: Perf, execution: Execution, file: SettingFile) -> Iterator[SettingRow]:
        """The rows of the default, of each candidate, and of the default with other seeds on another server start.

        Rows of the file are not measured again. The search of a candidate begins at the rate of the default, and ends
        as soon as it is proven that the candidate does not serve this rate. On a further host the default is measured
        again, because a candidate is compared with the default of its own host. The rows of the default on earlier
        hosts come first.

        Raises:
            EnvironmentMissing, HardwareBusy: the cause is the machine, not the flags.
            UsageError: the default of a search cannot be measured, or the file cannot be used.
        """
        stored_rows, here = file.read(), execution.session.host
        elsewhere = [row for row in stored_rows if not row.flags and row.host != here]
        yield from elsewhere
        stored_rows = [row for row in stored_rows if row not in elsewhere]

        def measured(flags: Setting, to_beat: float | None = None, seeds: int = 0) -> SettingRow:
            if (row := take_first(stored_rows, lambda row: row.flags == flags)) is None:
                row = self._measured(perf, execution, flags, to_beat, seeds)
                if row.is_final:
                    file.append(row)
                execution.session.release_records()  # the row is written
            return row

        default = measured({})
        yield default
        if self.slos and not default.is_final:
            advice = "" if default.invalid else " Change the flags of the default, the load or the SLOs."
            raise UsageError("the default cannot be measured, so no setting can be proven to be better: "
                             f"{default.problem}{advice}")
        for flags in self.candidates:
            yield measured(flags, default.metrics.get(METRIC))
        if self.slos:
            yield measured({}, seeds=SECOND_SEEDS)

    def _measured(
        self, perf: Perf, execution: Execution, flags: Setting, to_beat: float | None, seeds: int
    ) -> SettingRow:
        """The row of a setting. An engine that refuses its flags, and invalid runs, also give a row."""
        session, begun = execution.session, len(execution.series)
        session.notify(Note(f"Setting: {flags_text(flags)}"))
        workload = self.workload.at_rate(self.workload.rate, seeds) if seeds else self.workload
        metrics: dict[str, float | None] = {}
        runs: dict[str, list[float | None]] = {}
        problem, kind, invalid = "", "", False
        try:
            if self.metrics:
                measurement = perf.measure(self.tuned(flags), workload, runs=self.runs, may_preempt=True)
                judged = judged_by_comparison(self.metrics)
                if errors := invalid_results([("", measurement, judged)], session.settings):
                    raise RunInvalid(reason_text(errors[0]))
                kind = server_kind(measurement.conditions)
                metrics |= {name: measurement.value(name) for name in self.metrics}
                runs |= {name: _finite(measurement.values_with_failures(name)) for name in self.metrics}
            if self.slos:
                measurement = perf.max_rate(self.tuned(flags), workload, slo=self.slos, precision=self.precision,
                                            quick=True, to_beat=to_beat)
                kind = server_kind(measurement.conditions)
                metrics[METRIC] = measurement.value(METRIC)
                runs[METRIC] = _finite(measurement.values_with_failures(METRIC))
        except (EnvironmentMissing, HardwareBusy):
            raise
        except InfrastructureError as error:
            metrics, runs, kind = {}, {}, ""
            problem, invalid = _error_text(error), isinstance(error, RunInvalid)
        rates = [rate for series in execution.series[begun:] if isinstance(series, Capacity) for rate in series.tried]
        return SettingRow(flags, metrics, problem, runs, kind, invalid, tuple(rates), session.host)

    def proof_workload(self, rate: float) -> Workload:
        """The workload of the proof: seeds that no search has used, and this rate in requests/s."""
        return self.workload.at_rate(float(f"{rate / self.workload.requests_per_arrival:.4g}"), PROOF_SEEDS)

    def prove(self, perf: Perf, flags: Setting, rate: float) -> ClaimResult:
        """Claim that these flags serve a higher rate within the SLOs than the default; see `Perf.claim_max_rate`.

        Args:
            flags: of the setting.
            rate: between the rates of the two sides, in requests/s. Each search begins there. A rate that is nearer to
                one side would take more runs, and a rate of its own for each side would favour the lucky side.
        """
        return perf.claim_max_rate(
            self.tuned(flags), self.spec, self.proof_workload(rate), BETTER, slo=self.slos, precision=self.precision,
            start_sd={} if self.start_sd is None else {METRIC: self.start_sd}, quick=True,
        )

    def suite(self, flags: Setting, proof: CheckResult, kind: str, place: str, rate: float) -> str:
        """The text of a test file that repeats the claim.

        The limit is the square root of the interval's lower end: half of the proven gain on a logarithmic scale. A test
        of the same server passes, and a server that loses half of the gain does not.

        Args:
            flags: of the proven setting.
            proof: result of the claim.
            kind: hardware kind of the test.
            place: hardware and build that gave the proof.
            rate: as in `prove`.
        """
        low, ratio = (proof.interval.low if proof.interval else 1.0), proof.estimate or 1.0
        limit = max(1.0, floor(100 * sqrt(low)) / 100)
        claim = f'"{METRIC}(a) / {METRIC}(b) >= {limit:.2f}"'
        workload, slos = str(self.proof_workload(rate)), " and ".join(self.slos)
        names = sorted({"Perf", self.spec.engine, *builders_of(workload)})
        options = "" if self.precision == PRECISION else f", precision={self.precision!r}"
        options += ", quick=True"
        options += "" if self.start_sd is None else f', start_sd={{"{METRIC}": {self.start_sd!r}}}'
        marker = [f"@pytest.mark.{kind}"] if kind in kind_names() else []
        return "\n".join([
            f'"""Tuned flags serve a higher rate within {slos}.', "",
            "Written by `llmperf tune`. The limit is the square root of the lower bound. Measured:",
            f"{ratio:.3f} times the rate of the default, at least {low:.3f} times (99 %),",
            f"on {place}.", '"""', "",
            *(["import pytest", ""] if marker else []),
            f"from pytest_llmperf import {', '.join(names)}", "",
            f"DEFAULT = {_lines(_spec_text(self.spec))}",
            f"TUNED = DEFAULT.with_flags({', '.join(f'{name}={value!r}' for name, value in flags.items())})",
            f"LOAD = {_lines(workload)}",
            f"SLOS = {json.dumps(self.slos)}",
            f"CLAIM = {claim}", "", "",
            *marker,
            "def test_tuned_flags_serve_a_higher_rate(perf: Perf) -> None:",
            f'    perf.claim_max_rate(TUNED, DEFAULT, LOAD, CLAIM, slo=SLOS{options})',
            "",
        ])


def check_measured(rows: Sequence[SettingRow]) -> None:
    """Raise UsageError if there is a row and no row could be measured. The message has each cause once."""
    if not rows or not all(row.problem for row in rows):
        return
    causes: dict[str, str] = {}
    for row in rows:
        causes.setdefault(row.problem, flags_text(row.flags))
    listed = "\n".join(f"  {flags}: {problem}" for problem, flags in causes.items())
    raise UsageError(f"none of the {len(rows)} settings could be measured:\n{listed}\nMeasure the engine without them "
                     f"first: llmperf capacity. Then repeat llmperf tune with other values.")


def _finite(values: Iterable[float | None]) -> list[float | None]:
    return [value if value is not None and isfinite(value) else None for value in values]


def _error_text(error: InfrastructureError) -> str:
    """The first line of the error, and the last line of the log of the server."""
    evidence = error.evidence if isinstance(error, EngineError) else None
    last_line = f" {evidence.log_tail[-1]}" if evidence is not None and evidence.log_tail else ""
    return str(error).partition("\n")[0] + last_line


def distinct(spec: EngineSpec, settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """The settings that change the engine, each once."""
    by_spec = {spec.with_flags(**flags): flags for flags in settings}  # type: ignore[arg-type]
    by_spec.pop(spec, None)
    return tuple(by_spec.values())


def default_rates(rows: Sequence[SettingRow], host: str) -> list[float]:
    """The rates of the default's searches on a host, in requests/s."""
    rates = [row.metrics.get(METRIC) for row in rows if not row.flags and row.host == host]
    return [rate for rate in rates if rate is not None]


def gain(row: SettingRow, rows: Sequence[SettingRow]) -> float:
    """Rate of a candidate divided by the highest rate of the default on the same host; 0 without a rate."""
    return (row.metrics.get(METRIC) or 0.0) / max(default_rates(rows, row.host), default=float("inf"))


def middle_rate(row: SettingRow, rows: Sequence[SettingRow], host: str) -> float:
    """The rate between the default of this host and a candidate, in the middle on a logarithmic scale."""
    return max(default_rates(rows, host)) * sqrt(gain(row, rows))


def best_row(rows: Sequence[SettingRow]) -> SettingRow | None:
    """The candidate with the largest gain, of equal ones the first; None if no candidate serves more than the default.
    """
    measured = [row for row in rows if row.flags and gain(row, rows) > 1]
    return max(measured, key=lambda row: gain(row, rows), default=None)


def proof_of(claim: ClaimResult) -> CheckResult | None:
    """The result of a claim that is proven; None for any other verdict."""
    if claim.verdict is not Verdict.PASS:
        return None
    return next((result for result in claim.results if result.subject == BETTER), None)


def check_writable_suite(path: Path, spec: EngineSpec) -> None:
    """Raise UsageError if the test file cannot be written as a new file that pytest collects."""
    refuse(
        (path.exists(), f"--write {path}: the file exists, and tune overwrites no file. Name a new file."),
        (not (path.name.startswith("test_") and path.suffix == ".py"),
         f"--write {path}: pytest collects test_*.py. Write --write suites/test_tuned.py."),
        (not path.parent.is_dir(), f"--write {path}: there is no folder {path.parent}. Make it first."),
        (secrets_of(spec),
         f"--write {path}: a flag holds a secret, and a test file must not. Put it into the "
         "environment of the server."),
        error=UsageError,
    )


def _spec_text(spec: EngineSpec) -> str:
    words = [repr(spec.model)]
    words += [f"model_alias={list(spec.model_aliases)!r}"] if spec.model_aliases else []
    words += [f"{name}={value!r}" for name, value in flags_of(spec).items()]
    return f"{spec.engine}({', '.join(words)})"


def _lines(call: str) -> str:
    """A short call on one line, a long call with one argument per line."""
    node = ast.parse(call, mode="eval").body
    if len(call) <= 100 or not isinstance(node, ast.Call):
        return call
    words = [*map(ast.unparse, node.args), *map(ast.unparse, node.keywords)]
    return "\n".join([f"{ast.unparse(node.func)}(", *(f"    {word}," for word in words), ")"])
