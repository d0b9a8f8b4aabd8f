"""A run, a measurement and a test's result: the same types for this session and for a run folder that is read back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar

from pytest_llmperf.metrics import RunMetrics, measure
from pytest_llmperf.metrics.failed_as_infinite import value_with_failures
from pytest_llmperf.model.datasheet import LatencyBound
from pytest_llmperf.model.exchange import LoadReport
from pytest_llmperf.model.record import RequestRecord, RunRecords, failure_counts, reasons_text
from pytest_llmperf.model.telemetry import CpuUse, GaugeSample, GpuTrace, gauge_columns
from pytest_llmperf.model.verdict import Verdict
from pytest_llmperf.results.check import CheckResult, verdict_of_test
from pytest_llmperf.results.ended_test import FAILED, SKIPPED, STORED, UNDECIDED, USAGE, EndedTest, excused
from pytest_llmperf.results.profile import Profile
from pytest_llmperf.results.requests_file import all_records
from pytest_llmperf.results.sentences import reason_text
from pytest_llmperf.stats.priors import Margins

if TYPE_CHECKING:
    import pandas as pd

CUT_SHORT = "The test did not reach its end: the session was interrupted, or the test failed outside its checks."
#: Source ("server", "gpu") → column with a unit suffix → samples; "at_ns" counts from the run's start.
Telemetry = Mapping[str, Mapping[str, list[float | None]]]


@dataclass(frozen=True, slots=True)
class StoredTelemetry:
    """What a run file holds in place of `Run.gpu` and `Run.gauges`.

    Args:
        columns: the samples.
        contended: a sentence that names other users of the GPUs; None without other users.
    """

    columns: Telemetry = field(default_factory=dict)
    contended: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One replay of a workload against one server start.

    Args:
        seed: added to the workload's own seed.
        start_id: number of the server start within the session.
        records: one per request, by index. After the test is judged and written, the records are only in the run
            folder and are read back on access.
        counters: increases of the server's counters, and peaks of its gauges; empty if the server shows no counters.
        cache_reset: whether the prefix cache was emptied before the run.
        restarted: evidence that the server's process restarted during the run or since the previous run; None without
            evidence.
        scaled: which replicas of the service appeared or vanished during the run or since the previous run; None if
            none did.
        replicas: replica → increases of its counters; empty for a server alone.
        loop_lag_p99_ms: p99 delay of the load process's heartbeat.
        clock_gap_ms: longest time in which the load process did not run.
        load: report of the load generator; None in virtual time, which sends no requests over sockets.
        started_at: UTC, ISO 8601; a label, never used for durations.
        wall_clock_jump_ms: change of the wall clock during the run. After a large change `started_at` is unreliable.
        gpu: telemetry of the server's GPUs; None without GPUs, and if they cannot be observed.
        cpu: use of this machine's CPU time; None in virtual time, and if the system does not report it.
        gauges: the server's gauges over time; empty if the test did not request gauges.
        execution: number of the test's execution that made the run; a re-run is execution 2.
        block: number of the run's block in the order of server starts of a claim (A B B A: A's blocks are 1 and 4).
            Pairs share execution and seed. None outside a claim.
        expected_hit_rate: upper bound of the prefix-cache hit rate of these requests on this engine; None if unknown.
        tokenizer: name of the tokenizer that counted the text of answers without counts; "" for none.
        model_names: names that the chunks of an answer may give the model, the requested name first; empty if unknown.
        precomputed: metrics from a run file or a simulation; None if the metrics are computed from the records.
        stored_telemetry: telemetry of a stored run instead of `gpu`, `gauges`, `cpu` and `load`; None for a live run.
        requests: requests file of a stored run; None for a live run or a missing file.
        stored_failures: reasons of a stored run's failed requests; None for a live run.
    """

    seed: int
    start_id: int
    records: RunRecords
    counters: Mapping[str, float | None] = field(default_factory=dict, repr=False)
    cache_reset: bool = False
    restarted: str | None = None
    scaled: str | None = None
    replicas: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict, repr=False)
    loop_lag_p99_ms: float | None = None
    clock_gap_ms: float = 0.0
    started_at: str = ""
    wall_clock_jump_ms: float = 0.0
    gpu: GpuTrace | None = field(default=None, repr=False)
    cpu: CpuUse | None = None
    gauges: tuple[GaugeSample, ...] = field(default=(), repr=False)
    load: LoadReport | None = None
    execution: int = 1
    block: int | None = None
    expected_hit_rate: float | None = None
    model_names: tuple[str, ...] = ()
    tokenizer: str = ""
    precomputed: RunMetrics | None = field(default=None, repr=False)
    stored_telemetry: StoredTelemetry | None = field(default=None, repr=False)
    requests: Path | None = None
    stored_failures: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", RunRecords.of(self.records))

    @property
    def failures(self) -> Mapping[str, int]:
        """Reason → number of failed requests, the most frequent reason first."""
        return self.records.derived(failure_counts) if self.stored_failures is None else self.stored_failures

    @classmethod
    def of_values(
        cls, seed: int, start_id: int, values: Mapping[str, float | None],
        judged: Mapping[str, float | None] | None = None, *, requests: Path | None = None, engine: str = "",
    ) -> Run:
        """A stored run: its metrics are known, and its records are read on first use.

        Args:
            values: every metric by name.
            judged: the statistics that failed requests change (`RunMetrics.judged`).
            requests: the file of the run's requests; None: not kept, and reading a record raises UsageError.
            engine: names the run in that message.
        """
        records = RunRecords.unread(partial(all_records, requests, f"{engine}, seed {seed}"))
        metrics = RunMetrics(records, values, judged=judged or {})
        return cls(
            seed, start_id, records, precomputed=metrics, stored_telemetry=StoredTelemetry(), requests=requests,
            stored_failures={},
        )

    @property
    def metrics(self) -> RunMetrics:
        """All metrics of this run."""
        return self.precomputed or measure(self.records, self.counters, self.tokenizer)

    @property
    def telemetry(self) -> Telemetry:
        """What server and GPUs said while the run went on; a source that was not sampled is absent."""
        if self.stored_telemetry is not None:
            return self.stored_telemetry.columns
        server = {"server": gauge_columns(self.gauges)} if self.gauges else {}
        return server if self.gpu is None else server | {"gpu": self.gpu.columns()}

    @property
    def contended(self) -> str | None:
        """A sentence that names other users of the GPUs; None without other users."""
        if self.stored_telemetry is not None:
            return self.stored_telemetry.contended
        return None if self.gpu is None else self.gpu.contended


@dataclass(frozen=True, slots=True)
class Measurement:
    """Runs of one workload on one engine.

    Args:
        engine: the spec, as text.
        workload: the workload, as text.
        conditions: the conditions, which a comparison requires to be equal, and the build under test.
        runs: in the order in which they were made.
        metrics: of each run, in the same order; by default `Run.metrics`.
        lmcache_reuse: share of the prompt tokens that repeat in whole chunks; None if no LMCache is attached.
        may_preempt: whether the test allows preemptions.
        complete: whether all requested runs exist.
        baseline: name of the baseline, "" for the only baseline of a test; None without a baseline comparison.
        primaries: primary metrics of the baseline comparison.
        margins: metric → tolerated margin, for metrics without the default margin.
        side: "a" or "b" of a claim; "" outside a claim.
        bound: lower bound of the latencies for this model on these GPUs; None if model or GPU is unknown.
        looks: largest number of looks at the measurement's SLOs, which share one error rate (`perf.measure(until=…)`).
        alone: why the server ran alone in a test of several servers; "" if the test did not decide this. This text is
            not one of the conditions, because to run alone is the default.
        earlier_looks: number of executions in earlier commands of a resumed session. `runs` does not contain their
            runs. Each was a look at the data and has used a part of the error rate.
        stored_run_sd: sd between runs of log mean TPOT, estimated from the stored sessions of this test; None without
            stored sessions.
    """

    engine: str
    workload: str
    conditions: Mapping[str, str] = field(repr=False)
    runs: tuple[Run, ...] = field(repr=False)
    metrics: tuple[RunMetrics, ...] = field(default=(), repr=False)
    lmcache_reuse: float | None = None
    may_preempt: bool = False
    complete: bool = True
    baseline: str | None = None
    primaries: tuple[str, ...] = ()
    margins: Mapping[str, Margins] = field(default_factory=dict)
    side: str = ""
    looks: int = 1
    earlier_looks: int = 0
    stored_run_sd: float | None = None
    bound: LatencyBound | None = None
    alone: str = ""

    def __post_init__(self) -> None:
        if not self.metrics:
            object.__setattr__(self, "metrics", tuple(run.metrics for run in self.runs))

    @property
    def searched(self) -> bool:
        """Whether each run was a search for the highest rate within an SLO."""
        return "search" in self.conditions

    @property
    def tried(self) -> bool:
        """Whether the measurement belongs to a rate that a search tried. The results determine the number of rates."""
        return "tried_rate" in self.conditions

    @property
    def executions(self) -> int:
        """Number of test executions up to these runs; at least 1. Each execution is a further look at the data."""
        return self.earlier_looks + (len({run.execution for run in self.runs}) or 1)

    def only(self, keep: Callable[[Run], bool]) -> Measurement:
        """This measurement with only the runs for which `keep` is true."""
        selected = [pair for pair in zip(self.runs, self.metrics, strict=True) if keep(pair[0])]
        return replace(self, runs=tuple(run for run, _ in selected), metrics=tuple(metrics for _, metrics in selected))

    def with_runs(self, runs: Sequence[Run]) -> Measurement:
        """This measurement with `runs` instead of its own runs; the metrics are computed from them."""
        return replace(self, runs=tuple(runs), metrics=())

    def release_records(self) -> None:
        """Remove the request records that the run folder contains from memory. A later access reads them again."""
        for run in self.runs:
            run.records.release()

    def by_seed(self) -> Measurement:
        """This measurement with its runs sorted by execution, then seed. Runs of two sides are paired in this order."""
        order = sorted(range(len(self.runs)), key=lambda i: (self.runs[i].execution, self.runs[i].seed))
        return replace(self, runs=tuple(self.runs[i] for i in order), metrics=tuple(self.metrics[i] for i in order))

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """The request records of all runs."""
        return tuple(record for run in self.runs for record in run.records)

    def values(self, name: str) -> tuple[float | None, ...]:
        """A metric's value in each run, in its unit.

        Args:
            name: of the metric, such as "ttft_p99".

        Raises:
            SloError: no such metric.
        """
        return tuple(metrics.value(name) for metrics in self.metrics)

    def values_with_failures(self, name: str) -> tuple[float | None, ...]:
        """A metric's value in each run, in its unit, with each failed request as an infinite latency.

        Args:
            name: of the metric, such as "ttft_p99".

        Raises:
            SloError: no such metric.
        """
        return tuple(value_with_failures(metrics, name) for metrics in self.metrics)

    def value(self, name: str) -> float | None:
        """Mean of a metric over the runs; None if the metric is missing in a run.

        Args:
            name: of the metric, such as "ttft_p99".

        Raises:
            SloError: the metric does not exist.
        """
        return mean_of_runs(self.values(name))

    def value_with_failures(self, name: str) -> float | None:
        """Mean of `values_with_failures` over the runs; None if a run does not have the metric.

        Args:
            name: of the metric, such as "ttft_p99".

        Raises:
            SloError: no such metric.
        """
        return mean_of_runs(self.values_with_failures(name))

    def to_pandas(self) -> pd.DataFrame:
        """One row per request: run, seed, start_id, then what the request did; times and latencies in ms."""
        from pytest_llmperf.results.exports import request_frame

        return request_frame([run.seed for run in self.runs], [run.start_id for run in self.runs], self.metrics)

    def to_vllm_json(self) -> dict[str, object]:
        """The runs pooled, under the keys of `vllm bench serve --save-result`."""
        from pytest_llmperf.results.exports import vllm_json

        return vllm_json(self.metrics, self.conditions)


def failures_text(runs: Iterable[Run]) -> str:
    """Reasons of the failed requests of all runs, most frequent first; "" where no reason is known."""
    counts = Counter[str]()
    for run in runs:
        counts.update(run.failures)
    return reasons_text(counts)


def mean_of_runs(values: Sequence[float | None]) -> float | None:
    """Mean over the runs; None if a run has no value."""
    available_values = [value for value in values if value is not None]
    return fmean(available_values) if available_values and len(available_values) == len(values) else None


@dataclass(frozen=True, slots=True)
class TestResult:
    """What a run folder or a JUnit file holds of one test.

    Args:
        test: its id.
        complete: whether the test reached its end.
        error: what ended it earlier, with the evidence.
        measurements: in the order in which the test made them.
        checks: in the order in which the test made them.
        folder: the run folder; None for a result from JUnit.
        worker: of xdist, that ran the test; "" without xdist.
        profiles: traces of its measurements.
        ended: the outcome as the session recorded it at its end; "" without a record, as in an interrupted session.
        earlier_ends: how each earlier execution of the test ended: a verdict, "failed", …; None if that is unknown.
        inputs: kind of input → digest, see `plugin.inputs`; empty if none were noted.
        owner, excuse: as in `results.ended_test.EndedTest`.
    """

    __test__: ClassVar[bool] = False  # else pytest would take the class for tests

    test: str
    complete: bool
    error: str | None
    measurements: tuple[Measurement, ...]
    checks: tuple[CheckResult, ...]
    folder: Path | None = None
    worker: str = ""
    ended: str = ""
    earlier_ends: tuple[str | None, ...] = ()
    profiles: tuple[Profile, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    excuse: str = ""

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`: the worst verdict of the checks, or the outcome of a test that no check decided; of a red
        test that does not gate the word of its excuse.
        """
        return excused(self.excuse) or self._ended

    @property
    def _ended(self) -> str:
        """The outcome without regard to an excuse."""
        if self.ended:
            return self.ended
        words = {"USAGE: ": USAGE, "failed: ": FAILED}
        if self.error:
            return next((word for start, word in words.items() if self.error.startswith(start)), Verdict.ERROR.value)
        return verdict_of_test(self.checks).value if self.complete else Verdict.ERROR.value

    @property
    def verdict(self) -> Verdict:
        """The worst of its checks; ERROR for a test that no check decided."""
        if self._ended in (SKIPPED, STORED):
            return verdict_of_test(self.checks)
        return Verdict.__members__.get(self._ended, Verdict.ERROR)

    @property
    def ending(self) -> EndedTest:
        """The end of the test, as all reports show this end."""
        error = "" if self._ended not in UNDECIDED or self._error_is_checked else self.error or CUT_SHORT
        for start in ("USAGE: ", "failed: "):
            error = error.removeprefix(start)
        stored = self._ended == STORED
        return EndedTest(self.test, verdict_of_test(self.checks).value if stored else self._ended, self.checks, error,
                         stored=STORED if stored else "", measured=bool(self.measurements), owner=self.owner,
                         excuse=self.excuse)

    @property
    def _error_is_checked(self) -> bool:
        """Whether a check itself is the ERROR."""
        return self.complete and not self.error and any(check.verdict.value == self._ended for check in self.checks)

    @property
    def reason(self) -> str:
        """One line that says why; "" for a plain PASS."""
        if error := self.ending.error:
            return error.partition("\n")[0]
        deciding = self.ending.deciding
        if deciding is None or not (reason := reason_text(deciding)):
            return ""
        names_metric = not deciding.metric or reason.startswith(deciding.metric)
        return reason if names_metric else f"{deciding.metric}: {reason}"

    @property
    def compared(self) -> tuple[Measurement, ...]:
        """The measurements that are compared with a baseline."""
        return tuple(measurement for measurement in self.measurements if measurement.baseline is not None)

    @property
    def failed_executions(self) -> int:
        """How many earlier executions failed. Their runs count; those of an execution that ended in ERROR do not."""
        return sum(end in (Verdict.FAIL.value, "failed") for end in self.earlier_ends)
