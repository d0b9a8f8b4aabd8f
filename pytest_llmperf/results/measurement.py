"""Runs of one workload on one engine: what `perf.measure` returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from pytest_llmperf.metrics import RunMetrics, measure
from pytest_llmperf.model.datasheet import LatencyBound
from pytest_llmperf.model.exchange import LoadReport
from pytest_llmperf.model.record import RequestRecord, RunRecords
from pytest_llmperf.model.telemetry import CpuUse, GaugeSample, GpuTrace
from pytest_llmperf.stats.prior import Margins

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Run:
    """One replay of a workload against one server start.

    Args:
        seed: added to the workload's own seed.
        start_id: which server start of the session.
        records: one per request, by index. Once the test is judged and written they live in the run folder alone, and
            are read back when somebody asks.
        counters: what the server's counters grew by, and peaks of its gauges; empty where it shows none.
        cache_reset: whether the prefix cache was emptied before the run.
        restarted: what showed that the server's process began anew, in the run or since the one before; None: nothing.
        loop_lag_p99_ms: how late the load process ran its heartbeat.
        clock_gap_ms: the longest time that it did not run at all.
        load: how the load generator itself did; None where nothing was sent over sockets.
        started_at: UTC, ISO 8601; a label, never used for durations.
        wall_clock_jump_ms: by how much the wall clock was set during the run: `started_at` is doubtful where large.
        gpu: what happened on the server's GPUs; None where there are none, or nobody can look.
        cpu: what became of this machine's CPU time; None in virtual time, and where the system does not say.
        gauges: the server's gauges over time; empty where they were not asked for.
        execution: which execution of its test made it; a re-run is the second.
        block: within a claim its place in the order of server starts, over both sides (A B B A: A's are 1 and 4);
            pairs share execution and seed. None outside a claim.
        expected_hit_rate: upper bound of the prefix-cache hit rate of these requests on this engine; None: unknown.
        model_names: how the chunks of an answer may call the model, the requested name first; (): nobody knows.
    """

    seed: int
    start_id: int
    records: RunRecords
    counters: Mapping[str, float | None] = field(default_factory=dict, repr=False)
    cache_reset: bool = False
    restarted: str | None = None
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", RunRecords.of(self.records))

    @property
    def metrics(self) -> RunMetrics:
        """All metrics of this run."""
        return measure(self.records, self.counters)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Runs of one workload on one engine.

    Args:
        engine: the spec, as text.
        workload: the workload, as text.
        conditions: what must be equal for a comparison to mean something.
        runs: in the order in which they were made.
        metrics: of each run, in the same order.
        lmcache_reuse: share of the prompt tokens that repeat in whole chunks; None where no LMCache is attached.
        may_preempt: whether the test allows preemptions.
        complete: whether all runs that were asked for are there.
        baseline: name under which it is compared with a stored baseline, "" for a test's only one; None: it is not.
        primaries: the metrics that such a comparison judges.
        margins: metric → tolerated margin, for metrics without the default margin.
        side: "a" or "b" of a claim; "" where it is no side.
        bound: how fast the model on these GPUs can be at all; None where model or GPU is not known.
        looks: how often its SLOs may have been judged, at most: they share one error rate (`perf.measure(until=…)`).
        stored_run_sd: of mean TPOT's logarithm from run to run, as this test's stored sessions say; None without any.
    """

    engine: str
    workload: str
    conditions: Mapping[str, str] = field(repr=False)
    runs: tuple[Run, ...] = field(repr=False)
    metrics: tuple[RunMetrics, ...] = field(repr=False)
    lmcache_reuse: float | None = None
    may_preempt: bool = False
    complete: bool = True
    baseline: str | None = None
    primaries: tuple[str, ...] = ()
    margins: Mapping[str, Margins] = field(default_factory=dict)
    side: str = ""
    looks: int = 1
    stored_run_sd: float | None = None
    bound: LatencyBound | None = None

    @property
    def searched(self) -> bool:
        """Whether each run was a search for the highest rate within an SLO."""
        return "search" in self.conditions

    @property
    def executions(self) -> int:
        """How many executions of the test its runs come from; at least 1. Each is one more look at one question."""
        return len({run.execution for run in self.runs}) or 1

    def only(self, keep: Callable[[Run], bool]) -> Measurement:
        """With some of its runs."""
        selected = [pair for pair in zip(self.runs, self.metrics, strict=True) if keep(pair[0])]
        return replace(self, runs=tuple(run for run, _ in selected), metrics=tuple(metrics for _, metrics in selected))

    def by_seed(self) -> Measurement:
        """With its runs in the order of execution and seed: the order in which pairs are compared."""
        order = sorted(range(len(self.runs)), key=lambda i: (self.runs[i].execution, self.runs[i].seed))
        return replace(self, runs=tuple(self.runs[i] for i in order), metrics=tuple(self.metrics[i] for i in order))

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """The request records of all runs."""
        return tuple(record for run in self.runs for record in run.records)

    def values(self, name: str) -> tuple[float | None, ...]:
        """A metric's value in each run.

        Raises:
            SloError: no such metric.
        """
        return tuple(metrics.value(name) for metrics in self.metrics)

    def value(self, name: str) -> float | None:
        """Mean of a metric over the runs; None where a run does not have it.

        Raises:
            SloError: no such metric.
        """
        available_values = [value for value in self.values(name) if value is not None]
        return fmean(available_values) if available_values and len(available_values) == len(self.runs) else None

    def to_pandas(self) -> pd.DataFrame:
        """One row per request: run, seed, start_id, then what the request did; times and latencies in ms."""
        from pytest_llmperf.results.frame import request_frame

        return request_frame([run.seed for run in self.runs], [run.start_id for run in self.runs], self.metrics)

    def to_vllm_json(self) -> dict[str, object]:
        """The runs pooled, under the keys of `vllm bench serve --save-result`."""
        from pytest_llmperf.results.vllm_json import vllm_json

        return vllm_json(self.metrics, self.conditions)
