"""Tunes the flags of an engine: the highest rate of each setting, and a proof of the best setting against the default.

A search of one setting errs by its seeds and its server start, and the best of many settings is partly the luckiest.
The proof therefore measures the best setting and the default again, with other seeds.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmperf.engines.spec import flags_of, secrets_of
from pytest_llmperf.errors import UsageError
from pytest_llmperf.kinds import kind_names
from pytest_llmperf.model.engine import EngineSpec
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult
from pytest_llmperf.session.capacity import METRIC, PRECISION, SEEDS_PER_SEARCH
from pytest_llmperf.session.perf import Perf
from pytest_llmperf.session.sequential_claim import ClaimResult
from pytest_llmperf.session.sweep import SweepFile, SweepPlan, SweepRow, measure_setting
from pytest_llmperf.workload import Workload
from pytest_llmperf.workload.expression import builders_of

if TYPE_CHECKING:
    from pytest_llmperf.session.perf_session import PerfSession

#: Seeds after those of the workload: the default is searched a second time with other seeds, and the proof with others.
SECOND_SEEDS, PROOF_SEEDS = SEEDS_PER_SEARCH, 10 * SEEDS_PER_SEARCH
BETTER = f"{METRIC}(a) / {METRIC}(b) >= 1"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings to measure and to prove.

    Args:
        plan: engine with its default flags, workload, metrics and SLOs.
        candidates: flags of each setting that may be better.
        start_sd: known deviation of `max_rate` between server starts, as a share; None for the default of a claim.
    """

    plan: SweepPlan
    candidates: tuple[Mapping[str, object], ...]
    start_sd: float | None = None

    @property
    def size(self) -> int:
        """Number of settings to measure; the default counts twice."""
        return len(self.candidates) + 2

    def rows(self, perf: Perf, session: PerfSession, file: SweepFile) -> Iterator[SweepRow]:
        """The rows of the default, of each candidate, and of the default with other seeds on another server start.

        Rows of the file are not measured again. The search of a candidate begins at the rate of the default, and ends
        as soon as it is proven that the candidate does not serve this rate. On a further host the default is measured
        again, because a candidate is compared with the default of its own host. The rows of the default on earlier
        hosts come first.

        Raises:
            EnvironmentMissing, HardwareBusy: the cause is the machine, not the flags.
            UsageError: the default cannot be measured, or the file cannot be used.
        """
        stored_rows, here = file.read(), session.host
        elsewhere = [row for row in stored_rows if not row.flags and row.host != here]
        yield from elsewhere
        stored_rows = [row for row in stored_rows if row not in elsewhere]
        default = _taken(stored_rows, {}) or measure_setting(perf, session, file, self.plan, {})
        yield default
        if not default.is_final:
            advice = "" if default.invalid else " Change the flags of the default, the load or the SLOs."
            raise UsageError("the default cannot be measured, so no setting can be proven to be better: "
                             f"{default.problem}{advice}")
        plan = replace(self.plan, to_beat=default.metrics[METRIC])
        for flags in self.candidates:
            yield _taken(stored_rows, flags) or measure_setting(perf, session, file, plan, flags)
        yield _taken(stored_rows, {}) or measure_setting(perf, session, file, self._seeded(SECOND_SEEDS), {})

    @property
    def specs(self) -> list[EngineSpec]:
        """The default, then each candidate."""
        return [self.plan.spec, *map(self.tuned, self.candidates)]

    def tuned(self, flags: Mapping[str, object]) -> EngineSpec:
        """The engine with these flags."""
        return self.plan.spec.with_flags(**flags)  # type: ignore[arg-type]  # as JSON has it

    def proof_workload(self, rate: float) -> Workload:
        """The workload of the proof: seeds that no search has used, and this rate in requests/s."""
        workload = self.plan.workload
        return workload.at_rate(float(f"{rate / workload.requests_per_arrival:.4g}"), PROOF_SEEDS)

    def prove(self, perf: Perf, flags: Mapping[str, object], rate: float) -> ClaimResult:
        """Claim that these flags serve a higher rate within the SLOs than the default; see `Perf.claim_max_rate`.

        Args:
            flags: of the setting.
            rate: between the rates of the two sides, in requests/s. Each search begins there. A rate that is nearer to
                one side would take more runs, and a rate of its own for each side would favour the lucky side.
        """
        return perf.claim_max_rate(
            self.tuned(flags), self.plan.spec, self.proof_workload(rate), BETTER, slo=self.plan.slos,
            precision=self.plan.precision, start_sd={} if self.start_sd is None else {METRIC: self.start_sd},
            quick=self.plan.quick,
        )

    def suite(self, flags: Mapping[str, object], proof: CheckResult, kind: str, place: str, rate: float) -> str:
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
        workload, slos = str(self.proof_workload(rate)), " and ".join(self.plan.slos)
        names = sorted({"Perf", self.plan.spec.engine, *builders_of(workload)})
        options = "" if self.plan.precision == PRECISION else f", precision={self.plan.precision!r}"
        options += ", quick=True" if self.plan.quick else ""
        options += "" if self.start_sd is None else f', start_sd={{"{METRIC}": {self.start_sd!r}}}'
        marker = [f"@pytest.mark.{kind}"] if kind in kind_names() else []
        return "\n".join([
            f'"""Tuned flags serve a higher rate within {slos}.', "",
            "Written by `llmperf tune`. The limit is the square root of the lower bound. Measured:",
            f"{ratio:.3f} times the rate of the default, at least {low:.3f} times (99 %),",
            f"on {place}.", '"""', "",
            *(["import pytest", ""] if marker else []),
            f"from pytest_llmperf import {', '.join(names)}", "",
            f"DEFAULT = {_lines(_spec_text(self.plan.spec))}",
            f"TUNED = DEFAULT.with_flags({', '.join(f'{name}={value!r}' for name, value in flags.items())})",
            f"LOAD = {_lines(workload)}",
            f"SLOS = {json.dumps(self.plan.slos)}",
            f"CLAIM = {claim}", "", "",
            *marker,
            "def test_tuned_flags_serve_a_higher_rate(perf: Perf) -> None:",
            f'    perf.claim_max_rate(TUNED, DEFAULT, LOAD, CLAIM, slo=SLOS{options})',
            "",
        ])

    def _seeded(self, offset: int) -> SweepPlan:
        workload = self.plan.workload
        return replace(self.plan, workload=workload.at_rate(workload.rate, offset))


def distinct(spec: EngineSpec, settings: Iterable[Mapping[str, object]]) -> tuple[Mapping[str, object], ...]:
    """The settings that change the engine, each once."""
    by_spec = {spec.with_flags(**flags): flags for flags in settings}  # type: ignore[arg-type]
    by_spec.pop(spec, None)
    return tuple(by_spec.values())


def _taken(rows: list[SweepRow], flags: Mapping[str, object]) -> SweepRow | None:
    """Remove and return the first row with these flags; None if there is none."""
    position = next((position for position, row in enumerate(rows) if row.flags == flags), None)
    return None if position is None else rows.pop(position)


def default_rates(rows: Sequence[SweepRow], host: str) -> list[float]:
    """The rates of the default's searches on a host, in requests/s."""
    rates = [row.metrics.get(METRIC) for row in rows if not row.flags and row.host == host]
    return [rate for rate in rates if rate is not None]


def gain(row: SweepRow, rows: Sequence[SweepRow]) -> float:
    """Rate of a candidate divided by the highest rate of the default on the same host; 0 without a rate."""
    return (row.metrics.get(METRIC) or 0.0) / max(default_rates(rows, row.host), default=float("inf"))


def middle_rate(row: SweepRow, rows: Sequence[SweepRow], host: str) -> float:
    """The rate between the default of this host and a candidate, in the middle on a logarithmic scale."""
    return max(default_rates(rows, host)) * sqrt(gain(row, rows))


def best_row(rows: Sequence[SweepRow]) -> SweepRow | None:
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
    if path.exists():
        raise UsageError(f"--write {path}: the file exists, and tune overwrites no file. Name a new file.")
    if not (path.name.startswith("test_") and path.suffix == ".py"):
        raise UsageError(f"--write {path}: pytest collects test_*.py. Write --write suites/test_tuned.py.")
    if not path.parent.is_dir():
        raise UsageError(f"--write {path}: there is no folder {path.parent}. Make it first.")
    if secrets_of(spec):
        raise UsageError(f"--write {path}: a flag holds a secret, and a test file must not. Put it into the "
                         "environment of the server.")


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
